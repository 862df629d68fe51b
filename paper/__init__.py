"""The paper's experiments and its peers, rerun: ``python -m paper run`` and ``python -m paper page``."""
