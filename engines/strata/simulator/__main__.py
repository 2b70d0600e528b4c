"""`serve/server.py`'s command line."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from engines.strata.simulator import knobs
from engines.strata.simulator.server import serve
from engines.strata.simulator.settings import SettingsError, read_settings


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="serve/server.py", description="A simulated Strata server")
    parser.add_argument("--engine", choices=["strata"], default="strata")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    knobs.add_flags(parser, os.environ)
    options = parser.parse_args(argv)
    try:
        settings = read_settings(options.config)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    given = {name: value for name in ("host", "port") if (value := getattr(options, name)) is not None}
    return serve(replace(settings, **given), knobs.from_namespace(options))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
