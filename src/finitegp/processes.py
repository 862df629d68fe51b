"""Independent jobs side by side, in threads or in processes of one thread each."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import TypeVar

import torch
from threadpoolctl import ThreadpoolController

_Result = TypeVar("_Result")
_Job = TypeVar("_Job")


def count_processes(jobs: int) -> int:
    """As many processes as there are cores for this program, and no more than jobs."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(available, jobs))


def in_parallel(
    function: Callable[..., _Result], jobs: Sequence[tuple[object, ...]], workers: int, *, processes: bool = False
) -> Iterator[_Result]:
    """Results of ``function(*job)`` in the order of the jobs, each as soon as it and those before it are there.

    Args:
        function: What to call.
        jobs: Its arguments.
        workers: Jobs at once.
        processes: Whether each worker is a process. Torch's operations let other threads run, so threads do for short
            jobs. Small networks are trained fastest by one thread, so each job in a process has one: the last digits
            of a sum depend on how many threads share it, and a result must not depend on the machine's cores.

    Example:
        >>> list(in_parallel(pow, [(2, 3), (3, 2)], workers=2))
        [8, 9]
    """
    if workers == 1 or len(jobs) == 1:
        yield from (_with_one_thread(function, *job) if processes else function(*job) for job in jobs)
    elif processes:
        # joblib comes with scikit-learn; its processes need no guarded main module and survive notebooks.
        from joblib import Parallel, delayed

        calls = (delayed(_with_one_thread)(function, *job) for job in jobs)
        yield from Parallel(n_jobs=workers, return_as="generator")(calls)
    else:
        with ThreadPoolExecutor(workers) as pool:
            yield from pool.map(lambda job: function(*job), jobs)


def in_turn(function: Callable[[_Job, int], None], jobs: Iterable[_Job], workers: int, *, threads: bool) -> None:
    """``function(job, worker)`` for each job: these go to the workers in turn, the same ones with threads or without.

    Args:
        function: What to call; the calls of one worker come one after the other.
        jobs: Read by the calling thread, one at most ahead of the workers.
        workers: How many.
        threads: Whether each worker has a thread of its own.

    Example:
        >>> sums = [0, 0]
        >>> def add(number, worker):
        ...     sums[worker] += number
        >>> in_turn(add, range(5), 2, threads=True)
        >>> sums
        [6, 4]
    """
    if not threads:
        for number, job in enumerate(jobs):
            function(job, number % workers)
        return
    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(workers)]
        pending: deque[Future[None]] = deque()
        for number, job in enumerate(jobs):
            if len(pending) == workers:
                pending.popleft().result()
            pending.append(pools[number % workers].submit(function, job, number % workers))
            del job  # not kept while the next one is read
        for each in pending:
            each.result()


@contextmanager
def beside(function: Callable[[], _Result], *, allowed: bool) -> Iterator[Callable[[], _Result]]:
    """Call ``function`` in another thread while the block runs; what is yielded waits for its result.

    If that is not allowed, the function is called when its result is asked for.

    Example:
        >>> with beside(lambda: 2 + 3, allowed=True) as result:
        ...     product = 2 * 3
        >>> result(), product
        (5, 6)
    """
    if not allowed:
        yield function
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(function).result


@contextmanager
def one_thread() -> Iterator[int]:
    """One thread of torch and one of BLAS inside, which wait for each other by spinning; also decorates functions.

    On few rows they wait longer than they work, the more so beside another program. Torch has a setting for each
    thread of Python, BLAS one for all of the program: whoever comes while another has changed that leaves it alone.
    What is yielded is how many threads torch had.
    """
    before, mine = torch.get_num_threads(), _CHANGING.acquire(blocking=False)
    torch.set_num_threads(1)
    try:
        with _blas().limit(limits=1, user_api="blas") if mine else nullcontext():
            yield before
    finally:
        torch.set_num_threads(before)
        if mine:
            _CHANGING.release()


def _with_one_thread(function: Callable[..., _Result], *job: object) -> _Result:
    with one_thread():
        return function(*job)


def in_threads(function: Callable[..., _Result], jobs: Sequence[tuple[object, ...]]) -> list[_Result]:
    """Results of ``function(*job)``, with as many threads as torch may use, each of which has one for its operations.

    So the results do not depend on how many there are.
    """
    with one_thread() as before:
        threads = min(before, len(jobs))
        if threads < 2:
            return [function(*job) for job in jobs]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(lambda job: function(*job), jobs))


_CHANGING = threading.Lock()


@cache
def _blas() -> ThreadpoolController:
    """Found once: to look for loaded libraries takes as long as the prediction of hundreds of rows."""
    import scipy.linalg.blas  # noqa: F401 - has a BLAS of its own, which is found only once it is loaded

    return ThreadpoolController()
