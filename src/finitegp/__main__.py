"""The command line: ``finitegp``, ``python -m finitegp``, and what ``torchrun -m finitegp`` starts."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it without a traceback."""
    try:
        from .cli import app
    except KeyboardInterrupt:
        sys.stderr.write("Stopped: no file was written.\n")
        sys.exit(130)
    app(arguments, prog_name="finitegp")


if __name__ == "__main__":
    main()
