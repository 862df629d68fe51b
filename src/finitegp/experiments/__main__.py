"""``python -m finitegp.experiments``: the same as ``finitegp reproduce``."""

from .command import app

if __name__ == "__main__":
    app(prog_name="python -m finitegp.experiments")
