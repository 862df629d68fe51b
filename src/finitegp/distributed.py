"""``Ranks``: the processes that share one run. The only place that sends anything to other processes.

Everything that the ranks tell one another is a sum over rows, so that a rank needs nothing but its share of the rows:
statistics of exact passes and gradients of batches are added up over ranks, and afterwards all ranks hold the same.
"""

from __future__ import annotations

import copy
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

# What DistributedDataParallel packs its messages with.
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from .data.iterables import as_source
from .data.sources import Data, Source
from .data.spool import Progress, SpooledSource, open_spool, spool, spool_temporarily
from .errors import DataError, LostRankError
from .statistics import COMPLETE, Chunk, Chunks, FeatureStatistics, Share, Sums, sum_statistics

_Written = TypeVar("_Written")
_Rest = TypeVar("_Rest")

#: A rank that is silent for this many seconds is taken for lost.
TIMEOUT = 60.0

# Seconds for which a sum over ranks is watched rather than slept through: the sum of a step comes sooner.
_WATCHED = 0.003

# States of a rank in long work.
_DONE, _WORKING, _FAILED = range(3)


class Ranks(Sums):
    """The processes of one run: which of them this is, and how they add up what each of them has.

    Made by :func:`~finitegp.torchrun.join_ranks`; ``Ranks()`` is one process alone, for which every method does the
    least. All ranks have to call the same methods in the same order.

    Attributes:
        rank: The number of this process, from 0.
        world_size: How many processes there are.
        share: The share of rows that is this rank's.
        pulse_seconds: How often a rank in long work shows the others that it is alive.

    Example:
        >>> alone = Ranks()
        >>> alone.is_first, alone.share.cut(10)
        (True, slice(0, 10, None))
    """

    def __init__(self, rank: int = 0, world_size: int = 1, *, pulse_seconds: float = TIMEOUT / 6) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie from 0 to world_size - 1 ({world_size - 1}), but is {rank}.")
        self.rank = rank
        self.world_size = world_size
        self.share = Share(rank, world_size)
        self.pulse_seconds = pulse_seconds

    def __repr__(self) -> str:
        return "Ranks()" if self.world_size == 1 else f"Ranks({self.rank}, {self.world_size})"

    @property
    def is_first(self) -> bool:
        """Whether this rank is the one that writes files and speaks."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where a model of this rank should be: its own CUDA device where there is one."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))

    def shard(self, data: Data) -> Source:
        """The same rows, of which exact passes read this rank's share; all ranks get the sums over all rows."""
        source = copy.copy(as_source(data))
        source.sums = self if self.world_size > 1 else COMPLETE
        return source

    def each_chunk(self, source: Chunks[Chunk], use: Callable[[Chunk], object]) -> None:
        """Call a function with each chunk of this rank's rows in turn, as :meth:`working`."""
        with self.working() as beat:
            for rows in source.part(self.share):
                use(rows)
                del rows  # not kept while the next chunk passes
                beat()

    def sum_statistics(self, parts: Iterable[FeatureStatistics]) -> FeatureStatistics:
        """The sum of all parts of all ranks, of which this rank may have none; each is made while it is added.

        Raises:
            DataError: If no rank has parts.
        """
        if self.world_size == 1:
            return sum_statistics(parts)
        total: FeatureStatistics | None = None
        with self.working() as beat:
            for part in parts:
                total = part.clone() if total is None else total.accumulate(part)
                del part  # not kept while the next one is made
                beat()
        own = (0, 0) if total is None else (total.num_features, total.num_targets)
        shapes = {(int(d), int(t)) for d, t in self._gather(torch.tensor(own)).tolist() if d}
        if not shapes:
            raise DataError("There are no rows: the data are empty.")
        if len(shapes) > 1:
            raise DataError(f"The ranks have statistics of different shapes: {sorted(shapes)} features and targets.")
        if total is None:
            total = FeatureStatistics.zeros(*shapes.pop(), device=self.device)
        return self.add_statistics(total)

    def add_statistics(self, statistics: FeatureStatistics) -> FeatureStatistics:
        """The sum of the statistics of all ranks, in one message."""
        if self.world_size == 1:
            return statistics
        return statistics.unflatten(self._sum(statistics.flatten()))

    def add_number(self, number: float) -> float:
        """The sum of a number over ranks."""
        return float(self._sum(torch.tensor(number, dtype=torch.float64)))

    def largest(self, number: float) -> float:
        """The largest of the ranks' numbers."""
        return float(self._gather(torch.tensor(number, dtype=torch.float64)).max())

    def add_rows(self, total: Tensor, rows: int) -> tuple[Tensor, float]:
        """The sum over ranks of a sum over rows, and of the number of these rows, in one message."""
        if self.world_size == 1:
            return total, rows
        flat = self._sum(torch.cat([total.reshape(-1), total.new_tensor([rows])]))
        return flat[:-1].view(total.shape), float(flat[-1])

    def mean_gradients(self, parameters: Iterable[Tensor], loss: Tensor, rows: int) -> Tensor:
        r"""Make gradients that are means over this rank's rows into means over the rows of all ranks, and so the loss.

        :math:`g(S) = \sum_r (b_r / b)\,g(S_r)`, in one message for all parameters. A rank without rows (``rows=0``)
        needs gradients all the same, of the right shapes; their values make no difference.
        """
        if self.world_size == 1:
            return loss
        owners = [parameter for parameter in parameters if parameter.grad is not None]
        gradients: list[Tensor] = [parameter.grad for parameter in owners]  # type: ignore[misc]
        # One type for all: float64 as soon as there is one, so that nothing is rounded.
        kind = torch.float64 if any(gradient.dtype == torch.float64 for gradient in gradients) else torch.float32
        ends = [loss.detach().reshape(1), loss.new_ones(1)]
        flat = _flatten_dense_tensors([part.to(kind) for part in [*gradients, *ends]])  # type: ignore[no-untyped-call]
        # Not a product with zero: stand-in values need not be finite.
        flat = self._sum(flat.mul_(rows) if rows else flat.zero_())
        flat.div_(flat[-1].clone())
        for parameter, mean in zip(owners, _unflatten_dense_tensors(flat, gradients), strict=True):  # type: ignore[no-untyped-call]
            parameter.grad = mean if mean.dtype == parameter.dtype else mean.to(parameter.dtype)
        return flat[-2].to(loss.dtype)

    def add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Add up gradients that are sums over rows; a rank without rows need not have any."""
        if self.world_size == 1:
            return
        there = self._gather(torch.tensor([parameter.grad is not None for parameter in parameters]).long()).amax(dim=0)
        owners = [parameter for parameter, present in zip(parameters, there.tolist(), strict=True) if present]
        for parameter in owners:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.copy_(self._sum(parameter.grad.double()))

    def gather_rows(self, values: Tensor) -> Tensor:
        """The rows of all ranks, one rank after another."""
        if self.world_size == 1:
            return values
        sizes = self._gather(torch.tensor([len(values)])).flatten().tolist()
        padded = values.new_zeros(max(sizes), *values.shape[1:])
        padded[: len(values)] = values
        found = [torch.empty_like(padded) for _ in range(self.world_size)]
        self._call(dist.all_gather, found, padded)
        return torch.cat([part[:size] for part, size in zip(found, sizes, strict=True)])

    @torch.no_grad()
    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors with those of the first rank."""
        if self.world_size == 1:
            return
        for tensor in tensors:
            copy = tensor.detach().clone(memory_format=torch.contiguous_format)
            self._call(dist.broadcast, copy, 0)
            tensor.copy_(copy)

    def tell(self, text: str) -> str:
        """The text of the first rank; those of others are not used."""
        if self.world_size == 1:
            return text
        written = torch.tensor(list(text.encode()), dtype=torch.uint8)
        length = torch.tensor([len(written)])
        self.copy_from_first([length])
        letters = written if self.is_first else torch.zeros(int(length), dtype=torch.uint8)
        self.copy_from_first([letters])
        return bytes(letters.tolist()).decode()

    def check_same(self, what: str, numbers: Sequence[float]) -> None:
        """An error on all ranks if they do not have the same numbers."""
        if self.world_size == 1:
            return
        found = self._gather(torch.tensor(numbers, dtype=torch.float64))
        if bool((found != found[0]).any()):
            raise DataError(
                f"{what} is not the same on all {self.world_size} ranks: all of them must run the same program and "
                "see the same files, for example on a file system that the machines share."
            )

    @contextmanager
    def working(self) -> Iterator[Callable[[], None]]:
        """Long work of each rank by itself: at its end the ranks wait for one another, however long it takes.

        Inside, call the function that this gives every few seconds: it shows the others that this rank is alive. If
        work fails on one rank, the others hear of it and raise :class:`LostRankError`. What fails on several ranks at
        once, such as a file that is not there, is reported by the first of them.
        """
        if self.world_size == 1:
            yield lambda: None
            return
        last = time.monotonic()

        def beat() -> None:
            nonlocal last
            if time.monotonic() - last >= self.pulse_seconds:
                self._pulse(_WORKING)
                last = time.monotonic()

        try:
            yield beat
        except LostRankError:
            raise
        except Exception as error:
            states: list[int] = []
            with suppress(LostRankError):
                states = self._states(_FAILED)
            if _FAILED in states[: self.rank]:
                raise self._stopped_by(states) from error
            raise
        while self._pulse(_DONE):
            pass

    def first_does(self, work: Callable[[Callable[[], None]], str]) -> str:
        """Let the first rank do something long while the others wait; all get the text that it returns.

        ``work`` gets the function that it has to call every few seconds, as in :meth:`working`.
        """
        text = ""
        with self.working() as beat:
            if self.is_first:
                text = work(beat)
        return self.tell(text)

    def first_writes(
        self,
        write: Callable[[Callable[[], None]], tuple[_Written, Path, _Rest]],
        read: Callable[[Path, _Rest], _Written],
        *,
        advice: str,
    ) -> _Written:
        """Let the first rank write rows into a directory, and the others read them from there.

        Args:
            write: Called on the first rank, with the function that it has to call every few seconds, as in
                :meth:`working`. Returns the result, the directory, and anything else for JSON that reading needs.
            read: Called on the other ranks with the directory and the rest; returns their result.
            advice: What to do if a rank does not see the directory.
        """
        own: list[_Written] = []

        def write_and_tell(beat: Callable[[], None]) -> str:
            result, directory, rest = write(beat)
            own.append(result)
            return json.dumps([str(directory.resolve()), rest])

        place, rest = json.loads(self.first_does(write_and_tell))
        with self.working():
            if not own:
                if not Path(place).is_dir():
                    raise DataError(
                        f"Rank {self.rank} does not see {place}, where the first rank has put the rows: {advice}"
                    )
                own.append(read(Path(place), rest))
        return own[0]

    def spool(
        self,
        data: Data,
        directory: str | os.PathLike[str] | None = None,
        *,
        input_dtype: str = "float32",
        chunk_size: int = 4096,
        progress: Progress | None = None,
    ) -> SpooledSource:
        """:func:`finitegp.data.spool`, by the first rank; the others wait and then read the same file.

        Without ``directory`` the file is temporary: it goes when the first rank no longer holds the source.
        """

        def write(beat: Callable[[], None]) -> tuple[SpooledSource, Path, None]:
            def tell_progress(done: int, in_all: int | None) -> None:
                beat()
                if progress is not None:
                    progress(done, in_all)

            options: dict[str, Any] = {
                "input_dtype": input_dtype,
                "chunk_size": chunk_size,
                "progress": tell_progress,
            }
            own = spool_temporarily(data, **options) if directory is None else spool(data, directory, **options)
            return own, own.directory, None

        return self.first_writes(
            write,
            # The first rank has just written it: comparing checksums would be reading all rows once more.
            lambda place, _: open_spool(place, chunk_size=chunk_size, verify=False),
            advice="on several machines, spool them beforehand with finitegp.data.spool into a directory that all "
            "machines see, and pass the spool.",
        )

    def _sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, in place; the same to the bit on all of them."""
        if self.world_size > 1:
            self._call(_all_reduce, tensor)
        return tensor

    def _gather(self, numbers: Tensor) -> Tensor:
        """The numbers of each rank, ``(world_size, ...)``."""
        if self.world_size == 1:
            return numbers[None]
        found = [torch.empty_like(numbers) for _ in range(self.world_size)]
        self._call(dist.all_gather, found, numbers)
        return torch.stack(found)

    def _pulse(self, state: int) -> bool:
        """Tell the others this rank's state, and hear theirs; whether one is still working."""
        states = self._states(state)
        if _FAILED in states:
            raise self._stopped_by(states)
        return _WORKING in states

    def _states(self, state: int) -> list[int]:
        return [int(each) for each in self._gather(torch.tensor([state])).flatten().tolist()]

    def _stopped_by(self, states: Sequence[int]) -> LostRankError:
        failed = states.index(_FAILED)
        return LostRankError(
            f"Rank {self.rank} stops because rank {failed} met an error, which that rank reports.", reported=True
        )

    def _call(self, collective: Callable[..., object], *arguments: object) -> None:
        try:
            collective(*arguments)
        except LostRankError:  # of a signal
            raise
        except RuntimeError as error:
            # The first sentence, without the place in the code of gloo.
            reason = re.sub(r"^\[[^\]]*\]\s*", "", " ".join(str(error).split())).split(". ")[0][:200]
            what = f"Rank {self.rank} of {self.world_size} cannot reach another rank"
            raise lost_rank(what, reason) from error


def _all_reduce(tensor: Tensor) -> None:
    work = dist.all_reduce(tensor, async_op=True)
    if not tensor.is_cuda and hasattr(os, "sched_yield"):
        # A core that has nothing to do for half a millisecond falls asleep, and is slow to wake up and to compute.
        until = time.monotonic() + _WATCHED
        while not work.is_completed() and time.monotonic() < until:
            os.sched_yield()
    work.wait()


#: One process alone.
ALONE = Ranks()


def lost_rank(what: str, reason: str) -> LostRankError:
    """The error of a rank that can no longer work with the others."""
    return LostRankError(
        f"{what} ({reason}): a rank was lost or has stopped with an error of its own.",
        "Start the run again: the last checkpoint is whole, and train(..., resume=path) goes on from it, with this or "
        "another number of ranks.",
        code="lost_rank",
    )
