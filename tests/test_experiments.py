"""The harness of the experiments: datasets, cells, the store of results, and runs that are killed and started again."""

import gzip
import http.client
import io
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from finitegp import DataError
from finitegp.cli import app
from finitegp.experiments import datasets, runner, worker
from finitegp.experiments.cells import OUR_METHODS, PAPER_METHODS, Cell, full_grid, make_grid
from finitegp.experiments.datasets import PAPER_DATASETS, load_split
from finitegp.experiments.runner import ELSEWHERE, run_grid
from finitegp.experiments.store import CELLS, ResultStore

# Datasets.


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and no connection."""
    monkeypatch.setenv("FINITEGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "_fetch", fail_with(urllib.error.URLError("no route")))
    return tmp_path / "cache"


def fail_with(error):
    def fetch(address):
        raise error

    return fetch


@pytest.fixture
def yacht(uci_dir):
    return pq.read_table(uci_dir / "yacht.parquet")


def upstream_files(table):
    """The two files of a dataset as they are published, by name."""
    columns = [f"x{index}" for index in range(6)] + ["y"]
    values = np.column_stack([table[column].to_numpy() for column in columns])
    masks = np.column_stack([table[f"test{index}"].to_numpy(zero_copy_only=False) for index in range(10)])
    found = {}
    for name, array, style in (("data.csv.gz", values, "%.17g"), ("test_mask.csv.gz", masks, "%d")):
        text = io.StringIO()
        np.savetxt(text, array, delimiter=",", fmt=style)
        found[name] = gzip.compress(text.getvalue().encode())
    return found


def change(table, column, values):
    return table.set_column(table.column_names.index(column), column, pa.array(values))


def equal(one, other):
    names = ("inputs", "targets", "test_inputs", "test_targets")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


def test_split_of_a_parquet_file(uci_dir, yacht):
    split = load_split("yacht", 3, uci_dir)
    test = yacht["test3"].to_numpy(zero_copy_only=False)
    assert split.inputs.shape == ((~test).sum(), 6)
    assert np.array_equal(split.test_targets, yacht["y"].to_numpy()[test])
    assert np.array_equal(split.inputs[:, 5], yacht["x5"].to_numpy()[~test])


def test_upstream_layout_gives_the_same_split(uci_dir, yacht, tmp_path, cache):
    folder = tmp_path / "data" / "yacht"
    folder.mkdir(parents=True)
    for name, contents in upstream_files(yacht).items():
        (folder / name).write_bytes(contents)
    assert equal(load_split("yacht", 0, tmp_path / "data"), load_split("yacht", 0, uci_dir))
    (folder / "test_mask.csv.gz").unlink()
    with pytest.raises(DataError, match="no test_mask"):
        load_split("yacht", 0, tmp_path / "data")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: change(t, "x2", [t["x2"][0].as_py() + 1e-9, *t["x2"].to_pylist()[1:]]), "values of yacht"),
        (lambda t: change(t, "y", t["y"].to_pylist()[::-1]), "values of yacht"),
        (lambda t: change(t, "test4", [not value for value in t["test4"].to_pylist()]), "split masks of yacht"),
        (lambda t: t.slice(1), "yacht must have 308 rows, 6 inputs"),
        (lambda t: t.drop_columns(["x5"]), "yacht must have 308 rows, 6 inputs"),
        (lambda t: t.drop_columns(["y"]), "yacht.parquet cannot be read"),
    ],
    ids=["value", "target", "mask", "row", "column", "no target"],
)
def test_damaged_contents_are_refused_by_name(yacht, tmp_path, cache, damage, message):
    pq.write_table(damage(yacht), tmp_path / "yacht.parquet")
    with pytest.raises(DataError, match=message):
        load_split("yacht", 0, tmp_path)


def test_file_that_is_not_parquet_is_refused_by_name(tmp_path, cache):
    (tmp_path / "yacht.parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match=r"yacht\.parquet cannot be read"):
        load_split("yacht", 0, tmp_path)


def test_unknown_dataset_and_split(tmp_path):
    with pytest.raises(DataError, match="'moon' is not known; known are autompg"):
        load_split("moon", 0, tmp_path)
    with pytest.raises(DataError, match="between 0 and 9, but is 10"):
        load_split("yacht", 10, tmp_path)


def test_without_connection_the_message_says_where_to_place_files(tmp_path, cache):
    with pytest.raises(DataError) as found:
        load_split("yacht", 0, tmp_path)
    message = str(found.value)
    assert "no route" in message
    assert f"place yacht.parquet in {tmp_path}" in message
    assert "data.csv.gz and test_mask.csv.gz" in message
    assert str(cache / "yacht") in message
    assert "https://github.com/treforevans/uci_datasets" in message


@pytest.mark.parametrize(
    "interruption",
    [ConnectionResetError("reset"), http.client.IncompleteRead(b"half"), KeyboardInterrupt()],
    ids=["reset", "incomplete", "Ctrl-C"],
)
def test_interrupted_download_leaves_no_final_file_and_can_be_repeated(
    uci_dir, yacht, tmp_path, cache, monkeypatch, interruption
):
    files = upstream_files(yacht)

    def fetch(address, *, broken=True):
        name = address.rsplit("/", 1)[1]
        if broken and name == "data.csv.gz":
            raise interruption
        return files[name]

    monkeypatch.setattr(datasets, "_fetch", fetch)
    with pytest.raises(KeyboardInterrupt if isinstance(interruption, KeyboardInterrupt) else DataError):
        load_split("yacht", 0, tmp_path)
    assert [path.name for path in (cache / "yacht").iterdir()] == ["test_mask.csv.gz"]
    monkeypatch.setattr(datasets, "_fetch", lambda address: fetch(address, broken=False))
    assert equal(load_split("yacht", 0, tmp_path), load_split("yacht", 0, uci_dir))
    monkeypatch.setattr(datasets, "_fetch", fail_with(AssertionError("the cache was not used")))
    load_split("yacht", 1, tmp_path)


def test_stop_while_writing_leaves_nothing_half(yacht, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(datasets, "_fetch", lambda address: upstream_files(yacht)[address.rsplit("/", 1)[1]])
    with monkeypatch.context() as patch:
        patch.setattr(datasets.os, "replace", fail_on_replace)
        with pytest.raises(KeyboardInterrupt):
            load_split("yacht", 0, tmp_path)
    assert list((cache / "yacht").iterdir()) == []


def fail_on_replace(source, target):
    raise KeyboardInterrupt


def test_wrong_file_of_slice_is_refused(tmp_path, cache):
    (tmp_path / "slice").mkdir()
    (tmp_path / "slice" / "data.csv.gz").write_bytes(gzip.compress(b"1,2,3\n"))
    with pytest.raises(DataError, match="not the published file of slice"):
        load_split("slice", 0, tmp_path)


# Cells and grids.


def test_key_survives_the_round_trip_through_json():
    for cell in full_grid(datasets=["bike"], splits=[0]) + make_grid(methods=["mlp"], datasets=["pol"]):
        again = Cell.from_row(json.loads(json.dumps(cell.to_row())))
        assert (again.key, again.digest, hash(again)) == (cell.key, cell.digest, hash(cell))


def test_key_does_not_depend_on_the_order_of_settings_but_on_everything_else():
    cell = Cell("bike", 0, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 2})
    assert cell.key == Cell("bike", 0, "scgd", "linear", 32, 100, 0, {"b": 2, "a": 1}).key
    others = [
        Cell("pol", 0, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 1, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "bsgd", "linear", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "gaussian", 32, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 64, 100, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 32, 10, 0, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 32, 100, 1, {"a": 1, "b": 2}),
        Cell("bike", 0, "scgd", "linear", 32, 100, 0, {"a": 1, "b": 3}),
    ]
    assert len({other.key for other in [cell, *others]}) == len({other.digest for other in [cell, *others]}) == 9


def test_full_grid_is_the_papers_protocol():
    cells = full_grid()
    per_place = 4 * 3 + 2 * 2  # the paper's methods with three learning rates, ours with two settings
    assert len(cells) == len({cell.key for cell in cells}) == 9 * 5 * 6 * per_place
    assert {cell.dataset for cell in cells} == set(PAPER_DATASETS)
    assert {cell.split for cell in cells} == set(range(5))
    assert {cell.epochs for cell in cells} == {100}
    assert {cell.method for cell in cells} == {*PAPER_METHODS, *OUR_METHODS}
    sizes = {kernel: {cell.batch_size for cell in cells if cell.kernel == kernel} for kernel in ("linear", "gaussian")}
    assert sizes == {"linear": {32, 64, 128}, "gaussian": {16, 32, 64}}


def test_full_grid_with_one_kernel_or_peers_has_no_cell_twice():
    linear = full_grid(kernels=["linear"])
    assert len(linear) == 9 * 5 * 3 * 16
    assert {cell.batch_size for cell in linear} == {32, 64, 128}
    assert len(full_grid(methods=["mlp"])) == 9 * 5
    assert {cell.batch_size for cell in full_grid(batch_sizes=[256])} == {256}


def test_make_grid_counts():
    common = {"datasets": ["bike", "pol"], "splits": [0, 1, 2]}
    assert len(make_grid(methods=["scgd"], **common)) == 2 * 3 * 3
    assert len(make_grid(methods=["scgd", "scgd"], **common)) == 2 * 3 * 3
    assert len(make_grid(methods=["lagged"], learning_rates=[1e-3], **common)) == 2 * 3 * 2
    assert len(make_grid(methods=["mlp", "scgd"], batch_sizes=[32, 64], learning_rates=[1.0], **common)) == 2 * 3 * 3
    (cell,) = make_grid(methods=["scgd"], datasets=["bike"], learning_rates=[1.0], settings={"block": 5}, epochs=7)
    assert (cell.epochs, dict(cell.settings)) == (7, {"optimizer": "adadelta", "learning_rate": 1.0, "block": 5})


# The store.


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
    monkeypatch.setattr(worker, "run_cell", lambda cell, *, data_directory: cell.to_row() | row)
    assert worker.work(CELL, results=tmp_path, data_directory=None)
    (found,) = ResultStore(tmp_path).rows()
    expected = {"rmse": None, "nlpd": 1.0, "coverage": {"0.9": None}, "list": [1.0, None], "steps": 3}
    assert {name: found[name] for name in row} == expected


def test_finished_cell_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "run_cell", lambda cell, *, data_directory: cell.to_row())
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
    monkeypatch.setattr(worker, "run_cell", lambda cell, *, data_directory: cell.to_row())
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


# The runner, with workers that do nothing.


def fake_worker(monkeypatch, script):
    def start(cell, results, data_directory):
        errors = tempfile.TemporaryFile()  # noqa: SIM115
        arguments = [sys.executable, "-S", "-c", script, json.dumps(cell.to_row()), str(results / CELLS)]
        return runner._Job(cell, subprocess.Popen(arguments, stdout=errors, stderr=errors), errors, time.perf_counter())

    monkeypatch.setattr(runner, "_start", start)


def run_quietly(cells, results, **options):
    output = io.StringIO()
    console = Console(file=output, width=200)
    return run_grid(cells, results=results, data_directory=results, console=console, **options), output.getvalue()


APPEND = "import sys; open(sys.argv[2], 'a').write(sys.argv[1] + '\\n')"
GRID = make_grid(methods=["bsgd"], datasets=["yacht"], splits=range(3), learning_rates=[0.1], epochs=1)


def test_report_counts_what_was_there_and_what_ran(tmp_path, monkeypatch):
    fake_worker(monkeypatch, APPEND)
    ResultStore(tmp_path).append(GRID[1].to_row())
    report, _ = run_quietly(GRID, tmp_path, processes=2)
    assert (report.finished, report.ran, report.elsewhere, report.failed) == (3, 2, [], {})
    again, _ = run_quietly(GRID, tmp_path)
    assert (again.finished, again.ran) == (3, 0)


def test_failed_cells_are_reported_with_what_they_said_and_not_stored(tmp_path, monkeypatch):
    fake_worker(monkeypatch, "import sys; sys.exit('install finitegp[peers]')")
    report, output = run_quietly(GRID[:1], tmp_path)
    assert report.failed == {GRID[0]: "install finitegp[peers]"}
    assert "install finitegp[peers]" in output  # brackets are not markup
    assert ResultStore(tmp_path).rows() == []


def test_cells_of_another_process_are_counted_finished_once_they_are(tmp_path, monkeypatch):
    script = f"""
import json, sys
if json.loads(sys.argv[1])["split"] == 2:
    open(sys.argv[2], "a").write(sys.argv[1] + chr(10))
sys.exit({ELSEWHERE})
"""
    fake_worker(monkeypatch, script)
    tmp_path.joinpath(CELLS).touch()
    report, _ = run_quietly(GRID, tmp_path)
    assert (report.finished, report.ran, report.elsewhere) == (1, 0, GRID[:2])


def test_an_exception_stops_the_workers(tmp_path, monkeypatch):
    fake_worker(monkeypatch, "import time; time.sleep(60)")
    started = []
    original = runner._start

    def start(cell, results, data_directory):
        if started:
            raise KeyboardInterrupt
        started.append(original(cell, results, data_directory))
        return started[0]

    monkeypatch.setattr(runner, "_start", start)
    with pytest.raises(KeyboardInterrupt):
        run_quietly(GRID, tmp_path, processes=2)
    assert started[0].process.poll() == -signal.SIGTERM


# The command, with real workers.


def options(uci_dir, results, *further):
    common = ["--smoke", "--kernel", "linear", "--processes", "2"]
    return [*common, "--data-dir", str(uci_dir), "--results", str(results), *further]


def start_command(arguments):
    command = [sys.executable, "-m", "finitegp.experiments", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_command(arguments):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def wait_until(condition, seconds=180):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
    return found


def count_lines(directory):
    path = directory / CELLS
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_smoke_run_of_the_command(uci_dir, tmp_path):
    arguments = options(uci_dir, tmp_path, "--method", "lagged-input-noise")
    run_command(arguments)
    rows = ResultStore(tmp_path).rows()
    assert Counter(row["settings"]["weight_update"] for row in rows) == {"train": 1, "solve": 1}
    for row in rows:
        assert (row["dataset"], row["rows"], row["epochs"], row["threads"]) == ("yacht", 278, 2, 1)
        for name in ("rmse", "nlpd", "crps", "nlml", "nlml_float64", "seconds"):
            assert math.isfinite(row[name]), name
        assert row["nlml_optimal_noise"] <= row["nlml_float64"] + 1e-9
        assert 0.0 <= row["coverage"]["0.9"] <= 1.0
    assert run_command([*arguments, "--dry-run"]).count("finished") == 2


def find_worker(parent, word):
    """The process that runs the cell with this word in its description, among the children of a command."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        if word in Path(f"/proc/{child}/cmdline").read_text():
            return int(child)
    return None


# Each worker is a new process that loads PyTorch: together some tens of seconds on two busy cores.
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the workers of a killed run in /proc")
def test_killed_run_is_taken_up_without_loss_or_repetition(uci_dir, tmp_path):
    arguments = options(uci_dir, tmp_path, "--method", "bsgd", "-r", "0.125", "-r", "0.25", "-r", "0.5")
    (held,) = make_grid(methods=["bsgd"], datasets=["yacht"], kernels=["linear"], learning_rates=[0.25], epochs=2)
    first = start_command(arguments)
    orphan = None
    try:
        wait_until(lambda: (tmp_path / ".claims" / f"{held.digest}.lock").exists())
        orphan = find_worker(first.pid, '"learning_rate": 0.25')
        os.kill(orphan, signal.SIGSTOP)  # so that it certainly is at its cell when the next run comes
        wait_until(lambda: count_lines(tmp_path) == 1)
        first.kill()
        first.wait()
        before = (tmp_path / CELLS).read_text()
        output = run_command(arguments)
        assert "1 cells are being run by another process" in output
        assert Cell.from_row(json.loads(before)).settings["learning_rate"] == 0.125
    finally:
        first.kill()
        if orphan is not None:
            os.kill(orphan, signal.SIGCONT)
    wait_until(lambda: count_lines(tmp_path) == 3)
    assert (tmp_path / CELLS).read_text().startswith(before)
    assert len({Cell.from_row(row).key for row in ResultStore(tmp_path).rows()}) == 3


@pytest.mark.slow
def test_two_runs_at_once_run_every_cell_once(uci_dir, tmp_path):
    arguments = options(uci_dir, tmp_path, "--method", "bsgd", "-r", "0.125", "-r", "0.25", "-r", "0.5")
    other = start_command(arguments)
    run_command(arguments)
    assert other.wait(180) == 0
    rows = ResultStore(tmp_path).rows()
    assert len(rows) == 3
    assert len({Cell.from_row(row).key for row in rows}) == 3


def test_command_refuses_what_it_does_not_know(tmp_path):
    invoke = CliRunner().invoke
    for arguments, word in (
        (["--method", "magic"], "magic"),
        (["--dataset", "moon"], "moon"),
        (["--kernel", "cubic"], "cubic"),
        (["--smoke", "--set", "nothing"], "NAME=VALUE"),
        (["--data-dir", str(tmp_path)], "--dataset"),
    ):
        result = invoke(app, ["reproduce", *arguments, "--results", str(tmp_path)])
        assert result.exit_code == 2, result.output
        assert word in result.output
