"""The image's entry point: arguments are ignored, the environment is baked into a file once, the file is run."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from engines.strata.simulator import knobs
from engines.strata.simulator.server import serve
from engines.strata.simulator.settings import SettingsError, bake, read_settings


def main() -> int:
    parser = argparse.ArgumentParser()
    knobs.add_flags(parser, os.environ)
    chosen = knobs.from_namespace(parser.parse_args([]))
    try:
        settings = read_settings(bake(os.environ, Path(chosen.data) / "config"))
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return serve(settings, chosen)


if __name__ == "__main__":
    sys.exit(main())
