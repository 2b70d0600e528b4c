"""A real engine without a GPU: llama.cpp's own server on a random model of half a megabyte."""
