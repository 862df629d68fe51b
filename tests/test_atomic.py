"""Files that are written whole or not at all, whoever else writes, and whatever signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest

from finitegp import DataError
from finitegp.atomic import complete_or_absent
from finitegp.errors import ModelFileError
from finitegp.persistence import load_fit


def test_links_keep_pointing_at_the_file(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with complete_or_absent(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="is a device or pipe"):
        load_fit(tmp_path / "pipe")


def test_places_where_no_file_can_be(tmp_path):
    with pytest.raises(DataError, match=r"is a directory"), complete_or_absent(tmp_path):
        pass
    with pytest.raises(DataError, match=r"There is no directory .*create it"), complete_or_absent(tmp_path / "a" / "b"):
        pass


def test_without_permission_the_first_of_two_writers_keeps_the_place(tmp_path):
    path = tmp_path / "file"

    def race():
        with complete_or_absent(path, overwrite=False) as slow:
            slow.write_text("second")
            with complete_or_absent(path, overwrite=False) as quick:
                quick.write_text("first")

    with pytest.raises(FileExistsError, match=r"file exists already: .*set overwrite=True"):
        race()
    assert path.read_text() == "first"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    with complete_or_absent(path) as temporary:
        temporary.write_text("third")
    assert path.read_text() == "third"


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_exactly_one_of_many_writers_at_once_succeeds(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError("no links here")))
    path, barrier, outcomes = tmp_path / "file", threading.Barrier(8), []

    def write(number):
        try:
            with complete_or_absent(path, overwrite=False) as temporary:
                temporary.write_text(str(number))
                barrier.wait()
            outcomes.append(number)
        except FileExistsError:
            pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 1
    assert path.read_text() == str(outcomes[0])
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


@contextmanager
def started(program, path, **options):
    """The process of a program that has said that it is ready; at the end there is none, also where a check failed."""
    with subprocess.Popen([sys.executable, "-c", program, str(path)], **options) as process:
        try:
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_temporary_file_and_ends_the_process(tmp_path, sent):
    (tmp_path / "mine.part").write_text("of somebody else")
    program = (
        "import signal, sys, time\n"
        "from finitegp.atomic import complete_or_absent\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # shells let programs in the background ignore it
        "with complete_or_absent(sys.argv[1]) as one, complete_or_absent(sys.argv[1] + '2') as other:\n"
        "    one.write_text('half')\n"
        "    print('ready', flush=True)\n"
        "    while True:\n"
        "        time.sleep(0.01)\n"  # a signal just before a long sleep would wait for its end
    )
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with started(program, tmp_path / "file", **options) as process:
        assert len(list(tmp_path.iterdir())) == 3
        process.send_signal(sent)
        assert process.wait(timeout=60) == -sent
    assert [file.name for file in tmp_path.iterdir()] == ["mine.part"]


def test_a_signal_between_two_files_is_no_traceback(tmp_path):
    program = (
        "import os, sys\n"
        "from finitegp.atomic import complete_or_absent\n"
        "os.fsync = lambda _: None\n"  # nearly all of the time would be there, and nothing happens there
        "print('ready', flush=True)\n"
        "while True:\n"
        "    with complete_or_absent(sys.argv[1]):\n"
        "        pass\n"
    )
    for trial in range(30):
        with started(program, tmp_path / "file", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            time.sleep(0.0005 * trial)
            process.terminate()
            assert process.communicate(timeout=60) == (b"", b"")
        assert process.returncode == -signal.SIGTERM
        assert [file.name for file in tmp_path.iterdir() if file.name != "file"] == []


def test_a_signal_while_a_handler_is_replaced_is_not_lost(tmp_path):
    program = (
        "import signal, sys\n"
        "from finitegp.atomic import complete_or_absent\n"
        "set_handler = signal.signal\n"
        "def signalled(number, handler):\n"
        "    # The signal has come, but Python has not yet called the old handler: as _signal.signal is in C.\n"
        "    import ctypes\n"
        "    ctypes.pythonapi.PyErr_SetInterruptEx(number)\n"
        "    return set_handler(number, handler)\n"
        "with complete_or_absent(sys.argv[1]):\n"
        "    signal.signal = signalled\n"
        "signal.signal = set_handler\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "print('goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, b"", b"")


def test_a_child_that_is_ended_deletes_no_file_of_its_parent(tmp_path):
    with complete_or_absent(tmp_path / "file") as temporary:
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(tell, b"1")
            while True:
                time.sleep(0.01)
        os.read(ready, 1)  # Python drops signals that come in the middle of a fork
        os.kill(child, signal.SIGTERM)
        assert os.waitpid(child, 0)[1] == signal.SIGTERM
        assert temporary.exists()


def test_handlers_of_somebody_else_stay(tmp_path):
    def mine(*_):
        pass

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with complete_or_absent(tmp_path / "file"):
            assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)
