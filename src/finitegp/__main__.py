"""The command line as ``python -m finitegp``, which is also how ``torchrun -m finitegp`` starts it."""

from .cli import app

if __name__ == "__main__":
    app(prog_name="finitegp")
