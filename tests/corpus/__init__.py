"""Answers as engines send them, cut in every way, through the proxy: the client's bytes must be the engine's.

    python -m tests.corpus [--only TEXT] [--seed N]

sends each answer of the corpus in every framing with every cut; `test_corpus.py` sends a choice of them.

    answer.py    what an engine answers, and what a proxy may make of it
    engines.py   the shapes of NInfer, Strata, llama.cpp, vLLM, OpenAI, Anthropic
    framings.py  one stream of events in all ways that the HTML standard allows
    odd.py       what no engine should send, and one will
    sending.py   how an answer goes over the wire: framing, and cuts as TCP writes or HTTP chunks
    through.py   the engine's socket, the proxy, the client's socket, and the comparing
"""
