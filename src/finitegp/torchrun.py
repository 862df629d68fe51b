"""``join_ranks``: the processes that ``torchrun`` started, from their joining to their end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from .arguments import check_arguments, check_positive
from .distributed import ALONE, TIMEOUT, Ranks, lost_rank


@check_arguments
@contextmanager
def join_ranks(*, timeout: float = TIMEOUT) -> Iterator[Ranks]:
    """The ranks of this run, inside: those that ``torchrun`` started, or this process alone.

    A script that trains with what this gives runs under ``python`` and under ``torchrun`` alike. Tensors on the CPU
    are sent with gloo, those on CUDA devices with NCCL. A process group that exists already is used as it is.

    Args:
        timeout: Seconds after which a silent rank is taken for lost. All others then stop with a
            :class:`~finitegp.errors.LostRankError`, and the run can be resumed from its checkpoint.

    Example:
        >>> with join_ranks() as ranks:
        ...     ranks.world_size
        1
    """
    check_positive(timeout=timeout)
    if dist.is_available() and dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size(), pulse_seconds=timeout / 6)
        return
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or "RANK" not in os.environ:
        yield ALONE
        return
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        backend = "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    with _new_threads_give_way():
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), pulse_seconds=timeout / 6)
    try:
        with _stopped_by_torchrun(ranks):
            yield ranks
    finally:
        dist.destroy_process_group()


@contextmanager
def _new_threads_give_way() -> Iterator[None]:
    """Threads started inside do not interrupt those that compute (Linux; elsewhere nothing).

    Gloo's thread wakes up for every message, while the main thread may hold the lock on the connection; it then asks
    for that lock over and over, and where the two share a core the main thread, which would release it, has to wait
    for the scheduler's next tick: up to 4 ms. Under the policy for batch jobs a thread waits for its turn instead.
    """
    before = _threads()
    yield
    for thread in _threads() - before:
        with suppress(OSError):  # a thread that has ended already, or a system that forbids it
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _threads() -> set[int]:
    """The threads of this process, as far as the system lists them and their policy could be set."""
    if not hasattr(os, "SCHED_BATCH"):
        return set()
    try:
        return set(map(int, os.listdir("/proc/self/task")))
    except OSError:
        return set()


@contextmanager
def _stopped_by_torchrun(ranks: Ranks) -> Iterator[None]:
    """Turn the signal with which ``torchrun`` ends the other ranks of a lost one into an error with the reason."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise lost_rank(f"Rank {ranks.rank} of {ranks.world_size} was told to stop", "SIGTERM")

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except BaseException:
        # This process is about to end with a message, which a signal must not cut off.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise
    signal.signal(signal.SIGTERM, before)
