"""Fuzzing by command; bounded runs of the same are tests beside it.

    python -m tests.fuzz http [--minutes N] [--seed N]
    python -m tests.fuzz answers [--minutes N] [--seed N]
    python -m tests.fuzz bodies [--minutes N] [--seed N]
    python -m tests.fuzz sse [--minutes N] [--seed N]

Each surface is one function here: `minutes` and `seed` in, what it found out (empty: nothing was wrong).
"""
