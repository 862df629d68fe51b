"""The paper's experiments and its peers, rerun: ``finitegp reproduce`` and ``finitegp tables``."""
