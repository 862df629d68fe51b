"""The store of results: appends of several processes, lines that are cut off, and claims."""

import json
import math
import multiprocessing
import time

import pytest

from finitegp import DataError
from paper import worker
from paper.cells import Cell
from paper.runner import ELSEWHERE
from paper.store import CELLS, ResultStore

CELL = Cell("yacht", 0, "bsgd", "linear", 32, 2, 0, {"optimizer": "adam", "learning_rate": 0.001})
needs_fork = pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that are forked"
)


def fork(function, *arguments):
    process = multiprocessing.get_context("fork").Process(target=function, args=arguments)
    process.start()
    return process


def append_many(directory, split, count):
    store = ResultStore(directory)
    for seed in range(count):
        # Long lines, so that one that is not written at once would show.
        store.append(Cell("yacht", split, "bsgd", seed=seed).to_row() | {"padding": "x" * 5000})


@needs_fork
def test_appends_of_two_processes_at_once_are_whole(tmp_path):
    processes = [fork(append_many, tmp_path, split, 200) for split in range(2)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    lines = (tmp_path / CELLS).read_text().splitlines()
    assert len(lines) == 400
    assert {(row["split"], row["seed"]) for row in map(json.loads, lines)} == {
        (a, b) for a in (0, 1) for b in range(200)
    }
    assert len(ResultStore(tmp_path).finished()) == 400


def test_partial_last_line_is_passed_over_and_cut_off_by_the_next_append(tmp_path):
    store = ResultStore(tmp_path)
    first, second = ({**CELL.to_row(), "seed": seed} for seed in (1, 2))
    store.append(first)
    with store.path.open("a") as file:
        file.write('{"dataset": "yacht", "spl')
    assert store.rows() == [first]
    store.append(second)
    assert store.rows() == [first, second]
    assert store.path.read_text().count("\n") == 2


def test_whole_last_line_without_its_end_is_kept(tmp_path):
    store = ResultStore(tmp_path)
    first, second = ({**CELL.to_row(), "seed": seed} for seed in (1, 2))
    store.path.write_text(json.dumps(first))  # stopped before the last byte
    assert store.rows() == [first]
    store.append(second)
    assert store.rows() == [first, second]


def test_broken_line_in_the_middle_is_an_error_that_names_it(tmp_path):
    store = ResultStore(tmp_path)
    store.append(CELL.to_row())
    with store.path.open("a") as file:
        file.write('{"half\n')
    store.append({**CELL.to_row(), "seed": 1})
    with pytest.raises(DataError, match=r"cells\.jsonl line 2 is not JSON"):
        store.rows()


def test_empty_store(tmp_path):
    store = ResultStore(tmp_path / "nothing")
    assert store.rows() == []
    assert store.finished() == set()
    assert not (tmp_path / "nothing").exists()


def test_figures_that_are_not_finite_are_stored_as_null(tmp_path, monkeypatch):
    row = {"rmse": math.nan, "nlpd": 1.0, "coverage": {"0.9": math.inf}, "list": [1.0, -math.inf], "steps": 3}
    monkeypatch.setattr(worker, "run_cell", lambda cell, *, data_directory: (cell.to_row() | row, None))
    assert worker.work(CELL, results=tmp_path, data_directory=None)
    (found,) = ResultStore(tmp_path).rows()
    expected = {"rmse": None, "nlpd": 1.0, "coverage": {"0.9": None}, "list": [1.0, None], "steps": 3}
    assert {name: found[name] for name in row} == expected


def test_finished_cell_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "run_cell", lambda cell, *, data_directory: (cell.to_row(), None))
    assert worker.work(CELL, results=tmp_path, data_directory=None)
    assert not worker.work(CELL, results=tmp_path, data_directory=None)
    assert len(ResultStore(tmp_path).rows()) == 1


def hold(directory, claimed):
    with ResultStore(directory).claim(CELL) as ours:
        assert ours
        claimed.set()
        time.sleep(60)


@needs_fork
def test_claimed_cell_is_not_run_by_another_and_a_killed_holder_releases_it(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "run_cell", lambda cell, *, data_directory: (cell.to_row(), None))
    claimed = multiprocessing.get_context("fork").Event()
    holder = fork(hold, tmp_path, claimed)
    try:
        assert claimed.wait(30)
        arguments = [json.dumps(CELL.to_row()), str(tmp_path), str(tmp_path)]
        assert worker.main(arguments) == ELSEWHERE
        with ResultStore(tmp_path).claim(Cell("yacht", 1, "bsgd")) as ours:
            assert ours  # claims of other cells are free
    finally:
        holder.kill()
        holder.join()
    assert worker.main(arguments) == 0
    assert len(ResultStore(tmp_path).rows()) == 1
