"""The doctor: each check speaks up on the disease it is for, and stays silent on a healthy fit."""

from __future__ import annotations

import ast
import inspect
import math
import re
from pathlib import Path

import numpy as np
import pytest
from report_fits import make_fit, make_rows

from finitegp.automatic.fit import fit_auto
from finitegp.metrics import score
from finitegp.persistence import load_fit
from finitegp.report import Finding, data_checks, gather_contents, model_checks, prediction_checks
from finitegp.report.contents import Importance, ImportanceTable
from finitegp.report.residuals import residual_panel


@pytest.fixture
def random(seed):
    return np.random.default_rng(seed)


def test_a_finding_must_have_a_known_severity():
    with pytest.raises(ValueError, match="severity must be one of"):
        Finding("catastrophe", "title", "evidence", "fix")


# The model.


@pytest.mark.parametrize(
    ("dead", "severity"), [(0, None), (20, None), (60, "note"), (118, "warning"), (126, "problem"), (128, "problem")]
)
def test_dead_features(dead, severity):
    finding = model_checks.check_dead_features(dead, 128)
    assert (finding and finding.severity) == severity
    assert finding is None or str(dead) in finding.evidence


@pytest.mark.parametrize(
    ("effective", "features", "severity"),
    [(1.0, 128, "problem"), (3.0, 128, "warning"), (30.0, 128, None), (1.0, 2, None)],
)
def test_collapsed_features(effective, features, severity):
    finding = model_checks.check_collapsed_features(effective, features)
    assert (finding and finding.severity) == severity


@pytest.mark.parametrize(
    ("noise", "floored", "title"),
    [
        (1e-9, 0.0, "Noise is at its lower bound"),
        (0.99, 0.0, "Noise explains everything"),
        (0.1, 0.2, "Noise of some rows is at its lower bound"),
        (0.1, 0.01, None),
        (0.8, 0.0, None),
    ],
)
def test_noise_bound(noise, floored, title):
    finding = model_checks.check_noise_bound(noise, floored)
    assert (finding and finding.title) == title


@pytest.mark.parametrize(
    ("condition", "jitter", "severity"),
    [(1e6, 0.0, None), (1e13, 0.0, "warning"), (1e15, 0.0, "problem"), (1e6, 1e-8, "problem")],
)
def test_conditioning(condition, jitter, severity):
    finding = model_checks.check_conditioning(condition, jitter)
    assert (finding and finding.severity) == severity


@pytest.mark.parametrize(
    ("window", "rows", "title"),
    [
        (2, 10_000, "Window is too small"),  # 128 rows for 128 features
        (100, 10_000, None),
        (2, 100, None),  # all rows there are
        (2000, 10_000, "Window is too large"),  # of 5,000 steps
        (100, 100, "Window is too large"),  # 64 passes over the rows
    ],
)
def test_window(window, rows, title):
    finding = model_checks.check_window(window, 64, rows, 128, 5000)
    assert (finding and finding.title) == title


# The table.


@pytest.mark.parametrize(
    ("rows", "columns", "held_out", "title"),
    [
        (40, 2, 100, "Few training rows"),
        (100, 50, 100, "Few training rows"),
        (1000, 5, 20, "Few held-out rows"),
        (1000, 5, 200, None),
    ],
)
def test_few_rows(rows, columns, held_out, title):
    finding = data_checks.check_few_rows(rows, columns, held_out)
    assert (finding and finding.title) == title


def test_constant_columns(random):
    inputs = random.normal(size=(50, 3))
    assert data_checks.check_constant_columns(inputs, "abc") is None
    inputs[:, 1] = 0.1
    assert "'b'" in data_checks.check_constant_columns(inputs, "abc").evidence


def test_duplicate_columns(random):
    inputs = random.normal(size=(50, 4))
    assert data_checks.check_duplicate_columns(inputs, "abcd") is None
    inputs[:, 3] = 5.0 - 2.0 * inputs[:, 1]
    assert "'b' and 'd'" in data_checks.check_duplicate_columns(inputs, "abcd").evidence


def test_two_columns_of_a_yes_no_text_are_no_duplicates(random):
    yes = (random.uniform(size=60) < 0.5).astype(float)
    assert data_checks.check_duplicate_columns(np.column_stack([yes, 1.0 - yes]), ["yes", "no"]) is None
    assert data_checks.check_duplicate_columns(np.column_stack([yes, yes]), ["yes", "again"]) is not None


def test_constant_columns_are_no_duplicates():
    assert data_checks.check_duplicate_columns(np.ones((10, 2)), ["a", "b"]) is None


def test_telling_column(random):
    inputs = random.normal(size=(400, 3))
    noisy = inputs[:, 0] + random.normal(size=400)
    assert data_checks.check_telling_columns(inputs, noisy, "abc") is None
    # Not monotone: no correlation would see it.
    finding = data_checks.check_telling_columns(inputs, np.cos(2 * inputs[:, 2]), "abc")
    assert "'c'" in finding.evidence
    assert "'a'" not in finding.evidence


def test_a_table_sorted_by_its_target_is_no_leak(random):
    targets = np.sort(random.normal(size=400))
    categories = random.integers(0, 3, size=(400, 2)).astype(float)
    assert data_checks.check_telling_columns(categories, targets, "ab") is None


def test_shared_rows(random):
    inputs, targets = random.normal(size=(100, 2)), random.normal(size=100)
    others, their_targets = random.normal(size=(50, 2)), random.normal(size=50)
    assert data_checks.check_shared_rows(inputs, targets, others, their_targets) is None
    others[:20], their_targets[:20] = inputs[:20], targets[:20]
    finding = data_checks.check_shared_rows(inputs, targets, others, their_targets)
    assert finding.severity == "problem"
    assert "20 of 50" in finding.evidence
    # The same inputs with other targets are repeated measurements, not a leak.
    assert data_checks.check_shared_rows(inputs, targets, inputs, targets + 1.0) is None


def test_repeated_targets(random):
    targets = random.normal(size=300)
    assert data_checks.check_repeated_targets(targets) is None
    assert "few distinct" in data_checks.check_repeated_targets(np.round(targets)).title
    targets[:90] = 0.0
    assert "30 %" in data_checks.check_repeated_targets(targets).evidence


def test_skewed_target(random):
    normal = random.normal(size=500)
    assert data_checks.check_skewed_target(normal + 10.0) is None
    assert data_checks.check_skewed_target(np.exp(normal)) is not None
    assert data_checks.check_skewed_target(np.exp(normal) - 5.0) is None  # no logarithm of negative numbers


# The predictions.


@pytest.mark.parametrize(("r_squared", "found"), [(0.99995, True), (0.999, False), (None, False)])
def test_perfect_predictions(r_squared, found):
    assert (prediction_checks.check_perfect_predictions(r_squared) is not None) == found


def test_baselines(random):
    targets = random.normal(size=300)
    good = score(targets + 0.1 * random.normal(size=300), np.full(300, 0.1), targets)
    mean = score(np.zeros(300), np.ones(300), targets, name="mean")
    linear = score(np.zeros(300) + 0.05, np.ones(300), targets, name="linear")
    poor = score(2.0 * random.normal(size=300), np.full(300, 2.0), targets)
    assert prediction_checks.check_baselines([good, linear, mean]) is None
    assert prediction_checks.check_baselines([poor, linear, mean]).title == "Worse than the linear baseline"
    assert prediction_checks.check_baselines([good, good]).severity == "note"
    assert prediction_checks.check_baselines([mean, mean]).severity == "problem"


def test_overfit_gap(random):
    targets = random.normal(size=500)
    scores = score(np.zeros(500), np.ones(500), targets)
    assert prediction_checks.check_overfit(scores.nlpd, scores) is None
    assert prediction_checks.check_overfit(scores.nlpd + 2.0, scores) is None
    assert prediction_checks.check_overfit(scores.nlpd - 0.6, scores).severity == "warning"
    assert prediction_checks.check_overfit(scores.nlpd - 3.0, scores).severity == "problem"


@pytest.mark.parametrize(
    ("factor", "title", "severity"),
    [
        (1.0, None, None),
        (0.6, "Error bars are too narrow", "problem"),
        (2.0, "Error bars are too wide", "warning"),
    ],
)
def test_coverage(random, factor, title, severity):
    targets = random.normal(size=2000)
    scores = score(np.zeros(2000), np.full(2000, factor), targets)
    finding = prediction_checks.check_coverage(scores.coverage, 2000)
    assert (finding and finding.title) == title
    assert (finding and finding.severity) == severity


def test_coverage_of_the_wrong_shape(random):
    quiet = random.uniform(size=2000) < 0.85
    targets = np.where(quiet, 0.3, 3.0) * random.normal(size=2000)
    scores = score(np.zeros(2000), np.full(2000, targets.std()), targets)
    finding = prediction_checks.check_coverage(scores.coverage, 2000)
    assert finding.title == "Error bars are too wide for most rows, too narrow for a few"


def test_coverage_of_few_rows_is_not_judged_harshly():
    assert prediction_checks.check_coverage({0.5: 0.4, 0.9: 0.8}, 20) is None
    assert prediction_checks.check_coverage({0.5: 0.4, 0.9: 0.8}, 2000) is not None


def test_heavy_tails(random):
    assert prediction_checks.check_heavy_tails(random.normal(size=1000)) is None
    assert prediction_checks.check_heavy_tails(random.standard_t(2, size=1000)) is not None


def test_bias(random):
    residuals = random.normal(size=400)
    assert prediction_checks.check_bias(residuals) is None
    assert "too low" in prediction_checks.check_bias(residuals + 0.5).title
    assert "too high" in prediction_checks.check_bias(residuals - 0.5).title
    # Small samples are off by chance.
    assert prediction_checks.check_bias(residuals[:4] + 0.5) is None


def test_structured_residuals(random):
    inputs, residuals = random.normal(size=(800, 2)), random.normal(size=800)

    def check(values):
        panels = [residual_panel(name, inputs[:, [k]], [name], values) for k, name in enumerate("ab")]
        return prediction_checks.check_structured_residuals(panels)

    assert check(residuals) is None
    finding = check(residuals + np.sin(3 * inputs[:, 1]))
    assert "'b'" in finding.evidence
    assert "'a'" not in finding.evidence


def test_unknown_ground(random):
    inputs = random.uniform(size=(500, 2))
    assert prediction_checks.check_unknown_ground(inputs, random.uniform(size=(100, 2)), "ab") is None
    moved = random.uniform(size=(100, 2)) + np.array([0.0, 0.5])
    assert "'b'" in prediction_checks.check_unknown_ground(inputs, moved, "ab").evidence


def test_shape_of_distributions(random):
    """A PIT histogram that chance explains is no finding; skewed errors are, and so are errors of another spread."""
    assert not any(prediction_checks.check_distributions(random.normal(size=rows)) for rows in (150, 1000, 20_000))
    for errors in (random.exponential(size=1000) - 1.0, 0.5 * random.normal(size=1000)):
        finding = prediction_checks.check_distributions(errors)
        assert finding.severity == "warning"
        assert "--target-scale" in finding.shell_fix
    assert finding.evidence.startswith("0.")  # errors of half the size are hardly ever in the lowest tenth
    assert prediction_checks.check_distributions(3.0 * random.normal(size=50)) is None  # too few to say


def test_coverage_by_segment(random):
    level, errors = random.permutation(1000).astype(float), random.normal(size=1000)
    assert prediction_checks.check_segments(errors, level) is None
    finding = prediction_checks.check_segments(np.where(level >= 750, 2.0, 0.85) * errors, level)
    assert "with the highest predictions" in finding.evidence


def test_little_explained_and_noise_that_explains_everything():
    assert "4.0 %" in prediction_checks.check_explained(0.04).evidence
    assert prediction_checks.check_explained(0.2) is None
    # Noise that depends on the row may exceed the variance of the target while something is learned.
    assert model_checks.check_noise_bound(1.2, 0.0, 0.125) is None
    assert model_checks.check_noise_bound(1.2, 0.0, 0.01).title == "Noise explains everything"


def test_harmful_inputs():
    entries = [Importance("good", 2.0, 0.1), Importance("idle", -0.02, 0.05), Importance("bad", -0.5, 0.05)]
    finding = prediction_checks.check_harmful_inputs(ImportanceTable(entries, 100, 100, 3, 5, 10.0))
    assert finding.evidence.endswith("smaller: 'bad'.")
    assert "--drop" in finding.shell_fix
    assert prediction_checks.check_harmful_inputs(ImportanceTable(entries[:2], 100, 100, 2, 5, 10.0)) is None


def test_advice_in_the_shell_names_no_python():
    """The last text of each finding, which the shell shows, is free of arguments of Python."""
    found = 0
    for module in (model_checks, prediction_checks, data_checks):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                found += 1
                assert not re.search(r"\w+='|feature_map|fit_auto|TableRegressor", ast.unparse(call.args[-1]))
    assert found > 20


def test_kernels_have_no_features_that_can_die(training, held_out):
    found = gather_contents(make_fit(*training, record={"path": "kernel"}), *held_out).checkup
    assert found.skipped["dead features"] == "kernels have no features that can die"


def test_every_finding_says_what_to_do():
    findings = [
        model_checks.check_dead_features(128, 128),
        model_checks.check_noise_bound(1e-12),
        model_checks.check_conditioning(math.inf, 1.0),
        prediction_checks.check_perfect_predictions(1.0),
    ]
    for finding in findings:
        assert finding.evidence.endswith(".")
        assert finding.fix.endswith(".")
        assert "nan" not in finding.evidence


# Whole fits.


def test_a_healthy_fit_has_no_problem(contents):
    assert contents.checkup.count("problem") == contents.checkup.count("warning") == 0
    assert {"overfit gap", "coverage of intervals", "conditioning", "leakage: shared rows"} <= set(
        contents.checkup.passed
    )


def test_sick_tables_are_found_out(training, held_out):
    def sicken(rows):
        inputs, targets = rows
        return np.column_stack([inputs, 3.0 * inputs[:, 0] + 1.0, np.full(len(inputs), 4.0), targets / 7.0]), targets

    inputs, targets = sicken(training)
    found = gather_contents(
        make_fit(inputs, targets),
        *sicken(held_out),
        training_inputs=inputs,
        training_targets=targets,
        column_names=["a", "b", "c", "triple", "same", "leak"],
    ).checkup
    titles = {finding.title: finding for finding in found.findings}
    assert "'a' and 'triple'" in titles["Duplicate columns"].evidence
    assert "'same'" in titles["A constant column"].evidence
    assert "'leak'" in titles["A column gives the target away"].evidence
    assert "Too good to be true" in titles


def test_noise_and_nothing_else_is_found_out():
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(400, 2)), random.normal(size=400)
    found = gather_contents(make_fit(inputs[:200], targets[:200]), inputs[200:], targets[200:]).checkup
    assert "Noise explains everything" in {finding.title for finding in found.findings}


def test_the_window_is_judged_from_the_record_of_a_fit_of_the_first_version():
    """Whose networks were trained with ``Lagged``; those of the present default are not."""
    stored = load_fit(Path(__file__).parents[1] / "files" / "networks-1.finitegp")
    random = np.random.default_rng(0)
    inputs = random.normal(size=(100, 2)) * 3 + 1
    targets = 50 + 10 * np.sin(inputs[:, 0]) + random.normal(size=100)
    for window, title in ((20, None), (5000, "Window is too large")):
        stored.record["settings"]["window"] = window
        checkup = gather_contents(stored, inputs, targets).checkup
        assert ("window" in checkup.passed) == (title is None)
        assert (title in {finding.title for finding in checkup.findings}) == (title is not None)
    inputs, targets = make_rows(300, seed=2)
    settings = {
        "small_rows": 100,
        "most_rows_for_both": 0,
        "members": 2,
        "hidden": [16],
        "steps": 60,
        "fourier_features": 16,
        "noise_steps": 20,
    }
    fitted = fit_auto(inputs[:200], targets[:200], effort="low", settings=settings)
    checkup = gather_contents(fitted, inputs[200:], targets[200:]).checkup
    assert "window" not in checkup.passed
    assert "the record does not hold" in checkup.skipped["window"]
