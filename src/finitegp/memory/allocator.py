"""The allocators of the C library and of Arrow, told to give memory back."""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_THRESHOLD = 1 << 17


def return_freed_memory() -> bool:
    """From now on, give freed blocks of 128 KiB and more back to the system at once (glibc; elsewhere nothing).

    By default glibc raises that size to that of the largest block it has seen freed, up to 32 MiB, and keeps what is
    smaller: of a pass whose arrays take 20 MB, 60 MB may stay. A memory budget holds only with the size fixed. The
    price is that the kernel has to clear the pages of every large array anew. What Arrow's own allocator
    keeps is released, too.

    Returns:
        Whether the C library's allocator was told.
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
    told = [mallopt(parameter, _THRESHOLD) for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD, _M_TOP_PAD)]
    trim(0)
    return all(told)
