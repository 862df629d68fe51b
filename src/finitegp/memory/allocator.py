"""The allocators of the C library and of Arrow, and the kernel, set to keep no more memory than is used."""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_THRESHOLD = 1 << 17
_PR_SET_THP_DISABLE = 41  # prctl in linux/prctl.h


def return_freed_memory() -> bool:
    """From now on, give freed blocks of 128 KiB and more back to the system at once (glibc; elsewhere nothing).

    By default glibc raises that size to that of the largest block it has seen freed, up to 32 MiB, and keeps what is
    smaller: of a pass whose arrays take 20 MB, 60 MB may stay. A memory budget holds only with the size fixed. The
    price is that the kernel has to clear the pages of every large array anew. What Arrow's own allocator
    keeps is released, too.

    Linux gives memory in pages of 4 KiB, or of 2 MiB where a program asks for huge ones (Arrow's allocator and NumPy
    do), and later fills the holes between small pages to make huge ones of them: freed memory comes back by itself.
    So huge pages are switched off for this process and those that it starts.

    Returns:
        Whether the C library's allocator took the settings.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is not None:
        arrow.default_memory_pool().release_unused()
    if not sys.platform.startswith("linux"):
        return False
    try:
        library = ctypes.CDLL(None)
        mallopt, trim = library.mallopt, library.malloc_trim
    except (OSError, AttributeError):
        return False  # another C library
    if hasattr(library, "prctl"):
        library.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    taken = [mallopt(parameter, _THRESHOLD) for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD)]
    trim(0)
    return all(taken)
