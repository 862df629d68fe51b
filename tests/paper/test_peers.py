"""Every peer keeps the contract of the harness: units, no test targets, one seed one result, clear errors."""

import importlib.util
import math
import subprocess
import sys

import numpy as np
import pytest

from finitegp.errors import DataError
from paper.outcome import DatasetSplit
from paper.peers import DEFAULTS, PEERS, PLAIN, TREATED
from paper.peers.contract import Stopwatch, hold_out, require
from paper.peers.steps import StepPlan

NETWORK = {"hidden": (16, 16), "epochs": 1, "min_steps": 150, "batch_size": 32, "learning_rate": 0.01}
SMALL_SETTINGS = {
    "bayesridge": {},
    "catboost": {"trees": 60, "learning_rate": 0.2},
    "ensemble": NETWORK | {"members": 2, "min_steps": 100},
    "laplace": NETWORK | {"min_steps": 100, "marginal_likelihood_steps": 40},
    "lightgbm": {"trees": 30, "learning_rate": 0.2},
    "mlp": NETWORK,
    "ngboost": {"trees": 15, "learning_rate": 0.2},
    "realmlp": {"epochs": 2, "batch_size": 32},
    "sklearn-gpr": {"n_restarts_optimizer": 0},
    "svgp-network": {"hidden": (16, 16), "inducing_points": 16, "epochs": 1, "min_steps": 60, "learning_rate": 0.01},
    "svgp-rbf": {"inducing_points": 16, "epochs": 1, "min_steps": 60, "learning_rate": 0.1},
    "tabm": {"epochs": 3, "batch_size": 32, "members": 4, "width": 32},
    "vbll": NETWORK,
    "xgboost": {"trees": 30, "learning_rate": 0.2},
}
PACKAGES = {
    "catboost": ("catboost", "benchmark-peers"),
    "laplace": ("laplace", "benchmark-peers"),
    "lightgbm": ("lightgbm", "benchmark-peers"),
    "ngboost": ("ngboost", "benchmark-peers"),
    "realmlp": ("pytabkit", "benchmark-peers"),
    "svgp-network": ("gpytorch", "peers"),
    "svgp-rbf": ("gpytorch", "peers"),
    "tabm": ("pytabkit", "benchmark-peers"),
    "vbll": ("vbll", "benchmark-peers"),
    "xgboost": ("xgboost", "benchmark-peers"),
}


def make_split(scale=1.0, shift=0.0):
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(300, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 2.0]
    signal = inputs[:, 0] + np.sin(inputs[:, 1] / 10) + (10 * (inputs[:, 2] - 2)) ** 2 / 4
    targets = scale * (signal + 0.1 * generator.normal(size=300)) + shift
    return DatasetSplit("synthetic", 0, inputs[:240], targets[:240], inputs[240:], targets[240:])


def with_test_targets(split, test_targets):
    return DatasetSplit(split.name, split.split, split.inputs, split.targets, split.test_inputs, test_targets)


def skip_without_package(name):
    package, extra = PACKAGES.get(name, (None, None))
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: install the extra finitegp[{extra}]")


@pytest.fixture(params=sorted(PLAIN))
def peer(request):
    skip_without_package(request.param)
    return request.param


def run(peer, split, seed=0):
    return PEERS[peer](split, seed=seed, settings=SMALL_SETTINGS[peer])


def test_contract(peer):
    """One test, because each fit takes a while."""
    split = make_split()
    found = run(peer, split)
    rows = len(split.test_targets)
    for values in (found.mean, found.std):
        assert values.shape == (rows,)
        assert values.dtype == np.float64
        assert np.isfinite(values).all()
    assert (found.std > 0).all()
    assert found.seconds > 0
    assert found.wall_seconds > 0
    error = np.sqrt(np.mean((found.mean - split.test_targets) ** 2))
    assert error < 0.95 * np.std(split.test_targets)
    assert found.details["settings"] == {**DEFAULTS[peer], **SMALL_SETTINGS[peer]}

    # Other test targets change nothing but a mixture's density; the same seed gives the same numbers.
    again = run(peer, with_test_targets(split, split.test_targets[::-1]))
    np.testing.assert_array_equal(again.mean, found.mean)
    np.testing.assert_array_equal(again.std, found.std)
    if found.log_density is not None:
        assert found.log_density.shape == (rows,)
        assert np.isfinite(found.log_density).all()

    scaled = run(peer, make_split(scale=1000.0, shift=-3e4))
    # Rounding differs and may tip a tree's split, so that a single row can differ much.
    change = (scaled.mean + 3e4) / 1000 - found.mean
    assert np.sqrt(np.mean(change**2)) < 0.02 * np.std(split.targets)
    assert np.median(scaled.std / found.std) == pytest.approx(1000, rel=0.01)
    if found.log_density is not None:
        np.testing.assert_allclose(np.mean(scaled.log_density) + math.log(1000), np.mean(found.log_density), atol=0.05)


def test_unknown_setting():
    for name, (function, _) in PLAIN.items():
        with pytest.raises(ValueError, match=rf"{name}.*no setting 'treees'.*knows .*{sorted(DEFAULTS[name])[0]}"):
            function(make_split(), seed=0, settings={"treees": 3})


def test_every_peer_has_defaults_and_a_test():
    assert PLAIN.keys() == SMALL_SETTINGS.keys()
    assert PEERS.keys() == DEFAULTS.keys() == PLAIN.keys() | {name + TREATED for name in PLAIN}


def test_missing_package_names_the_extra():
    with pytest.raises(ImportError, match=r'"finitegp\[benchmark-peers\]"'):
        require("surely_no_such_package", "mlp")


@pytest.mark.slow
def test_import_needs_no_optional_package():
    packages = {package for package, _ in PACKAGES.values()}
    code = f"import sys, paper.peers; assert not {packages!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_exact_process_refuses_large_tables():
    with pytest.raises(DataError, match=r"small tables.*240 training rows.*max_rows=100"):
        PEERS["sklearn-gpr"](make_split(), seed=0, settings={"max_rows": 100})


def test_mixture_density_of_one_member_is_gaussian():
    split = make_split(scale=20.0)
    found = PEERS["ensemble"](split, seed=1, settings=SMALL_SETTINGS["ensemble"] | {"members": 1})
    residuals = (split.test_targets - found.mean) / found.std
    expected = -0.5 * (residuals**2 + math.log(2 * math.pi)) - np.log(found.std)
    np.testing.assert_allclose(found.log_density, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["mlp", "ensemble"])
def test_time_limit(name):
    settings = SMALL_SETTINGS[name] | {"epochs": 10**6, "max_seconds": 0.4}
    found = PEERS[name](make_split(), seed=0, settings=settings)
    assert found.details["shortened"]
    assert found.seconds < 10
    assert not run(name, make_split()).details["shortened"]


def test_shortened_plan_decays_to_the_end():
    class Clock(Stopwatch):
        seconds = 0.0

    clock = Clock()
    plan = StepPlan(10_000, max_seconds=100.0, stopwatch=clock)
    while not plan.finished:
        clock.seconds += 0.1
        plan.advance()
    assert plan.shortened
    assert 950 <= plan.step <= 1001
    assert plan.factor == pytest.approx(0.0, abs=1e-6)


def test_a_plan_is_kept_when_the_machine_slows_down():
    class Clock(Stopwatch):
        seconds = 0.0

    clock = Clock()
    plan = StepPlan(10_000, max_seconds=100.0, stopwatch=clock)
    while not plan.finished:
        clock.seconds += 0.1 if plan.step < 500 else 10.0
        plan.advance()
    assert plan.step == plan.steps >= 950  # not cut at a learning rate that is still high
    assert plan.factor == pytest.approx(0.0, abs=1e-6)
    assert not StepPlan(10, max_seconds=None, stopwatch=clock).shortened


@pytest.mark.parametrize("name", ["lightgbm", "xgboost", "catboost", "ngboost"])
def test_a_cap_on_trees_is_recorded(name):
    skip_without_package(name)
    few = {"trees": 3, "learning_rate": 0.01}
    assert PEERS[name](make_split(), seed=0, settings=few).details["shortened"]
    enough = {"trees": 300, "learning_rate": 0.5, "early_stopping_rounds": 3}
    found = PEERS[name](make_split(), seed=0, settings=enough)
    assert not found.details["shortened"]
    assert found.details["trees"] < 300


def test_seconds_are_of_all_threads_and_children_and_of_the_clock(monkeypatch):
    from types import SimpleNamespace

    from paper.peers import contract

    now = {"own": 5.0, "children": 1.0, "wall": 100.0}
    monkeypatch.setattr(contract.time, "process_time", lambda: now["own"])
    monkeypatch.setattr(contract.time, "perf_counter", lambda: now["wall"])
    times = lambda: SimpleNamespace(children_user=now["children"], children_system=0.5)  # noqa: E731
    monkeypatch.setattr(contract.os, "times", times)
    stopwatch = Stopwatch()
    now |= {"own": 7.0, "children": 4.0, "wall": 130.0}
    assert stopwatch.elapsed == (5.0, 30.0)
    assert stopwatch.seconds == 5.0


@pytest.mark.parametrize("rows", [2, 3, 23, 1000])
def test_hold_out(rows):
    kept, held_out = hold_out(rows, 0.1, seed=3)
    assert len(kept) >= 1
    assert len(held_out) >= 1
    assert sorted([*kept, *held_out]) == list(range(rows))
