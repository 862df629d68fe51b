"""Independent jobs side by side in processes of one thread each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from threadpoolctl import threadpool_limits


def count_processes(jobs: int) -> int:
    """As many processes as there are cores for this program, and no more than jobs."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(available, jobs))


def in_parallel(function: Callable[..., Any], jobs: Iterable[tuple[Any, ...]], processes: int) -> Iterator[Any]:
    """Results of ``function(*job)`` in the order of the jobs.

    Small networks are trained fastest by one thread, so each job has one, also without processes: the last digits of
    a sum depend on how many threads share it, and a result must not depend on the machine's cores.

    Example:
        >>> list(in_parallel(pow, [(2, 3), (3, 2)], processes=1))
        [8, 9]
    """
    if processes == 1:
        yield from (with_one_thread(function, *job) for job in jobs)
        return
    # joblib comes with scikit-learn; its processes need no guarded main module and survive notebooks.
    from joblib import Parallel, delayed

    yield from Parallel(n_jobs=processes, return_as="generator")(delayed(with_one_thread)(function, *j) for j in jobs)


def with_one_thread(function: Callable[..., Any], *job: Any, **options: Any) -> Any:
    """``function(*job, **options)`` with one thread of torch and one of BLAS, whose threads wait by spinning."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            return function(*job, **options)
    finally:
        torch.set_num_threads(threads)
