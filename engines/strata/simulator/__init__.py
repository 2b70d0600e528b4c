"""A server that behaves as Strata does, faults included, without a GPU. Standard library and `engines.simvram` only.

    python -m engines.strata.simulator --engine strata --config X.json --port N [--host H] [--sim-… VALUE]
    python -m engines.strata.simulator.container          as the image's entry point does it

The first form is `serve/server.py`'s. The second takes MODEL CONTEXT VISION KV HOST PORT API_KEY from the
environment, ignores its arguments, and bakes `DATA/config/strata-MODEL.json` *once*: a recreated container with
another CONTEXT runs the old file unless REINSTALL=1. The configuration file's keys are those names in lower case;
`model` must be an existing file where it ends in `.gguf`.

Every knob is a flag `--sim-NAME` and a variable `STRATA_SIM_NAME` (upper case, `_` for `-`); the flag wins.

    knob         default  meaning
    load         1.0      seconds that loading takes
    prefill      2000     prompt tokens a second (a token is four characters)
    decode       10       milliseconds a token
    tokens       32       tokens of an answer (a request's own `sim_tokens` wins; its `max_tokens` cuts it)
    thinking     16       tokens thought before it at high effort (low: a quarter, medium: half; off: none)
    card         none     the simulated card's folder (`engines.simvram`); none: no VRAM is taken
    vram         free     bytes to take, or `free`: what is free when it loads, less `reserve`
    reserve      1 GiB    bytes left free by `free`
    full         24 GiB   bytes under which `free` makes every token slower, in proportion, for ever
    linger       0        seconds for which VRAM stays taken after the engine's end
    unpin        0.9      seconds that the engine takes to unpin its memory when it is told to stop (15: a slow one)
    keep-alive   5        seconds of silence, while the engine runs, after which a stream gets `: keep-alive`
    fault        none     faults from the start, see below
    fault-file   none     a file with faults, read at each load and each request: faults that come and go
    request-log  none     a file that gets a JSON line for each request received, started, finished, cancelled or failed
    data         /data    the container form's folder

Faults are `NAME` or `NAME:NUMBER`, several with commas between:

    never-ready            loads for ever: connection refused
    fail-load              the load fails: exit 1 at the first load; at a later one the request gets the error
    exit-after-load:CODE   loads, then ends with CODE (3) and an `error:` line, before it binds
    crash:TOKENS           the engine process dies (134) after so many tokens (3) of an answer
    hang:TOKENS            the engine falls silent after so many tokens (3) and listens to nothing any more

Tool calls are those of `engines.simtools`.

Files: `server` the lifecycle, `handler` HTTP, `dialects` what goes over the wire, `supervisor` the server's side of
the engine process, `engine` that process, `asking` what a request asks for, `knobs` and `container` how it is set up.
"""
