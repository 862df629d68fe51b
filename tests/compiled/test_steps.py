"""Compiled steps against those of the library, as Python runs the loops; the slow tests compile them."""

import copy
import sys
from importlib import import_module

import numpy as np
import pytest
import torch
from torch import nn

from finitegp.algorithms import BSGD, SCGD, Lagged, Minimax
from finitegp.callbacks import Callback, Checkpoint, ExactNLML
from finitegp.data import Rows
from finitegp.data.sampling import Sampler
from finitegp.features import ComposedFeatures, FourierFeatures, MLPFeatures
from finitegp.model import FeatureGP
from finitegp.noise import InputNoise
from finitegp.schedules import cosine_decay, make_optimizer
from finitegp.training import train

pytest.importorskip("numba")
pytestmark = pytest.mark.usefixtures("steps_in_python")

ALGORITHMS = {
    "Lagged": lambda model: Lagged(model, 150, block=2, window=6),
    "Lagged, trained": lambda model: Lagged(
        model, 150, block=3, window=6, weight_update="both", noise_update="gradient", minimum_noise_variance=0.1
    ),
    "SCGD": lambda model: SCGD(model, 150),
    "SCGD, theory": lambda model: SCGD(model, 150, tracking_rate="theory"),
    "Minimax": lambda model: Minimax(model, 150, penalty=1.5, box=0.3, penalty_growth=1.1, penalty_steps=2),
    "BSGD": lambda model: BSGD(model, 150),
}
OPTIMIZERS = {
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.1, fused=True),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=3e-3, weight_decay=0.1, betas=(0.8, 0.9), eps=1e-6),
    "Adadelta": lambda groups: torch.optim.Adadelta(groups, lr=0.3, rho=0.8, weight_decay=0.1),
}


def _rows():
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(150, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.sin(2 * inputs[:, 0]) + inputs[:, 1] + 0.1 * torch.randn(150, generator=generator).double()


def _model(*, fourier=False, dtype=torch.float64, **options):
    feature_map = MLPFeatures(3, hidden=(8, 20), seed=0)
    if fourier:
        feature_map = ComposedFeatures(feature_map, FourierFeatures(20, 24, ard=False, length_scales=2.0, seed=0))
    return FeatureGP(feature_map, **{"noise_variance": 0.1} | options).to(dtype)


def _compiled(algorithm, optimizer):
    return import_module("finitegp.compiled").CompiledSteps(algorithm, optimizer)


def _flat_state(optimizer):
    return [values for _, values in sorted(optimizer.state_dict()["state"].items())]


def _check_steps(name, optimizer="AdamW", *, epochs=2, model=_model):
    """Each step of two epochs from the same state; the first algorithm is returned."""
    plain, other = (ALGORITHMS[name](model()) for _ in range(2))
    optimizers = [OPTIMIZERS[optimizer](algorithm.parameter_groups()) for algorithm in (plain, other)]
    sampler = Sampler(_rows(), 32, dtype=torch.float64)
    for algorithm in (plain, other):
        algorithm.initialize(list(sampler.epoch(0, stream=-1, stop=3)))
    steps = _compiled(other, optimizers[1])
    for epoch in range(epochs):  # the last batch of each is smaller
        streams = [sampler.epoch(epoch, stream=stream) for stream in range(plain.batches_per_step)]
        for batches in zip(*streams, strict=True):
            for change in (optimizers[0], optimizers[1]):
                change.param_groups[0]["lr"] *= 0.9
            losses = plain.step(batches, optimizers[0]), steps.step(batches)
            assert losses[1] == pytest.approx(losses[0], rel=1e-9)
            for kept, found in (
                (plain.state_dict(), other.state_dict()),
                (plain.pending_state(), other.pending_state()),
                *zip(*(_flat_state(each) for each in optimizers), strict=True),
            ):
                assert kept.keys() == found.keys()
                for key, value in kept.items():
                    torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-10)
            other.load_state_dict(plain.state_dict())
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[0].state_dict()))
    return plain, other


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_compiled_step_is_that_of_the_library(name):
    plain, _ = _check_steps(name)
    start = ALGORITHMS[name](_model()).state_dict()
    for key, value in plain.named_parameters():
        assert not value.requires_grad or not torch.allclose(value, start[key]), f"{key} stayed"
    if name == "Minimax":
        assert not torch.allclose(plain.multiplier, torch.eye(20).double(), atol=0.1)  # it was moved
        assert float(plain.penalty) > 1.5
        assert float(plain.model.feature_map.layers[0].weight.detach().abs().max()) == 0.3


@pytest.mark.parametrize("optimizer", ["Adam", "Adadelta"])
def test_optimizers_are_those_of_torch(optimizer):
    _check_steps("SCGD", optimizer, epochs=1)


@pytest.mark.parametrize("name", ["Lagged", "SCGD", "Minimax"])
def test_fourier_features_are_compiled_too(name):
    _check_steps(name, epochs=1, model=lambda: _model(fourier=True))


def test_what_is_frozen_stays():
    def model():
        made = _model()
        made.feature_map.layers[0].weight.requires_grad_(False)
        made.noise.log_variance.requires_grad_(False)
        return made

    _, other = _check_steps("SCGD", epochs=1, model=model)
    assert torch.equal(other.model.feature_map.layers[0].weight, model().feature_map.layers[0].weight)
    assert torch.equal(other.model.noise.log_variance, model().noise.log_variance)


def _run(name, *, compiled=True, dtype=torch.float64, epochs=3, callbacks=(), **options):
    algorithm = ALGORITHMS[name](_model(dtype=dtype))
    run = train(
        algorithm, make_optimizer(algorithm, learning_rate=5e-3), _rows(), epochs=epochs, batch_size=32,
        schedule=cosine_decay(15), callbacks=[ExactNLML(), *callbacks], compiled=compiled, **options,
    )  # fmt: skip
    return algorithm, run


@pytest.mark.parametrize("name", ["Lagged", "SCGD"])
def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped(name, tmp_path):
    class Stop(Callback):
        def on_step(self, run):
            if run.step == 7:
                raise KeyboardInterrupt

    whole, expected = _run(name)
    path = tmp_path / "part.ckpt"
    with pytest.raises(KeyboardInterrupt):
        _run(name, callbacks=[Checkpoint(path, every_steps=3), Stop()])
    resumed, run = _run(name, resume=path)
    assert run.history[-1]["nlml"] == expected.history[-1]["nlml"]
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value)
    plain = _run(name, compiled=False)[1]
    assert run.history[-1]["nlml"] == pytest.approx(plain.history[-1]["nlml"], rel=1e-8)


@pytest.mark.filterwarnings("error")
def test_a_scheduler_of_torch_changes_the_rates():
    found = []
    for compiled in (True, False):
        algorithm = ALGORITHMS["SCGD"](_model())
        optimizer = make_optimizer(algorithm, learning_rate=5e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        train(algorithm, optimizer, _rows(), epochs=1, batch_size=32, schedule=schedule, compiled=compiled)
        found.append(algorithm.weights.detach())
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["SCGD", "BSGD"])
def test_a_matrix_that_cannot_be_factorised_is_left_to_the_library(name, monkeypatch):
    steps = import_module("finitegp.compiled.steps")
    monkeypatch.setattr(steps, f"{name.lower()}_step", lambda *arguments: (False, 0.0))
    plain, other = _check_steps(name, epochs=1)
    for value, found in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.equal(value, found)


@pytest.mark.parametrize(
    ("reason", "model", "algorithm", "optimizer"),
    [
        ("feature map", FeatureGP(FourierFeatures(3, 4), 0.1), SCGD, None),
        ("other layers", FeatureGP(MLPFeatures(3, (4, 4), "tanh"), 0.1), SCGD, None),
        ("other layers", FeatureGP(MLPFeatures(3, (4,)), 0.1), SCGD, None),
        ("length scale", FeatureGP(ComposedFeatures(MLPFeatures(3, (4, 4)), FourierFeatures(4, 6)), 0.1), SCGD, None),
        ("noise", FeatureGP(MLPFeatures(3, (4, 4)), noise_model=InputNoise(nn.Linear(4, 1))), SCGD, None),
        ("output scale", FeatureGP(MLPFeatures(3, (4, 4)), 0.1, output_scale=2.0), SCGD, None),
        ("target", _model(), lambda model: SCGD(model, 150, num_targets=2), None),
        ("not all of float32", _model(dtype=torch.float16), SCGD, None),
        ("include_current", _model(), lambda model: Lagged(model, 150, include_current=True), None),
        ("NewKind", _model(), type("NewKind", (SCGD,), {}), None),
        ("SGD", _model(), SCGD, lambda groups: torch.optim.SGD(groups, lr=0.1)),
        ("amsgrad", _model(), SCGD, lambda groups: torch.optim.AdamW(groups, amsgrad=True)),
        ("differ", _model(), SCGD, lambda groups: torch.optim.AdamW([*groups, {"params": [torch.ones(1)], "lr": 0.1}])),
    ],
)  # fmt: skip
def test_what_is_not_compiled_is_refused_with_the_reason(reason, model, algorithm, optimizer):
    made = algorithm(model, 150) if isinstance(algorithm, type) else algorithm(model)
    with pytest.raises(ValueError, match=f"no compiled steps, as .*{reason}.*compiled=False"):
        _compiled(made, (optimizer or OPTIMIZERS["AdamW"])(made.parameter_groups()))


def test_batches_that_have_weights_or_come_in_parts_are_refused():
    with pytest.raises(ValueError, match="micro_batch_size"):
        _run("SCGD", micro_batch_size=8)
    algorithm = ALGORITHMS["SCGD"](_model())
    steps = _compiled(algorithm, OPTIMIZERS["AdamW"](algorithm.parameter_groups()))
    inputs, targets = _rows()
    with pytest.raises(ValueError, match="rows have weights"):
        steps.step([Rows(inputs[:8], targets[:8, None], torch.ones(8))])


def test_rows_that_scgd_remembers_are_no_matrix():
    model = FeatureGP(MLPFeatures(3, (4, 500), seed=0), 0.1).double()
    algorithm = SCGD(model, 150)
    steps = _compiled(algorithm, OPTIMIZERS["AdamW"](algorithm.parameter_groups()))
    batch = next(Sampler(_rows(), 4, dtype=torch.float64).epoch(0))
    algorithm.initialize([batch])
    with pytest.raises(ValueError, match="so few rows"):
        steps.step([batch])


def test_without_numba_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "finitegp.compiled", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'finitegp\[fast\]'"):
        _run("SCGD")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_of_compiled_loops_is_the_same_to_rounding(name, dtype):
    runs = [_run(name, compiled=compiled, dtype=dtype)[1] for compiled in (False, True)]
    histories = [[row["nlml"] for row in run.history] for run in runs]
    assert histories[1] == pytest.approx(histories[0], abs=1e-4 if dtype == torch.float32 else 1e-9)
    assert abs(histories[0][0] - histories[0][-1]) > 1e-3


@pytest.mark.parametrize("rows", [1, 7, 70])
def test_sums_of_products_are_whole_and_symmetric(rows):
    features, start = torch.randn(rows, 37), torch.randn(37, 37).double()
    start = start + start.mT
    total = start.clone()
    import_module("finitegp.compiled.factors").add_gram(total.numpy(), features.numpy(), 0.3, 2.0)
    torch.testing.assert_close(
        total, 0.3 * start + 2.0 * features.double().mT @ features.double(), rtol=1e-12, atol=1e-12
    )
    assert torch.equal(total, total.mT)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 100, 300])
def test_the_inverse_factor_is_that_of_numpy_and_refuses_what_is_not_definite(size):
    root = np.random.default_rng(0).standard_normal((size, size + 5))
    matrix = root @ root.T
    found = np.empty_like(matrix)
    assert import_module("finitegp.compiled.factors").inverse_factor(matrix.copy(), found)
    np.testing.assert_allclose(found, np.linalg.inv(np.linalg.cholesky(matrix)), rtol=1e-7, atol=1e-9)
    for wrong in (-1.0, np.nan, np.inf):
        matrix[-1, -1] = wrong
        assert not import_module("finitegp.compiled.factors").inverse_factor(matrix.copy(), found)
