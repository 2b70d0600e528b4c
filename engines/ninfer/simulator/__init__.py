"""A simulator of `ninfer-serve` that behaves as the engine does, faults included. Standard library only.

    python -m engines.ninfer.simulator ARTIFACT.ninfer [flags]

The command line is the engine's own (`--help`); its other flags are refused as the engine refuses unknown ones.
Unlike the engine, `--port 0` takes a free port, which the line `listening on http://…` then names, and
`--flag=value` is understood. Without `--default-max-tokens` an answer has 32 tokens.

What a machine and a build decide for the engine comes from the environment, or from flags that win over it. Each
knob has both: NINFER_SIM_LOAD_S is `--sim-load-s`. Times in seconds; sizes in bytes, or with KiB, MiB, GiB.

    knob                    default       meaning
    LOAD_S                  1             how long loading takes; until then connections get no answer
    PREFILL_TPS             3000          prompt tokens a second (a token: four characters); silent meanwhile
    DECODE_MS               5             milliseconds a token
    PREFIXES                1             conversations whose prefix is kept: their tokens need no prefill (`cache_n`)
    READS                   2             the artifact version that this build reads
    CARD                                  the simulated card's folder (engines.simvram); unset: no VRAM is taken
    VRAM                    31000000000   what it takes of the card from the start of loading until it exits
    LINGER_S                0             the VRAM is released so long after it exited
    WORKERS                 8             connections served at once; more wait, even for /health (the HTTP library has
                                          as many as the machine has cores, at least 8: fewer than 17 hide the 429)
    PENDING_TIMEOUT_S                     in place of --pending-timeout-ms
    PENDING_STATUS          503           what a request gets that waited too long (one build: 408)
    KEEPALIVE_S             5             silence before `: keep-alive`, except in a prefill; 0: never (older builds)
    STOP_S                  0.3           how long the way out takes
    REQUEST_LOG                           a file that gets a JSON line when a request (POST) is received, with its
                                          X-Request-Id and the sha256 of its body, and one when it is over and how

    fault                                 meaning
    NEVER_READY                           1: loading never ends
    EXIT_AFTER_LOAD                       exits with this code when it has loaded (1: refused, 134: CUDA abort)
    CRASH_AFTER_TOKENS                    dies (134) when a request has got so many tokens
    HANG_AFTER_TOKENS                     is silent from then on, until that client leaves
    ERROR_AFTER_TOKENS                    ends that request with an error, in a stream as an event and without `[DONE]`
    FAIL_AFTER_REQUESTS                   an engine-wide failure after so many requests: 503 `unavailable` for ever
    FAILURE_FILE                          a file that the next request takes away: `unavailable` in it is that failure,
                                          `lost` an engine whose container has lost the card: 500, a CUDA error, and
                                          a good /health. Either lasts as long as this process
    LYING_HEALTH                          1: /health says 200 all the same (older builds)
    IGNORE_SIGTERM                        1: SIGTERM does nothing, also when it is ready

Tokens are deterministic (`words`). With thinking on, a quarter of them, at most four, are reasoning. Every answer
names the engine: `system_fingerprint: ninfer-sim`. Tool calls are those of
`engines.simtools`. Not simulated: images, sampling.
"""

from engines.ninfer.simulator.engine import words
from engines.ninfer.simulator.start import main

__all__ = ["main", "words"]
