"""The soak: swaps, faults and clients at random, for as long as you like; what is seen from outside counts.

    python -m tests.soak [--minutes 30] [--seed N] [--docker]

`ground` is what it stands on: a real `slotproxy serve`, and simulators as child processes or in containers. `clients`
ask without a pause and look at each answer, `faults` do to the house what life does, `eyes` look all the time whether
two engines are there, `measure` whether the daemon grows, `story` remembers what happened and what it excuses. `soak`
puts it together: lives of the daemon, each of some rounds of faults, with a quiet moment after each round.

The same seed draws the same faults in the same order; when they hit what, the machine decides.
"""
