"""Compiled steps against those of the library."""

import copy
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from finitegp.algorithms import BSGD, SCGD, PaperMinimax
from finitegp.callbacks import ExactNLML
from finitegp.data.sampling import Sampler
from finitegp.features import ComposedFeatures, FourierFeatures, MLPFeatures
from finitegp.model import FeatureGP
from finitegp.training import train
from paper.protocol import PaperAdadelta
from paper.svgp import SVGP

pytestmark = [
    pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed: pip install numba"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),  # GPyTorch uses it
]
KINDS = [("linear", SCGD), ("linear", BSGD), ("linear", PaperMinimax), ("linear", SVGP), ("gaussian", SCGD),
         ("gaussian", BSGD)]  # fmt: skip


@pytest.fixture
def fused(steps_in_python):
    return import_module("paper.fused")


def _rows():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(150, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.sin(2 * inputs[:, 0]) + inputs[:, 1] + 0.1 * torch.randn(150, generator=generator).double()


def _start(kind, *, kernel="linear", dtype=torch.float64, noise=0.1):
    feature_map = MLPFeatures(3, hidden=(24, 40), seed=0)
    if kernel == "gaussian":
        feature_map = ComposedFeatures(feature_map, FourierFeatures(40, 600, ard=False, length_scales=2.0, seed=0))
    model = FeatureGP(feature_map, noise_variance=noise).to(dtype)
    options = (
        {"inducing_inputs": _rows()[0][:20], "kernel": "rbf" if kernel == "rbf" else "linear"}
        if issubclass(kind, SVGP)
        else {}
    )
    algorithm = kind(model, 150, **options)
    return algorithm, PaperAdadelta(algorithm, 0.3)


def _compiled_kind(fused, kind, kernel):
    return fused.RememberingSCGD if kernel == "gaussian" and kind is SCGD else kind


@pytest.mark.parametrize(("kernel", "kind"), KINDS)
@pytest.mark.parametrize("batch_size", [32, 48])
def test_a_compiled_step_is_that_of_the_library(fused, kernel, kind, batch_size):
    plain, optimizer = _start(kind, kernel=kernel)
    compiled, other = _start(_compiled_kind(fused, kind, kernel), kernel=kernel)
    initial = copy.deepcopy(plain.state_dict())
    sampler = Sampler(_rows(), batch_size, dtype=torch.float64)
    for algorithm in (plain, compiled):
        algorithm.initialize(list(sampler.epoch(0, stream=-1, stop=3)))
    steps = fused.PaperSteps(compiled, other)
    steps.forgotten = 1e-13
    for epoch in range(3):  # the last batch of each is smaller
        streams = [sampler.epoch(epoch, stream=stream) for stream in range(plain.batches_per_step)]
        for batches in zip(*streams, strict=True):
            # From the same state each time: Minimax makes 1e-8 of a difference of 1e-15 in three steps.
            compiled.load_state_dict(plain.state_dict())
            other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            losses = plain.step(batches, optimizer), steps.step(batches)
            assert losses[1] == pytest.approx(losses[0], rel=1e-10)
            found = compiled.state_dict()
            for name, value in plain.state_dict().items():
                if name not in ("steps", "tracked_gram" if kernel == "gaussian" else ""):
                    torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-10)
    for name, value in plain.named_parameters():
        assert not value.requires_grad or not torch.allclose(value, initial[name]), f"{name} stayed"
    if kind is PaperMinimax:
        assert compiled.projections == plain.projections > 1  # initialize made one


@pytest.mark.slow  # everything is compiled once more for float32
@pytest.mark.parametrize(("kernel", "kind"), KINDS)
def test_a_run_in_single_precision_is_the_same_to_its_rounding(fused, kernel, kind):
    histories = []
    for each, compiled in ((kind, False), (_compiled_kind(fused, kind, kernel), fused.PaperSteps)):
        algorithm, optimizer = _start(each, kernel=kernel, dtype=torch.float32)
        run = train(algorithm, optimizer, _rows(), epochs=2, batch_size=32, callbacks=[ExactNLML()], compiled=compiled)
        histories.append([row["nlml"] for row in run.history])
    assert histories[1] == pytest.approx(histories[0], abs=1e-4)
    assert abs(histories[0][0] - histories[0][1]) > 1e-3


def test_a_matrix_that_cannot_be_factorised_is_left_to_the_library(fused, monkeypatch):
    monkeypatch.setattr(fused, "svgp_step", lambda *arguments: (False, 0.0))
    (plain, optimizer), (compiled, other) = _start(SVGP), _start(SVGP)
    steps = fused.PaperSteps(compiled, other)
    for batch in Sampler(_rows(), 32, dtype=torch.float64).epoch(0):
        plain.step([batch], optimizer)
        steps.step([batch])
    for value, found in zip(plain.parameters(), compiled.parameters(), strict=True):
        assert torch.equal(value, found)


@pytest.mark.parametrize(
    ("kind", "kernel", "reason"),
    [(PaperMinimax, "gaussian", "Fourier"), (SVGP, "rbf", "kernel"), (SCGD, "sgd", "PaperAd")],
)
def test_what_is_not_compiled_is_refused_with_the_reason(fused, kind, kernel, reason):
    algorithm, optimizer = _start(kind, kernel=kernel)
    if kernel == "sgd":
        optimizer = torch.optim.SGD(algorithm.parameters(), lr=0.1)
    with pytest.raises(ValueError, match=f"no compiled steps, as .*{reason}"):
        fused.PaperSteps(algorithm, optimizer)


def test_numbers_that_are_not_finite_end_a_run_of_minimax(fused):
    algorithm, optimizer = _start(PaperMinimax)
    algorithm.gram_estimate.data[0, 0] = float("nan")
    batch = next(Sampler(_rows(), 32, dtype=torch.float64).epoch(0))
    assert np.isnan(fused.PaperSteps(algorithm, optimizer).step([batch, batch]))


def test_a_window_of_rows_keeps_the_newest_when_it_is_resized(fused):
    recent = import_module("finitegp.algorithms.scgd").RecentBatches(5, 0.1, torch.device("cpu"))
    batches = [torch.randn(2, 5, generator=torch.Generator().manual_seed(seed)).double() for seed in range(7)]
    recent.take_up(batches[0], 1.0)
    recent.take_up(batches[1], 1.0)
    window = fused._Window(recent, 2)
    for places, batch in zip((3, 3, 4, 4, 2), batches[2:], strict=True):
        window.resize(places)
        first = window.free(2)
        window.rows[first : first + 2], window.weights[first : first + 2] = batch.numpy(), 1.0
        window.products = window.rows @ window.rows.T
    expected = sum(batch.T @ batch for batch in batches[5:]).numpy()
    np.testing.assert_allclose((window.rows.T * window.weights) @ window.rows, expected, rtol=1e-12)
    window.resize(5)
    np.testing.assert_allclose((window.rows.T * window.weights) @ window.rows, expected, rtol=1e-12)
    np.testing.assert_allclose(window.products, window.rows @ window.rows.T, rtol=1e-12)
