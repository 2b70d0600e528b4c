"""llama.cpp's real HTTP server on the CPU: `python llama_server.py --model X.gguf --host H --port N`.

With `--card-folder DIR --vram BYTES` it also takes "VRAM" on the simulated card, before it loads, and exits 1 when
the card hasn't that much free. Ends with exit code 0 at SIGTERM. Needs only `xllamacpp` (and `engines.simvram` when
a card is given), so that it runs in a small image, too.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import xllamacpp


def take_vram(folder: Path | None, size: int) -> AbstractContextManager[object]:
    """Holds `size` bytes of the card, if there is one. Raises SystemExit(1) when the card is too full."""
    if folder is None:
        return nullcontext()
    from engines.simvram import Allocation, OutOfMemory

    try:
        return Allocation(folder, f"llamacpp-{uuid.uuid4().hex[:8]}", size)
    except OutOfMemory as full:
        print(f"error: cannot load the model: {full}", file=sys.stderr, flush=True)
        raise SystemExit(1) from full


def settings(options: argparse.Namespace) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model)
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.context
    params.n_predict = options.predict
    params.n_parallel = options.parallel
    params.n_threads_http = 8
    params.cpuparams.n_threads = 1
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.ui = False
    params.warmup = False
    params.fit_params = False
    params.verbosity = 0
    if options.embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    return params


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="llama.cpp's real HTTP server, on the CPU")
    parser.add_argument("--model", "-m", type=Path, required=True)
    parser.add_argument("--alias", default="tiny", help="the model's name in /v1/models and in answers")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--context", type=int, default=8192, help="tokens")
    parser.add_argument("--predict", type=int, default=128, help="tokens in an answer when the client sets no limit")
    parser.add_argument("--parallel", type=int, default=1, help="KV slots, which share the context")
    parser.add_argument("--embeddings", action="store_true", help="serve /v1/embeddings, too")
    parser.add_argument("--card-folder", type=Path)
    parser.add_argument("--vram", type=int, default=0, help="bytes to take on the simulated card")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    options = arguments(argv)
    if not options.model.is_file():
        print(f"error: cannot load the model: no file {options.model}", file=sys.stderr)
        return 1
    with take_vram(options.card_folder, options.vram):
        server = xllamacpp.Server(settings(options))
        print(f"listening on {server.listening_address}", flush=True)
        while True:  # not for ever at once: a signal that comes just before the wait would be missed
            time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
