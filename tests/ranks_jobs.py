"""What the tests of several ranks run in each of them: ``python ranks_jobs.py JOB DIRECTORY``.

The process of the tests computes the same alone, with the functions of this file, and compares.
"""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file
from torch import nn

from finitegp import FeatureGP, InputNoise, exact_gradient
from finitegp.algorithms import SCGD, Exact, Lagged, Minimax, PaperMinimax
from finitegp.automatic import EFFORTS
from finitegp.callbacks import Callback, Checkpoint, ExactNLML, JsonLinesLog, Validation
from finitegp.data import ArraySource, NpySource, Rows, ScaledSource, Scaling, StreamSource, open_spool, spool
from finitegp.errors import DataError, FeatureMapError, LostRankError
from finitegp.features import MLPFeatures
from finitegp.tables.source import TableSource
from finitegp.torchrun import join_ranks
from finitegp.training import train

ROWS, BATCH, EPOCHS = 301, 25, 2  # parts of a batch differ, and the last one has one row: other ranks have none
# A fit of two small networks in a second.
QUICK = {
    "members": 2,
    "small_rows": 100,
    "most_rows_for_both": 0,
    "steps": 60,
    "max_steps": 60,
    "hidden": (16, 16),
    "fourier_features": 16,
    "noise_steps": 20,
}
ALGORITHMS = {
    "lagged": (Lagged, {"block": 4, "window": 20}),
    "lagged trained": (Lagged, {"block": 4, "window": 20, "noise_update": "gradient", "weight_update": "both"}),
    "scgd": (SCGD, {}),
    "minimax": (Minimax, {}),
    "minimax_paper": (PaperMinimax, {}),
}

LINUX = sys.platform == "linux"


def make_data(rows=ROWS):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    targets = torch.sin(2 * inputs[:, 0]) + 0.2 * torch.randn(rows, generator=generator, dtype=torch.float64)
    return inputs, targets, 0.5 + torch.rand(rows, generator=generator, dtype=torch.float64)


def make_model(*, noise_variance=0.5, seed=0):
    return FeatureGP(MLPFeatures(3, hidden=(16, 8), seed=seed), noise_variance).double()


def make_noisy_model():
    features = MLPFeatures(3, hidden=(16, 8), seed=0)
    torch.manual_seed(1)
    return FeatureGP(features, noise_model=InputNoise(nn.Linear(8, 1), variance=0.3)).double()


def write_sources(directory):
    """The rows in files of all kinds: several Parquet files with small row groups, CSV, NumPy files, a spool."""
    inputs, targets, weights = (part.numpy() for part in make_data())
    table = pa.table({f"x{column}": inputs[:, column] for column in range(3)} | {"y": targets, "w": weights})
    (directory / "parquet").mkdir()
    for number, (start, stop) in enumerate([(0, 170), (170, 180), (180, ROWS)]):
        pq.write_table(table.slice(start, stop - start), directory / "parquet" / f"{number}.parquet", row_group_size=40)
    pyarrow.csv.write_csv(table, directory / "rows.csv")
    for name, values in (("inputs", inputs), ("targets", targets), ("weights", weights)):
        np.save(directory / f"{name}.npy", values)
    spool((inputs, targets, weights), directory / "spool", input_dtype="float64")


def open_sources(directory):
    """All kinds of sources of the same rows, by name."""
    inputs, targets, weights = make_data()
    files = [directory / f"{name}.npy" for name in ("inputs", "targets", "weights")]
    parquet = TableSource(directory / "parquet", "y", weights="w", chunk_size=32)
    chunks = [(inputs[start : start + 50], targets[start : start + 50]) for start in range(0, ROWS, 50)]
    return {
        "arrays": ArraySource(inputs, targets, weights, chunk_size=64),
        "counts": ArraySource(inputs, targets, counts=weights, chunk_size=64),
        "fewer rows than ranks": (inputs[:1], targets[:1]),
        "chunks": chunks,
        "stream": StreamSource(chunks),
        "numpy files": NpySource(*files, chunk_size=64),
        "spool": open_spool(directory / "spool", chunk_size=64),
        "parquet": parquet,
        "scaled": ScaledSource(parquet, Scaling.measure(parquet)),
        "csv": TableSource(directory / "rows.csv", "y", weights="w", chunk_size=32),
    }


def cut(batch, ranks):
    own = ranks.share.cut(len(batch.inputs))
    return Rows(*(None if part is None else part[own] for part in batch))


def gradients(ranks):
    """The gradient of every algorithm for all 15 batches of two out of six rows, one, five and all rows."""
    inputs, targets, weights = make_data(6)
    found = {}
    for (name, (kind, options)), weighted in itertools.product(ALGORITHMS.items(), (False, True)):
        # With weights and noise that depends on the input, and in micro-batches; and without.
        rows = Rows(inputs, targets[:, None], weights if weighted else None)
        algorithm = kind(make_noisy_model() if weighted else make_model(), 6, **options)
        algorithm.micro_batch_size = 1 if weighted else None
        algorithm.share_steps(ranks)
        algorithm.initialize([cut(rows, ranks)])
        for batch in [(0,), *itertools.combinations(range(6), 2), range(5), range(6)]:
            algorithm.zero_grad()
            result = algorithm.shared_gradient(cut(Rows(*(None if p is None else p[list(batch)] for p in rows)), ranks))
            label = f"{name} {weighted} {tuple(batch)}"
            found[f"{label} loss"] = result.loss
            for parameter, tensor in algorithm.named_parameters():
                if tensor.grad is not None:
                    found[f"{label} {parameter}"] = tensor.grad.clone()
    return found


def exact_passes(ranks, directory):
    """Statistics, NLML (from one pass and from two), best noise, posterior and exact gradient, of every source."""
    found = {}
    for name, source in open_sources(directory).items():
        model = make_model()
        found[f"{name} statistics"] = model.statistics(ranks.shard(source)).flatten()
        small_noise = make_model(noise_variance=1e-9).likelihood(ranks.shard(source))
        found[f"{name} nlml"] = torch.tensor([model.nlml(ranks.shard(source)), small_noise.nlml], dtype=torch.float64)
        fitted = make_noisy_model().condition(ranks.shard(source), optimize_noise=True)
        found[f"{name} weights"] = fitted.posterior.weight_mean
        found[f"{name} noise"] = torch.tensor(fitted.model.noise_variance, dtype=torch.float64)
        noisy = make_noisy_model()
        exact_gradient(noisy, ranks.shard(source))
        found |= {f"{name} gradient {label}": p.grad for label, p in noisy.named_parameters() if p.grad is not None}
    return found


class Descent:
    """Plain gradient descent: torch's optimizers take two seconds to load, in each of the processes.

    Adam divides by the size of gradients: where they are rounding errors, it makes steps of them.
    """

    def __init__(self, parameters, rate):
        self.param_groups = [{"params": parameters, "lr": rate}]

    def zero_grad(self):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=group["lr"])

    def state_dict(self):
        return {"state": {}, "param_groups": [{"lr": self.param_groups[0]["lr"]}]}

    def load_state_dict(self, state):
        self.param_groups[0]["lr"] = state["param_groups"][0]["lr"]


def training(ranks, name, *, directory=None, checkpoint=None, epochs=EPOCHS, source=None, seed=0, **options):
    """The state after training; initial parameters of all ranks but the first are to be overwritten."""
    inputs, targets, weights = make_data()
    data = source if source is not None else (inputs, targets, weights)
    model = make_model(seed=seed)
    if name == "exact":
        algorithm = Exact(model, data)
    else:
        kind, settings = ALGORITHMS[name]
        algorithm = kind(model, ROWS, **settings)
    optimizer = Descent([p for group in algorithm.parameter_groups() for p in group["params"]], 0.02)
    callbacks = [ExactNLML(), Validation((inputs[:50], targets[:50])), *options.pop("callbacks", [])]
    if checkpoint is not None:
        callbacks.append(Checkpoint(checkpoint, every_steps=5))
    if directory is not None:
        callbacks.append(JsonLinesLog(directory / "log.jsonl"))
    run = train(
        algorithm,
        optimizer,
        data,
        epochs=epochs,
        batch_size=BATCH,
        initial_batches=3,
        callbacks=callbacks,
        restore_best=False,
        resume=checkpoint,
        ranks=ranks,
        **options,
    )
    measured = [[row["nlml"], row["validation_nlpd"], row["loss"], row["noise_variance"]] for row in run.history]
    state = {key: value.clone() for key, value in algorithm.state_dict().items() if value.is_floating_point()}
    return state | {"measured": torch.tensor(measured, dtype=torch.float64)}


class StopAt(Callback):
    """Sends one rank a signal; or ends the run on all of them, as Ctrl-C does."""

    def __init__(self, step, sent=None):
        self.step, self.sent = step, sent

    def on_step(self, run):
        if run.step == self.step:
            if self.sent is None:
                raise KeyboardInterrupt
            if run.ranks.rank == 1:
                os.kill(os.getpid(), self.sent)


def trainings(ranks, directory):
    """Trained states: every algorithm in memory, one of them from disk in two ways, and one that is interrupted."""
    found = {}
    for name in [*ALGORITHMS, "exact"]:
        log = directory / "log" if name == "lagged" else None
        state = training(ranks, name, directory=log, seed=ranks.rank)
        found |= {f"{name} {key}": value for key, value in state.items()}
    sources = open_sources(directory)
    for kind, sampling in (("parquet", "independent"), ("spool", "shuffle")):
        state = training(ranks, "lagged", source=sources[kind], sampling=sampling)
        found |= {f"{kind} {sampling} {key}": value for key, value in state.items()}
    with_stop = {"checkpoint": directory / "checkpoint.safetensors", "callbacks": [StopAt(17)]}
    try:
        training(ranks, "lagged", **with_stop)  # step 15 is in the middle of a block
    except KeyboardInterrupt:
        return found
    raise AssertionError("The run should have been interrupted.")


class Broken(nn.Module):
    """Features that are not finite for the last rows, which are those of the last rank."""

    def forward(self, inputs):
        return torch.where(inputs > 99.0, torch.nan, inputs)


def failures(ranks):
    """What each rank says when the work of one rank fails, in an exact pass and in training."""
    said = {}
    data = torch.arange(101.0)[:, None], torch.arange(101.0)
    try:
        FeatureGP(Broken(), 0.1).nlml(ranks.shard(data))
    except (FeatureMapError, LostRankError) as error:
        said["exact pass"] = f"{type(error).__name__}: {error}"
    try:
        ranks.first_does(lambda beat: str(1 / 0))
    except (ZeroDivisionError, LostRankError) as error:
        said["first"] = f"{type(error).__name__}: {error}"
    try:
        ranks.check_same("The number", [ranks.rank])
    except DataError as error:
        said["different"] = str(error)
    said["told"] = ranks.first_does(lambda beat: "grüße") if ranks.is_first else ranks.first_does(None)
    # All of them are still together.
    said["sum"] = ranks.add_number(float(ranks.rank))
    return said


def slow_ranks(ranks):
    """Long work that takes the ranks different times, longer than the time-out of a message."""
    with ranks.working() as beat:
        for _ in range(4 if ranks.rank else 1):
            time.sleep(0.5)
            beat()
    return ranks.add_number(1.0)


def run_fit(*arguments):
    """The command, which finds the other ranks by itself."""
    from finitegp.cli import app

    EFFORTS["low"] = EFFORTS["low"].with_changes(QUICK)
    app(["fit", "--target", "y", "--effort", "low", *arguments])


def main(job, directory, *arguments):
    if job == "fit":
        run_fit(directory, *arguments)
    directory = Path(directory)
    torch.set_num_threads(1)
    timeout = {"slow": 1.5, "frozen": 5.0}.get(job, 60.0)
    with join_ranks(timeout=timeout) as ranks:
        if job == "all":
            found = gradients(ranks) | exact_passes(ranks, directory) | trainings(ranks, directory)
            said = failures(ranks)
        elif job == "slow":
            found, said = {}, {"sum": slow_ranks(ranks)}
        else:
            sent = {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}.get(job)
            callbacks = [] if sent is None else [StopAt(17, sent)]
            checkpoint = directory / "checkpoint.safetensors"
            found, said = training(ranks, "lagged", checkpoint=checkpoint, callbacks=callbacks), {}
        tensors = {name: tensor.contiguous() for name, tensor in found.items()}
        save_file(tensors, directory / f"{ranks.rank}.safetensors")
        if LINUX:
            # In the order of the threads' numbers: the main thread is the first.
            threads = sorted(map(int, os.listdir("/proc/self/task")))
            said["policies"] = [os.sched_getscheduler(thread) for thread in threads]
        (directory / f"{ranks.rank}.json").write_text(json.dumps(said))
        if job == "all":
            # Last: the last rank goes without a word, and the others have to notice.
            if ranks.rank == ranks.world_size - 1:
                os._exit(9)
            started = time.monotonic()
            try:
                for _ in range(1000):
                    ranks.add_number(1.0)
            except LostRankError as error:
                said |= {"lost": str(error), "seconds": time.monotonic() - started}
            (directory / f"{ranks.rank}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
