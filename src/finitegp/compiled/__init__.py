"""Whole training steps compiled by Numba (``pip install 'finitegp[fast]'``), the same as the library's to rounding.

At batches of 32 rows most of a step's time is the calls of some hundred small tensor operations. ``steps`` has
:class:`CompiledSteps`, which ``train(compiled=True)`` uses; ``descent`` the loops, made of ``network``, ``optimizers``
and ``factors``. Numba keeps what it compiled beside the files and notices where a file has changed, but not where a
file that it calls has: after changes here, remove ``__pycache__/*.nb?``.
"""

try:
    import numba  # noqa: F401
except ImportError as error:
    raise ImportError("Compiled steps need Numba: pip install 'finitegp[fast]'.") from error

from .steps import CompiledSteps

__all__ = ["CompiledSteps"]
