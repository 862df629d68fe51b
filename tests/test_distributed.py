"""Several ranks: the same sums, gradients and runs as one process, to rounding; what happens when one is lost."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ranks_jobs
import torch
from ranks_jobs import BATCH, ROWS
from safetensors.torch import load_file
from torch import nn

from finitegp import FeatureGP, TrainingRun
from finitegp.algorithms import BSGD, Lagged
from finitegp.algorithms.base import Algorithm
from finitegp.automatic import EFFORTS
from finitegp.callbacks import BiasMeter
from finitegp.data import ScaledSource, Scaling, Share, as_source
from finitegp.data.sampling import Sampler
from finitegp.distributed import ALONE, Ranks
from finitegp.schedules import make_optimizer
from finitegp.statistics import COMPLETE
from finitegp.tables.model import TableRegressor
from finitegp.torchrun import join_ranks
from finitegp.training import train

JOBS = Path(ranks_jobs.__file__)


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def start_ranks(world_size, *arguments):
    """Processes with the environment that torchrun gives, without the seconds that it takes to start."""
    shared = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    return [
        subprocess.Popen(
            [sys.executable, str(JOBS), *map(str, arguments)],
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]


def finish(processes, timeout=300):
    """What the ranks wrote, and their exit codes."""
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    return outputs, [process.returncode for process in processes]


class Results:
    """What several ranks found and said, in a directory of their own."""

    def __init__(self, directory, world_size):
        self.directory, self.world_size = directory, world_size
        ranks_jobs.write_sources(directory)
        outputs, codes = finish(start_ranks(world_size, "all", directory))
        # The last rank ends by itself at the end.
        assert codes == [0] * (world_size - 1) + [9], "\n".join(outputs)
        self.found = [load_file(directory / f"{rank}.safetensors") for rank in range(world_size)]
        self.said = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return Results(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return Results(tmp_path_factory.mktemp("four"), 4)


@pytest.fixture(params=["two", pytest.param("four", marks=pytest.mark.slow)])
def results(request):
    return request.getfixturevalue(request.param)


def check_close(found, expected, tolerance):
    assert expected
    for name, value in expected.items():
        error = float((found[name] - value).abs().max()) / max(1.0, float(value.abs().max()))
        assert error <= tolerance, (name, error)


class TestSameAsOne:
    def test_ranks_are_the_same_to_the_bit(self, results):
        first = results.found[0]
        for other in results.found[1:]:
            assert other.keys() == first.keys()
            for name in first:
                assert torch.equal(first[name], other[name]), name

    def test_gradient_of_every_batch(self, results):
        """Of all batches of two out of six rows, of one, which leaves ranks without rows, of five, and of all."""
        expected = ranks_jobs.gradients(ALONE)
        for name in ranks_jobs.ALGORITHMS:
            assert len({label for label in expected if label.startswith(f"{name} True") and "loss" in label}) == 18
        check_close(results.found[0], expected, 1e-10)

    def test_exact_passes_from_every_source(self, results):
        check_close(results.found[0], ranks_jobs.exact_passes(ALONE, results.directory), 1e-10)

    @pytest.mark.parametrize("name", [*ranks_jobs.ALGORITHMS, "exact"])
    def test_trained_state(self, results, name):
        """26 steps with steps of plain gradient descent, so that rounding is not magnified; NLML and NLPD by epoch."""
        expected = ranks_jobs.training(ALONE, name)
        assert float((expected["measured"][0] - expected["measured"][-1]).abs().max()) > 1e-3  # it does learn
        check_close(results.found[0], {f"{name} {key}": value for key, value in expected.items()}, 1e-9)

    @pytest.mark.parametrize(("kind", "sampling"), [("parquet", "independent"), ("spool", "shuffle")])
    def test_trained_from_disk(self, results, kind, sampling):
        source = ranks_jobs.open_sources(results.directory)[kind]
        expected = ranks_jobs.training(ALONE, "lagged", source=source, sampling=sampling)
        check_close(results.found[0], {f"{kind} {sampling} {key}": value for key, value in expected.items()}, 1e-9)

    def test_first_rank_writes_the_log(self, results):
        lines = (results.directory / "log" / "log.jsonl").read_text().splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == [1, 2]

    def test_resumes_alone_from_the_middle_of_a_block(self, results, tmp_path):
        checkpoint = tmp_path / "checkpoint.safetensors"
        shutil.copy(results.directory / "checkpoint.safetensors", checkpoint)
        # Step 15, in blocks of 4: three whole batches, the first of which was the last of an epoch.
        assert load_file(checkpoint)["pending.sizes"].tolist() == [1, BATCH, BATCH]
        resumed = ranks_jobs.training(ALONE, "lagged", checkpoint=checkpoint)
        check_close(resumed, ranks_jobs.training(ALONE, "lagged"), 1e-9)


class TestLostRanks:
    def test_error_of_one_rank_stops_all(self, results):
        """And afterwards they are still together."""
        last = results.world_size - 1
        for rank, said in enumerate(results.said):
            if rank == last:
                assert said["exact pass"].startswith("FeatureMapError")
                assert "row" in said["exact pass"]
            else:
                assert said["exact pass"].startswith(f"LostRankError: Rank {rank} stops because rank {last} met")
            expected = "LostRankError: " if rank else "ZeroDivisionError"
            assert said["first"].startswith(expected)
            assert "The number is not the same on all" in said["different"]
            assert said["told"] == "grüße"
            assert said["sum"] == sum(range(results.world_size))

    def test_rank_that_vanishes_is_noticed(self, results):
        for said in results.said[:-1]:
            assert "cannot reach another rank" in said["lost"]
            assert "resume=" in said["lost"]
            assert said["seconds"] < 60.0


@pytest.mark.skipif(not ranks_jobs.LINUX, reason="policies of threads are set on Linux only")
def test_threads_of_gloo_do_not_interrupt_the_one_that_computes(results):
    for said in results.said:
        assert said["policies"][0] == os.SCHED_OTHER
        assert os.SCHED_BATCH in said["policies"]


def test_a_shard_is_the_same_rows_with_other_sums():
    """The source that is given stays as it was, and sources around a shard share it."""
    source, ranks = as_source(ranks_jobs.make_data()), Ranks(1, 2)
    shard = ranks.shard(source)
    assert shard.sums is ranks
    assert source.sums is COMPLETE
    assert shard.with_chunks(7).sums is ranks
    assert ScaledSource(shard, Scaling.measure(source)).sums is ranks
    assert sum(len(rows.inputs) for rows in shard) == source.num_data


def test_alone_without_torchrun():
    with join_ranks() as ranks:
        assert (ranks.rank, ranks.world_size, ranks.is_first) == (0, 1, True)
    with pytest.raises(ValueError, match="timeout"), join_ranks(timeout=0.0):
        pass
    with pytest.raises(ValueError, match="rank must lie"):
        Ranks(2, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shares_of_sources_are_all_rows_once(tmp_path, count):
    ranks_jobs.write_sources(tmp_path)
    for name, source in ranks_jobs.open_sources(tmp_path).items():
        source = as_source(source)
        whole = [torch.cat(parts) for parts in zip(*((rows.inputs, rows.targets) for rows in source), strict=True)]
        shares = [[(rows.inputs, rows.targets) for rows in source.part(Share(index, count))] for index in range(count)]
        found = [torch.cat(parts) for parts in zip(*itertools.chain(*shares), strict=True)]
        if name in ("chunks", "stream"):  # whole chunks in turn: compared as sets of rows
            whole, found = ([part[part[:, 0].argsort()] for part in parts] for parts in (whole, found))
        else:
            sizes = [sum(len(inputs) for inputs, _ in share) for share in shares]
            assert max(sizes) - min(sizes) <= 1, name
        for one, other in zip(whole, found, strict=True):
            assert torch.equal(one, other), name


@pytest.mark.parametrize(
    ("kind", "sampling"),
    [(kind, sampling) for kind in ("arrays", "spool") for sampling in ("shuffle", "independent")],
)
def test_shares_of_batches_are_the_batches(tmp_path, kind, sampling):
    ranks_jobs.write_sources(tmp_path)
    source = ranks_jobs.open_sources(tmp_path)[kind]
    options = {"sampling": sampling, "seed": 3, "dtype": torch.float64}
    whole = list(Sampler(source, BATCH, **options).epoch(1, skip=2))
    assert len(whole) == 11
    shares = [Sampler(source, BATCH, **options, share=Share(index, 4)).epoch(1, skip=2) for index in range(4)]
    for batch, *parts in zip(whole, *shares, strict=True):
        for name in ("inputs", "targets", "weights"):
            assert torch.equal(getattr(batch, name), torch.cat([getattr(part, name) for part in parts]))


class TestRefusals:
    """Nothing is sent before these errors: no other process is needed to see them."""

    ranks = Ranks(0, 2)

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda model: BSGD(model, ROWS), "BSGD .* not a mean over the rows"),
            (lambda model: Lagged(model, ROWS, include_current=True), "not a mean over the rows"),
            (lambda model: Unknown(model, ROWS), "Unknown cannot be trained on several ranks"),
        ],
    )
    def test_algorithms(self, make, words):
        algorithm = make(ranks_jobs.make_model())
        with pytest.raises(ValueError, match=words):
            train(algorithm, make_optimizer(algorithm), ranks_jobs.make_data(), epochs=1, ranks=self.ranks)

    def test_batch_norm(self):
        module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        algorithm = Lagged(FeatureGP(module), ROWS, input_dim=3)
        with pytest.raises(ValueError, match="BatchNorm1d"):
            algorithm.share_steps(self.ranks)
        module.eval()
        algorithm.share_steps(self.ranks)

    def test_bias_meter(self):
        algorithm = Lagged(ranks_jobs.make_model(), ROWS)
        sampler = Sampler(ranks_jobs.make_data(), BATCH)
        run = TrainingRun(algorithm, make_optimizer(algorithm), sampler, 1, ranks=self.ranks)
        with pytest.raises(ValueError, match="BiasMeter needs whole batches"):
            BiasMeter().on_start(run)


class Unknown(Algorithm):
    """An algorithm that knows nothing of ranks."""

    def gradient(self, batch):
        raise AssertionError


@pytest.mark.slow
def test_work_may_take_longer_than_the_timeout(tmp_path):
    """One rank works for 2 s, the others for 0.5 s, and a rank that is silent for 1.5 s is taken for lost."""
    outputs, codes = finish(start_ranks(2, "slow", tmp_path))
    assert codes == [0, 0], outputs
    assert json.loads((tmp_path / "0.json").read_text())["sum"] == 2.0


def torchrun(world_size, *arguments):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size)]
    return subprocess.run(
        [*command, str(JOBS), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_killed_rank_ends_the_run_which_resumes_with_other_numbers_of_ranks(tmp_path):
    started = time.monotonic()
    done = torchrun(2, "killed", tmp_path)
    assert done.returncode != 0
    assert time.monotonic() - started < 60.0
    assert "LostRankError" in done.stdout
    assert "goes on from it, with this or another number of ranks" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]  # whole, and no half of one
    assert load_file(tmp_path / "checkpoint.safetensors")["pending.sizes"].tolist() == [1, BATCH, BATCH]
    expected = ranks_jobs.training(ALONE, "lagged")
    for world_size in (2, 3):
        directory = tmp_path / str(world_size)
        directory.mkdir()
        shutil.copy(tmp_path / "checkpoint.safetensors", directory)
        done = torchrun(world_size, "train", directory)
        assert done.returncode == 0, done.stdout
        check_close(load_file(directory / "0.safetensors"), expected, 1e-9)


@pytest.mark.slow
def test_frozen_rank_ends_the_run(tmp_path):
    """A machine that says nothing, without closing its connections: here after five seconds."""
    processes = start_ranks(2, "frozen", tmp_path)
    try:
        output = processes[0].communicate(timeout=120)[0]
    finally:
        processes[1].kill()
        processes[1].communicate()
    assert processes[0].returncode == 1
    assert "LostRankError: Rank 0 of 2 cannot reach another rank" in output
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]
    check_close(
        ranks_jobs.training(ALONE, "lagged", checkpoint=tmp_path / "checkpoint.safetensors"),
        ranks_jobs.training(ALONE, "lagged"),
        1e-9,
    )


@pytest.mark.slow
class TestFitCommand:
    """``torchrun finitegp fit``, but for its long settings."""

    def test_same_model_as_one_process(self, tmp_path, monkeypatch):
        inputs, targets, _ = ranks_jobs.make_data(2000)
        table = pa.table({f"x{column}": inputs[:, column].numpy() for column in range(3)} | {"y": targets.numpy()})
        pq.write_table(table, tmp_path / "rows.parquet", row_group_size=300)
        done = torchrun(2, "fit", tmp_path / "rows.parquet", "--output", tmp_path / "two.finitegp")
        assert done.returncode == 0, done.stdout
        assert "2 processes" in done.stdout
        assert "each of them may use 1GB of memory" in done.stdout
        assert done.stdout.count("Memory budget 1000.0MB") == 1  # one of them speaks
        assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.parquet", "two.finitegp", "two.html"]

        monkeypatch.setitem(EFFORTS, "low", EFFORTS["low"])  # the job changes it
        arguments = tmp_path / "rows.parquet", "--memory", "1GB", "--output", tmp_path / "one.finitegp", "--no-report"
        with pytest.raises(SystemExit) as ended:
            ranks_jobs.run_fit(*map(str, arguments))
        assert ended.value.code == 0
        one, two = (TableRegressor.load(tmp_path / f"{name}.finitegp") for name in ("one", "two"))
        (first,), (second,) = one.regressor_.fits_, two.regressor_.fits_
        rows = [fit.fitted.posterior.statistics.num_data for fit in (first, second)]
        assert rows == [2000, 2000]
        # Adam in float32 magnifies rounding, but in so few steps not far.
        means = [model.regressor_.predict(inputs.numpy()) for model in (one, two)]
        assert np.abs(means[0] - means[1]).max() < 0.02
        assert np.abs(means[0] - targets.numpy()).mean() < 0.6

    def test_few_rows_are_fitted_by_one_process(self, tmp_path):
        inputs, targets, _ = ranks_jobs.make_data(40)
        table = pa.table({f"x{column}": inputs[:, column].numpy() for column in range(3)} | {"y": targets.numpy()})
        pq.write_table(table, tmp_path / "rows.parquet")
        arguments = tmp_path / "rows.parquet", "--output", tmp_path / "model.finitegp", "--json"
        done = torchrun(2, "fit", *arguments)
        assert done.returncode == 0, done.stdout
        assert "So few rows are fitted by one process." in done.stdout
        assert (tmp_path / "model.finitegp").exists()

    def test_error_ends_all(self, tmp_path):
        (tmp_path / "rows.csv").write_text("x,y\n1,2\n2,\n" + "3,4\n" * 2000)
        options = "--output", tmp_path / "model.finitegp", "--refuse-missing-targets"
        done = torchrun(2, "fit", tmp_path / "rows.csv", *options)
        assert done.returncode != 0
        assert "missing in 1 of 2002 rows" in done.stdout
        assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        pytest.param(None, (), "There is no file", marks=pytest.mark.slow),
        ("x,y\n" + "1,2\n" * 2000, ("--memory", "1MB"), "A budget of 1.0MB is too small"),
    ],
)
def test_what_is_wrong_on_all_ranks_is_said_once(tmp_path, content, options, message):
    rows = tmp_path / "rows.csv"
    if content is not None:
        rows.write_text(content.replace("1,2", "3,4", 5))
    outputs, codes = finish(start_ranks(2, "fit", rows, "--output", tmp_path / "model.finitegp", *options))
    assert codes == [1, 1], outputs
    assert outputs[0].count(message) == 1
    assert outputs[1] == ""
