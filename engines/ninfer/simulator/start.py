"""From the command line to `listening on`, and out again: in the engine's order, with its messages and exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType

from engines.ninfer.artifact import read_header
from engines.ninfer.simulator.options import Knobs, Launch, UsageError, parse, usage
from engines.ninfer.simulator.service import Service
from engines.ninfer.simulator.wire import Server
from engines.simvram import Allocation, OutOfMemory
from engines.spec import ArtifactError, MiB


class Fatal(Exception):
    """The engine ends with this code and, where there is one, this `error:` line."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine until it is told to stop. Returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no handler while it loads: as PID 1 both signals are ignored
    try:
        launch, knobs = parse(sys.argv[1:] if arguments is None else arguments, os.environ)
        if launch.help:
            print(usage())
            return 0
        return _run(launch, knobs)
    except UsageError as error:
        return _end(Fatal(str(error)))
    except Fatal as fatal:
        return _end(fatal)


def _end(fatal: Fatal) -> int:
    _say(f"error: {fatal}", usage())
    return fatal.code


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def _run(launch: Launch, knobs: Knobs) -> int:
    server = _bind(launch)
    _say("ninfer-serve: loading model...")
    model = _model(launch, knobs)
    with _vram(launch, knobs):
        _load(knobs)
        _say("ninfer-serve: warming up...")
        service = Service(launch, knobs, model, server.stopping)

        def stop(_signal: int, _frame: FrameType | None) -> None:
            if not knobs.ignore_sigterm:
                server.stopping.set()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        auth = "bearer" if launch.api_key else "disabled"
        _say(f"ninfer-serve: listening on http://{launch.host}:{server.port} (model id: {model}, auth: {auth})")
        server.serve(knobs.workers, launch.max_request_mib * MiB, service.handle)
        time.sleep(knobs.stop_s)
    return 0


def _bind(launch: Launch) -> Server:
    try:
        return Server(launch.host, launch.port)
    except OSError as error:
        why = error.strerror or error
        raise Fatal(f"failed to bind {launch.host}:{launch.port}: {why}") from None


def _model(launch: Launch, knobs: Knobs) -> str:
    """The public model name, if this build can read the artifact."""
    try:
        header = read_header(launch.artifact)
    except OSError as error:
        raise Fatal(f"cannot open artifact '{launch.artifact}': {error.strerror}") from None
    except ArtifactError as error:
        raise Fatal(str(error)) from None
    if header.version != knobs.reads:
        raise Fatal(f"artifact magic is not NInfer v{knobs.reads}")
    if not header.whole:
        raise Fatal(f"artifact is truncated: {header.size} bytes of {header.expected_size}")
    return launch.model_id or header.model or launch.artifact.stem


def _vram(launch: Launch, knobs: Knobs) -> contextlib.AbstractContextManager[object]:
    if knobs.card is None:
        return contextlib.nullcontext()
    name = f"ninfer-{socket.gethostname()}-{os.getpid()}"
    try:
        return Allocation(knobs.card, name, knobs.vram, linger=knobs.linger_s)
    except OutOfMemory as memory:
        weights = knobs.vram * 3 // 4
        if launch.kv_capacity == "auto" and memory.free >= weights:  # it starts small instead of failing
            return Allocation(knobs.card, name, memory.free, linger=knobs.linger_s)
        raise Fatal(
            f"model weights require {weights} bytes of device memory (with the KV cache {knobs.vram}), "
            f"but only {memory.free} bytes are free before loading weights"
        ) from None


def _load(knobs: Knobs) -> None:
    time.sleep(knobs.load_s)
    while knobs.never_ready:
        time.sleep(3600)
    if knobs.exit_after_load is not None:
        raise Fatal("CUDA error: an illegal memory access was encountered", knobs.exit_after_load)
