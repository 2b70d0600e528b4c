"""Real clients of all kinds, each asking engines directly and through a real slotproxy, before, in and after a swap."""
