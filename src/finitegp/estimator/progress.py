"""Progress of a fit for the user: how much is done, the last part and its score, how long the rest may take."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

# Of what remains of a stage: what a counted series takes, and what a part takes of which nobody knows how many follow.
_SERIES_SHARE, _PART_SHARE = 0.8, 0.15
# Lines instead of a bar come no more often.
_SECONDS_BETWEEN_LINES = 2.0
# What parts that know it say of rows that were left out.
_SCORE = re.compile(r", left-out R2 \S+$")


class Stages:
    """How much of a piece of work is done, from reports of its parts; it never falls.

    Args:
        shares: Names of stages in order, and about what part of the time each takes.
        show: Called with the share that is done, and the part that was done last, with the latest score of left-out
            rows.

    Example:
        >>> stages = Stages({"fit": 3.0, "report": 1.0}, lambda done, part: print(f"{done:.2f} {part}"))
        >>> stages.begin("fit"); stages.tell("network 1 of 2, left-out R2 0.8"); stages.tell("noise")
        0.00 fit
        0.30 fit: network 1 of 2, left-out R2 0.8
        0.37 fit: noise, left-out R2 0.8
    """

    def __init__(self, shares: Mapping[str, float], show: Callable[[float, str], None]) -> None:
        total = sum(shares.values())
        self._shares = {name: share / total for name, share in shares.items()}
        self._show = show
        self._name, self._start, self._inside = next(iter(shares)), 0.0, 0.0
        self._series: tuple[int, int, float] = (0, 0, 0.0)
        self._score = ""

    def begin(self, name: str) -> None:
        """The next stage; those before it are done."""
        names = list(self._shares)
        self._name, self._start = name, sum(self._shares[each] for each in names[: names.index(name)])
        self._inside, self._series, self._score = 0.0, (0, 0, 0.0), ""
        self._show(self._start, name)

    def tell(self, part: str) -> None:
        """A part of this stage is done; ``3 of 6`` in its name is the number of them."""
        counted = re.search(r"(\d+) of (\d+)", part)
        if counted:
            number, total = int(counted[1]), int(counted[2])
            last, last_total, before = self._series
            if total != last_total or number < last:
                before = self._inside
            self._series = (number, total, before)
            self._inside = before + (1.0 - before) * _SERIES_SHARE * min(1.0, number / max(total, 1))
        else:
            self._inside += (1.0 - self._inside) * _PART_SHARE
        if scored := _SCORE.search(part):
            part, self._score = part[: scored.start()], scored[0]
        self._show(self._start + self._inside * self._shares[self._name], f"{self._name}: {part}{self._score}")


# The stages that are shown at the moment, to which a fit inside reports what it has done.
_SHOWN: ContextVar[Stages | None] = ContextVar("shown stages", default=None)


@contextmanager
def show_stages(label: str, shares: Mapping[str, float], *, shown: bool) -> Iterator[Stages]:
    """A bar on standard error over several stages; in notebooks, lines, which need no widgets."""
    if not shown:
        yield Stages(shares, lambda done, part: None)
        return
    console = Console(stderr=True)
    with _lines(label) if console.is_jupyter else _bar(label, console) as show:
        stages = Stages(shares, show)
        token = _SHOWN.set(stages)
        try:
            yield stages
        finally:
            _SHOWN.reset(token)
        show(1.0, "done")


@contextmanager
def stage_progress(label: str, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """A function to call with each finished part of one fit: of the stages that are shown, or of a bar of its own."""
    outer = _SHOWN.get()
    if outer is not None:
        yield outer.tell
        return
    with show_stages(label, {label: 1.0}, shown=shown) as stages:
        yield stages.tell


@contextmanager
def _bar(label: str, console: Console) -> Iterator[Callable[[float, str], None]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),  # what follows has to fit into 80 characters
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}{task.fields[part]}"),
    )
    started = time.monotonic()
    if not console.is_terminal:  # where earlier releases of rich print an empty line, also of a bar that is disabled
        yield lambda done, part: None
        return
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=1.0, part="", left="")

        def show(done: float, part: str) -> None:
            progress.update(task, completed=done, part=part, left=time_left(time.monotonic() - started, done))

        yield show


@contextmanager
def _lines(label: str) -> Iterator[Callable[[float, str], None]]:
    started = last = time.monotonic()

    def show(done: float, part: str) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= 1.0 or now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            print(f"{label} {100 * done:.0f} % {time_left(now - started, done)}{part}", file=sys.stderr, flush=True)

    yield show


def tell_expected(seconds: float) -> None:
    """Print how long a fit is expected to take."""
    print(f"This takes about {max(seconds, 1.0):.0f} s.", file=sys.stderr)


def time_left(elapsed: float, done: float) -> str:
    """About how long the rest takes, if the share that is done is large enough to know.

    Example:
        >>> time_left(30.0, 0.25), time_left(1.0, 0.01), time_left(300.0, 0.5)
        ('about 90 s left, ', '', 'about 5 min left, ')
    """
    if not 0.1 <= done < 1.0:
        return ""
    seconds = elapsed * (1.0 - done) / done
    return f"about {seconds:.0f} s left, " if seconds < 120.0 else f"about {seconds / 60.0:.0f} min left, "
