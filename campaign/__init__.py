"""A campaign against the library: damaged files, kills, full disks, odd arguments; run with ``python -m campaign``."""
