"""Commands that are killed, that find the disk full, and that write at the same time."""

from __future__ import annotations

import importlib.util
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .fixtures import Fixtures, fit_some, scratch, train_some, training_rows
from .outcomes import Case, Command, HangError, WrongError, check_command, command

_OLD = b"what was there before\n" * 50
_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_LIMITS = (0, 100, 1_000, 5_000, 15_000)
_PATIENCE = 60.0
HAS_ONNX = importlib.util.find_spec("onnx") is not None


def commands(fixtures: Fixtures) -> dict[str, tuple[list[str], str]]:
    """Every command that writes, with ``--force``, and the file that it writes."""
    table, new, model, sums = (str(path) for path in (fixtures.table, fixtures.new, fixtures.model, fixtures.sums))
    statistics = str(fixtures.statistics)
    fit = ["fit", table, "-t", "y", "--effort", "low", "--target-scale", "identity", "-o", "out.finitegp"]
    return {
        "fit": (fit, "out.finitegp"),
        "fit --memory": ([*fit, "--memory", "100MB", "--no-report"], "out.finitegp"),
        "update": (["update", model, new, "-o", "out.finitegp"], "out.finitegp"),
        "merge": (["merge", sums, statistics, "-o", "out.finitegp"], "out.finitegp"),
        "statistics": (["statistics", sums, new, "-o", "out.statistics"], "out.statistics"),
        "report": (["report", model, new, "-o", "out.html"], "out.html"),
        "predict": (["predict", model, new, "-o", "out.csv"], "out.csv"),
        "predict to Parquet": (["predict", model, new, "-o", "out.parquet"], "out.parquet"),
        "predict to gzip": (["predict", model, new, "-o", "out.csv.gz"], "out.csv.gz"),
        "export to C": (["export", str(fixtures.numbers), "--double", "--c", "out.h"], "out.h"),
        **({"export to ONNX": (["export", str(fixtures.numbers), "-o", "out.onnx"], "out.onnx")} if HAS_ONNX else {}),
    }


def is_whole(path: Path) -> bool:
    """Whether an output is complete."""
    import gzip

    import pyarrow.parquet as pq

    from finitegp import SiteStatistics, TableRegressor
    from finitegp.errors import DataError

    try:
        if path.suffix == ".finitegp":
            TableRegressor.load(path)
        elif path.suffix == ".statistics":
            SiteStatistics.load(path)
        elif path.suffix == ".parquet":
            return bool(pq.read_table(path).num_rows == 12)
        elif path.suffix == ".onnx":
            import onnx

            try:
                onnx.checker.check_model(str(path))
            except (onnx.checker.ValidationError, ValueError):  # what protobuf raises is a ValueError
                return False
        elif path.suffix == ".h":
            return path.read_text().endswith("\n#endif\n")
        elif path.suffix == ".html":
            return path.read_text().rstrip().endswith("</html>")
        else:
            data = path.read_bytes()
            return (gzip.decompress(data) if path.suffix == ".gz" else data).count(b"\n") == 13
    except (DataError, OSError, EOFError):
        return False
    return True


def _fresh(name: str) -> Path:
    folder = scratch() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def kill_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """Kills at random moments: afterwards the old file is there, or the new one, whole; nothing else stays."""
    given = commands(fixtures)
    for number in range(count):
        name = list(given)[number % len(given)]
        yield Case(f"kill {name} {number}", partial(_kill, *given[name], f"{seed}-{number}"))


def _kill(arguments: list[str], output: str, key: str) -> None:
    chance = random.Random(key)
    number = chance.choice(_SIGNALS)
    folder, temporary = _fresh("kill"), _fresh("temporary")
    (folder / output).write_bytes(_OLD)

    def before() -> None:
        import tempfile

        tempfile.tempdir = str(temporary)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the background of a shell ignores it
    running = Command([*arguments, "--force"], folder, before)
    at_write = chance.random() < 0.5  # while the new file is being written, which takes a few milliseconds
    delay = chance.random() * (3.0 if arguments[0] == "fit" else 0.3)
    started = time.monotonic()
    found = running.poll()
    while found is None and time.monotonic() - started < _PATIENCE:
        if at_write and any(each.name.endswith(".part") for each in folder.iterdir()):
            break
        if not at_write and time.monotonic() - started >= delay:
            break
        time.sleep(0.0003)
        found = running.poll()
    if found is None:
        os.kill(running.pid, number)
        found = _ended(running)
    left = [each.name for each in (*folder.iterdir(), *temporary.iterdir()) if each.name.endswith(".part")]
    data = (folder / output).read_bytes() if (folder / output).exists() else b""
    if data != _OLD and not is_whole(folder / output):
        raise WrongError(f"{output} is half written or lost after {number.name}")
    if number != signal.SIGKILL and left:
        raise WrongError(f"{left[0]} stays after {number.name}")
    # What Python prints when it is interrupted before a command begins is not ours.
    if "Traceback" in found.errors and "finitegp/commands" in found.errors:
        raise RuntimeError(f"a traceback after {number.name}: {' '.join(found.errors.split())[-300:]}")


def _ended(running: Command) -> object:
    started = time.monotonic()
    while (found := running.poll()) is None:
        if time.monotonic() - started > _PATIENCE:
            os.kill(running.pid, signal.SIGKILL)
            running.wait()
            raise HangError("it did not end after a signal")
        time.sleep(0.002)
    return found


def start_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """Kills of whole programs, mostly while they import; and of one of two ranks of torchrun."""
    for number in range(count):
        yield Case(f"kill at the start {number}", partial(_kill_start, fixtures, f"{seed}-start-{number}", ranks=False))
    if count >= 5:
        yield Case("kill a rank", partial(_kill_start, fixtures, f"{seed}-rank", ranks=True))


def _kill_start(fixtures: Fixtures, key: str, *, ranks: bool) -> None:
    chance = random.Random(key)
    folder = _fresh("start")
    (folder / "out.finitegp").write_bytes(_OLD)
    many = fixtures.table
    if ranks:  # fewer rows are fitted by one process
        from .fixtures import write_table

        many = write_table(folder / "many.csv", 2500, 0)
    arguments = ["finitegp", "fit", str(many), "-t", "y", "--effort", "low", "-o", "out.finitegp", "--force"]
    program = [sys.executable, "-m", *(["torch.distributed.run", "--nproc-per-node=2", "-m"] if ranks else [])]
    running = subprocess.Popen(
        [*program, *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # What is started in the background of a shell ignores interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    time.sleep(chance.uniform(8.0, 12.0) if ranks else chance.uniform(0.0, 5.0))
    number = signal.SIGKILL if ranks else chance.choice(_SIGNALS)
    victim = _last_child(running.pid) if ranks else running.pid
    if running.poll() is None:
        os.kill(victim, number)
    try:
        _, errors = running.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        raise HangError(f"it did not end after {number.name}") from None
    if (folder / "out.finitegp").read_bytes() != _OLD and not is_whole(folder / "out.finitegp"):
        raise WrongError(f"the model is half written after {number.name}")
    # What Python itself prints when it is interrupted while it imports is not ours to change.
    if number == signal.SIGTERM and b"Traceback" in errors:
        raise RuntimeError(errors.decode(errors="replace")[-300:])


def _last_child(pid: int) -> int:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    children = [int(word) for word in found.stdout.split()]
    return children[-1] if children else pid


def resume_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """Runs that are killed and resumed from their checkpoint end as if nothing had happened, to the bit."""
    expected = train_some(fixtures.folder / "unbroken.checkpoint", epochs=6)

    def attempt(key: str) -> None:
        chance = random.Random(key)
        checkpoint = _fresh("resume") / "run.checkpoint"
        pid = os.fork()
        if pid == 0:
            try:
                train_some(checkpoint, epochs=6)
            finally:
                os._exit(0)
        time.sleep(chance.random() * 0.1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        if not bool((train_some(checkpoint, epochs=6, resume=True) == expected).all()):
            raise WrongError("the resumed run is another one")

    for number in range(count):
        yield Case(f"kill and resume {number}", partial(attempt, f"{seed}-resume-{number}"))


def resumed_fit_cases(fixtures: Fixtures, count: int, seed: int) -> Iterator[Case]:
    """Automatic fits that are killed up to four times and resumed end as if nothing had happened, to the bit."""
    folder = fixtures.folder / "unbroken"
    folder.mkdir()
    table = commands(fixtures)["fit"][0]
    started = time.monotonic()
    if command(*table, folder=folder).code != 0:
        raise RuntimeError("the fit failed")
    of_table = time.monotonic() - started, _predicted(folder / "out.finitegp", fixtures.new)
    started = time.monotonic()
    networks = fit_some()
    of_networks = time.monotonic() - started, networks

    def run_command(place: Path) -> int:
        return Command([*table, "--resume"], place).pid

    def run_python(place: Path) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                np.save(place / "found.npy", fit_some(place / "run.checkpoint").numpy())
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    for number in range(count):
        key = f"{seed}-fit-{number}"
        if number % 2:
            found = lambda place: _predicted(place / "out.finitegp", fixtures.new)  # noqa: E731
            yield Case(f"kill and resume finitegp fit {number}", partial(_resumed, key, run_command, found, *of_table))
        else:
            found = lambda place: np.load(place / "found.npy")  # noqa: E731
            yield Case(f"kill and resume a fit {number}", partial(_resumed, key, run_python, found, *of_networks))


def _resumed(
    key: str, start: Callable[[Path], int], result: Callable[[Path], Any], seconds: float, expected: Any
) -> None:
    chance = random.Random(key)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place = _fresh("resumed")
    for _ in range(chance.randrange(1, 5)):
        pid = start(place)
        time.sleep(chance.random() * seconds)
        os.kill(pid, chance.choice(_SIGNALS))
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0:
            break
    else:
        # Killed after the model was written, it is complete, and the next command leaves it as it is.
        if os.waitpid(start(place), 0)[1] != 0 and not (place / "out.finitegp").exists():
            raise WrongError("the resumed fit failed")
    if not np.array_equal(result(place), expected):
        raise WrongError("the resumed fit is another one")
    left = [each.name for each in place.iterdir() if each.name.endswith(".checkpoint")]
    if left:
        raise WrongError(f"{left[0]} stays")


def _predicted(model: Path, rows: Path) -> Any:
    from finitegp import TableRegressor

    return TableRegressor.load(model).predict(rows)


def full_disk_cases(fixtures: Fixtures, limits: int) -> Iterator[Case]:
    """No room for more than this many bytes in a file: a clear error that names it, and the old file stays."""

    def attempt(arguments: list[str], output: str, limit: int) -> None:
        folder = _fresh("full")
        (folder / output).write_bytes(_OLD)
        found = command(*arguments, "--force", folder=folder, before=lambda: _limit_files(limit))
        data = (folder / output).read_bytes()
        if data != _OLD and not (found.code == 0 and is_whole(folder / output)):
            raise WrongError(f"{output} is lost or half written")
        if any(each.name.endswith(".part") for each in folder.iterdir()):
            raise WrongError("an unfinished file stays")
        if found.code == 1 and "out." not in found.errors and "rows cannot be written" not in found.errors:
            raise RuntimeError(f"the error does not name the file: {found.errors[-200:]}")
        check_command(found)

    for name, (arguments, output) in commands(fixtures).items():
        for limit in _LIMITS[:limits]:
            yield Case(f"disk full, {name}, {limit} bytes", partial(attempt, arguments, output, limit))
    for limit in _LIMITS[:limits]:
        yield Case(f"disk full, checkpoint, {limit} bytes", partial(_full_in_python, _write_checkpoint, limit))
        yield Case(f"disk full, spool, {limit} bytes", partial(_full_in_python, _write_spool, limit))


def _limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then it is an error like that of a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _full_in_python(write: Callable[[Path], None], limit: int) -> None:
    folder = _fresh("full")
    _limit_files(limit)
    try:
        write(folder)
    except OSError as error:
        from finitegp.errors import DataError

        if error.filename is None:
            raise
        raise DataError(str(error)) from None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _write_checkpoint(folder: Path) -> None:
    train_some(folder / "run.checkpoint", epochs=1)


def _write_spool(folder: Path) -> None:
    from finitegp import spool

    spool(training_rows(), folder / "spool")


def writer_cases(fixtures: Fixtures, count: int) -> Iterator[Case]:
    """Several at once: one winner without ``--force``, whole files with it, whole spools."""

    def winners() -> None:
        folder = _fresh("writers")
        arguments = ["update", str(fixtures.model), str(fixtures.new), "-o", "out.finitegp"]
        codes = sorted(each.wait().code for each in [Command(arguments, folder) for _ in range(4)])
        if codes != [0, 1, 1, 1] or not is_whole(folder / "out.finitegp"):
            raise WrongError(f"exit codes {codes}")

    def readers() -> None:
        folder = _fresh("readers")
        shutil.copy(fixtures.model, folder / "out.finitegp")
        writing = ["update", str(fixtures.model), str(fixtures.new), "-o", "out.finitegp", "--force"]
        running = [Command(writing, folder), Command(writing, folder)]
        running += [Command(["info", "out.finitegp"], folder) for _ in range(3)]
        found = [each.wait() for each in running]
        if any(each.code for each in found):
            raise WrongError(next(each.errors for each in found if each.code)[-200:])

    def spools() -> None:
        from finitegp import open_spool, spool

        folder = _fresh("spools")
        pids = []
        for _ in range(3):
            pid = os.fork()
            if pid == 0:
                try:
                    spool(training_rows(), folder, overwrite=True)
                    os._exit(0)
                finally:
                    os._exit(1)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        if any(codes) or open_spool(folder).num_data != 20:
            raise WrongError(f"exit codes {codes}")

    for number in range(count):
        for attempt in (winners, readers, spools):
            yield Case(f"{attempt.__name__} at once {number}", attempt)
