"""Compiled steps of Lagged: the same mathematics, and what happens where they cannot be compiled."""

import copy
import warnings

import pytest
import torch
from torch import nn

from finitegp import FeatureGP, InputNoise
from finitegp.algorithms import CompilationWarning, Lagged
from finitegp.callbacks import Checkpoint
from finitegp.features import ComposedFeatures, FourierFeatures, MLPFeatures
from finitegp.schedules import cosine_decay, make_optimizer
from finitegp.training import train

ROWS = 100


def make_data(targets=1, weighted=False):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(ROWS, 3, generator=generator, dtype=torch.float64)
    goal = torch.sin(2 * inputs[:, :targets]) + 0.2 * torch.randn(ROWS, targets, generator=generator)
    weights = 0.5 + torch.rand(ROWS, generator=generator, dtype=torch.float64)
    return (inputs, goal, weights) if weighted else (inputs, goal)


def make(kind="network", *, dtype=torch.float64, compiled=True, **options):
    network = MLPFeatures(3, hidden=(12, 8), seed=0)
    if kind == "fourier":
        model = FeatureGP(ComposedFeatures(network, FourierFeatures(8, 20, ard=False, seed=0)), 0.5)
    elif kind == "input noise":
        torch.manual_seed(0)
        model = FeatureGP(network, noise_model=InputNoise(nn.Linear(8, 1), variance=0.5))
    else:
        model = FeatureGP(network, 0.5)
    return Lagged(model.to(dtype), ROWS, block=3, window=30, compiled=compiled, **options)


def run(algorithm, data, epochs=3, **options):
    """Seven steps an epoch, the last with four rows, with a learning rate that changes at every step."""
    optimizer = make_optimizer(algorithm, learning_rate=1e-2, weight_decay=0.1)
    return train(algorithm, optimizer, data, epochs=epochs, batch_size=16, schedule=cosine_decay(21), **options)


def assert_same(left, right, tolerance):
    for (name, one), other in zip(left.state_dict().items(), right.state_dict().values(), strict=True):
        scale = max(1.0, float(other.abs().max()))
        assert float((one - other).abs().max()) <= tolerance * scale, name


@pytest.fixture
def calls(monkeypatch):
    """The function that would be compiled, called as it is; the list has the size of each batch it was given."""
    sizes = []

    def compile_nothing(function, **_):
        def counted(*arguments):
            sizes.append(len(arguments[4]))
            return function(*arguments)

        return counted

    monkeypatch.setattr(torch, "compile", compile_nothing)
    return sizes


VARIANTS = {
    "plain": {},
    "trained weights": {"weight_update": "train"},
    "fourier": {"kind": "fourier"},
    "input noise": {"kind": "input noise", "weight_update": "both"},
    "two targets": {"targets": 2, "weight_update": "train"},
    "row weights": {"weighted": True, "weight_update": "train"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_step_written_for_the_compiler_is_the_ordinary_one(calls, variant):
    options = dict(VARIANTS[variant])
    data = make_data(options.get("targets", 1), options.pop("weighted", False))
    options["num_targets"] = options.pop("targets", 1)
    ordinary, compiled = make(compiled=False, **options), make(**options)
    run(ordinary, data)
    run(compiled, data)
    assert_same(compiled, ordinary, 1e-10)
    # The first step and each smaller last batch are ordinary, as is the batch after the very first smaller one.
    assert calls == [16] * (5 + 6 + 6)


def test_checkpoints_resume(calls, tmp_path):
    whole, first, second = make(), make(), make()
    run(whole, make_data())
    path = tmp_path / "run.safetensors"
    run(first, make_data(), epochs=1, callbacks=[Checkpoint(path)])
    run(second, make_data(), resume=path)
    assert_same(second, whole, 1e-10)
    assert len(calls) == 17 + 5 + 11


def test_a_copy_trains_by_itself(calls):
    algorithm = make()
    run(algorithm, make_data(), epochs=1)
    other = copy.deepcopy(algorithm)
    before = copy.deepcopy(algorithm.state_dict())
    run(other, make_data(), epochs=1)
    for name, tensor in algorithm.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_without_a_compiler(monkeypatch):
    """One warning that says why, and the same training as without the option."""

    def no_compiler(function, **_):
        def failing(*_):
            raise RuntimeError("No working C++ compiler found")

        return failing

    monkeypatch.setattr(torch, "compile", no_compiler)
    ordinary, compiled = make(compiled=False), make()
    run(ordinary, make_data())
    with pytest.warns(CompilationWarning, match="No working C\\+\\+ compiler found") as caught:
        run(compiled, make_data())
    assert len([w for w in caught if issubclass(w.category, CompilationWarning)]) == 1
    assert_same(compiled, ordinary, 0.0)


@pytest.mark.parametrize(
    ("options", "optimizer", "message"),
    [
        ({}, "sgd", "the optimizer is SGD"),
        ({"noise_update": "gradient"}, "adam", "noise_update"),
        ({"include_current": True}, "adam", "include_current"),
    ],
)
def test_what_is_not_supported_is_said(options, optimizer, message):
    algorithm = make(**options)
    with pytest.warns(CompilationWarning, match=message):
        train(algorithm, make_optimizer(algorithm, optimizer), make_data(), epochs=1, batch_size=16)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["trained weights", "fourier", "input noise"])
def test_really_compiled(variant):
    options = VARIANTS[variant]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        ordinary, compiled = make(compiled=False, dtype=dtype, **options), make(dtype=dtype, **options)
        run(ordinary, make_data())
        with warnings.catch_warnings():
            warnings.simplefilter("error", CompilationWarning)
            run(compiled, make_data())
        assert compiled._compiled_step._compiled_shape[0] == (16, 3)
        assert_same(compiled, ordinary, tolerance)


@pytest.mark.slow
def test_really_without_a_compiler():
    import torch._inductor.config as inductor

    torch._dynamo.reset()
    algorithm = make()
    missing = inductor.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True})
    with missing, pytest.warns(CompilationWarning, match="not compiled"):
        run(algorithm, make_data())
