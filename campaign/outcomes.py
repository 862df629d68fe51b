"""Outcomes of cases, and running cases apart from this process, so that none can take the campaign down."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import finitegp

#: In the order of the table; the last three must be zero.
OUTCOMES = ("refused", "harmless", "raw error", "hang or crash", "silently wrong")
REFUSED, HARMLESS, RAW, HANG, WRONG = OUTCOMES
_PACKAGE = str(Path(finitegp.__file__).parent)


class Case(NamedTuple):
    """One thing to try: it is harmless if it comes to its end, and otherwise what its error stands for."""

    label: str
    attempt: Callable[[], object]
    #: Names of what is odd: an error that names one of them is a refusal, whoever raised it.
    named: tuple[str, ...] = ()


class WrongError(Exception):
    """A result that is wrong, without an error."""


class HangError(Exception):
    """Something that does not come to its end."""


class _TooLongError(BaseException):
    pass


@dataclass
class Tally:
    """Outcomes of one part of the campaign.

    Attributes:
        name: Of the part.
        counts: Cases by outcome.
        bad: Label and what happened, of cases that must not be.
        seconds: It took.
    """

    name: str
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[str, str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, label: str, outcome: str, what: str = "") -> None:
        """Count one case."""
        self.counts[outcome] += 1
        if outcome in OUTCOMES[2:]:
            self.bad.append((outcome, label, what))


def judged(case: Case) -> tuple[str, str]:
    """The outcome of a case in this process, and a line about it."""
    from finitegp.errors import FiniteGPError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.attempt()
    except FiniteGPError:
        return REFUSED, ""
    except WrongError as error:
        return WRONG, str(error)
    except HangError as error:
        return HANG, str(error)
    except SystemExit as error:
        return (REFUSED, "") if error.code in (1, 2) else (HARMLESS, "") if not error.code else (RAW, str(error.code))
    except Exception as error:
        if _is_refusal(error, case.named):
            return REFUSED, ""
        last = traceback.extract_tb(error.__traceback__)[-1]
        return RAW, f"{type(error).__name__}: {str(error)[:160]} ({Path(last.filename).name}:{last.lineno})"
    return HARMLESS, ""


def _is_refusal(error: Exception, named: Sequence[str]) -> bool:
    """Whether an error helps a user to mend it: one that names the argument, or one that this library raises."""
    text = str(error)
    if isinstance(error, TypeError) and ("argument" in text or "abstract" in text):
        return True  # Python's own message names the argument or the number of them
    if any(name in text for name in named):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    if any(Path(frame.filename).parts[-3:] == ("sklearn", "utils", "validation.py") for frame in frames):
        return True  # the words that scikit-learn's own estimators use
    ours = frames and frames[-1].filename.startswith(_PACKAGE)
    # A statement of ours that raises on purpose, not one that happens to fail.
    return bool(ours and (frames[-1].line or "").lstrip().startswith(("raise", ")")) and text)


def run_cases(name: str, cases: Iterable[Case], *, seconds: float = 30.0, processes: int = 2) -> Tally:
    """Judge cases in processes of their own; one that takes longer or takes its process down is a hang or crash."""
    started, tally = time.monotonic(), Tally(name)
    everything = list(cases)
    waiting = [list(range(number, len(everything), processes)) for number in range(processes)]
    running: dict[int, _Worker] = {}
    for numbers in waiting:
        if numbers:
            worker = _Worker(everything, numbers, seconds)
            running[worker.reading] = worker
    while running:
        ready, _, _ = select.select(list(running), [], [], 1.0)
        for descriptor in list(running):
            worker = running[descriptor]
            if descriptor in ready and worker.take(tally, everything):
                continue
            late = time.monotonic() - worker.last > seconds + 10.0  # what does not even obey the alarm
            if descriptor in ready or late:
                del running[descriptor]
                left = worker.end(tally, everything, late)
                if left:
                    again = _Worker(everything, left, seconds)
                    running[again.reading] = again
    tally.seconds = time.monotonic() - started
    return tally


class _Worker:
    """A child that judges some of the cases and writes one line for each."""

    def __init__(self, cases: Sequence[Case], numbers: list[int], seconds: float) -> None:
        self.reading, writing = os.pipe()
        self.left = list(numbers)
        self.last = time.monotonic()
        self.buffer = b""
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            return
        try:
            _be_quiet()
            for number in numbers:
                outcome = judged_in_time(cases[number], seconds)
                os.write(writing, json.dumps([number, *outcome]).encode() + b"\n")
        finally:
            os._exit(0)

    def take(self, tally: Tally, cases: Sequence[Case]) -> bool:
        """Read what the child wrote; False at its end."""
        found = os.read(self.reading, 1 << 16)
        self.buffer += found
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            number, outcome, what = json.loads(line)
            tally.add(cases[number].label, outcome, what)
            self.left.remove(number)
            self.last = time.monotonic()
        return bool(found)

    def end(self, tally: Tally, cases: Sequence[Case], late: bool) -> list[int]:
        """Wait for the child; the case that it died of is counted, and the others are returned."""
        if late:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self.reading)
        if self.left:
            tally.add(cases[self.left[0]].label, HANG, "no answer" if late else f"ended with status {status}")
        return self.left[1:]


def judged_in_time(case: Case, seconds: float) -> tuple[str, str]:
    """The outcome of a case that an alarm stops."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLongError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return judged(case)
    except _TooLongError:
        return HANG, f"no answer in {seconds:g} seconds"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class Finished(NamedTuple):
    """How a command ended: its exit code, or minus the signal; what it printed."""

    code: int
    output: str
    errors: str


class Command:
    """A command line in a forked child, which has the imports done already.

    Args:
        arguments: After ``finitegp``.
        folder: The working directory.
        before: Called in the child first.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, before: Callable[[], object] | None = None) -> None:
        # Pipes, which no limit on the size of files concerns; what commands print fits into them.
        pipes = [os.pipe(), os.pipe()]
        self._printed = [reading for reading, _ in pipes]
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid:
            for _, writing in pipes:
                os.close(writing)
            return
        code = 70
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            for (_, writing), descriptor in zip(pipes, (1, 2), strict=True):
                os.dup2(writing, descriptor)
            sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
            os.chdir(folder)
            if before is not None:
                before()
            code = _exit_code(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def poll(self) -> Finished | None:
        """How it ended, or None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return self._finished(status) if pid else None

    def wait(self) -> Finished:
        """How it ended; if this is interrupted, so is the command."""
        try:
            return self._finished(os.waitpid(self.pid, 0)[1])
        except BaseException:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            raise

    def _finished(self, status: int) -> Finished:
        texts = []
        for reading in self._printed:
            # Not to the end: a grandchild may have the other end open still.
            os.set_blocking(reading, False)
            with contextlib.suppress(BlockingIOError):
                texts.append(os.read(reading, 1 << 16).decode(errors="replace"))
            os.close(reading)
        return Finished(os.waitstatus_to_exitcode(status), *[*texts, "", ""][:2])


def _exit_code(arguments: Sequence[str]) -> int:
    from finitegp.__main__ import main

    try:
        main(list(arguments))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 0


def command(*arguments: Any, folder: Path, before: Callable[[], object] | None = None) -> Finished:
    """Run one command to its end."""
    return Command([str(each) for each in arguments], folder, before).wait()


def check_command(found: Finished) -> None:
    """Nothing for success; a refusal in one line is a DataError; anything else is raw."""
    from finitegp.errors import DataError

    if "Traceback" in found.errors or found.code not in (0, 1, 2):
        raise RuntimeError(f"exit code {found.code}: {' '.join(found.errors.split())[-300:]}")
    if found.code:
        raise DataError(found.errors)


def _be_quiet() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
