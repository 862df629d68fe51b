"""The doctor: each check speaks up on the disease it is for, and stays silent on a healthy fit."""

from __future__ import annotations

import ast
import inspect
import math
import re

import numpy as np
import pytest
import typer
from report_fits import make_fit

import finitegp
from finitegp import GPRegressor, TableRegressor, cli
from finitegp.metrics import score
from finitegp.report import Finding, fit_checks, gather_contents, prediction_checks
from finitegp.report.contents import Importance, ImportanceTable
from finitegp.report.held_out import residual_panel


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
    finding = fit_checks.check_dead_features(dead, 128)
    assert (finding and finding.severity) == severity
    assert finding is None or str(dead) in finding.evidence


@pytest.mark.parametrize(
    ("effective", "features", "severity"),
    [(1.0, 128, "problem"), (3.0, 128, "warning"), (30.0, 128, None), (1.0, 2, None)],
)
def test_collapsed_features(effective, features, severity):
    finding = fit_checks.check_collapsed_features(effective, features)
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
    finding = fit_checks.check_noise_bound(noise, floored)
    assert (finding and finding.title) == title


@pytest.mark.parametrize(
    ("condition", "jitter", "severity"),
    [(1e6, 0.0, None), (1e13, 0.0, "warning"), (1e15, 0.0, "problem"), (1e6, 1e-8, "problem")],
)
def test_conditioning(condition, jitter, severity):
    finding = fit_checks.check_conditioning(condition, jitter)
    assert (finding and finding.severity) == severity


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
    finding = fit_checks.check_few_rows(rows, columns, held_out)
    assert (finding and finding.title) == title


def test_constant_columns(random):
    inputs = random.normal(size=(50, 3))
    groups = {"a": [0], "b": [1, 2]}
    assert fit_checks.check_constant_columns(inputs, groups) is None
    inputs[:, 1] = 0.1
    assert fit_checks.check_constant_columns(inputs, groups) is None  # a category that no row has
    inputs[:, 2] = 0.0
    assert "'b'" in fit_checks.check_constant_columns(inputs, groups).evidence


def test_duplicate_columns(random):
    inputs = random.normal(size=(50, 4))
    groups = {name: [number] for number, name in enumerate("abcd")}
    assert fit_checks.check_duplicate_columns(inputs, groups) is None
    inputs[:, 3] = 5.0 - 2.0 * inputs[:, 1]
    assert fit_checks.check_duplicate_columns(inputs, groups).evidence.endswith("origin: 'b' and 'd'.")
    inputs[:, 0] = inputs[:, 1]
    assert fit_checks.check_duplicate_columns(inputs, groups).evidence.endswith("origin: 'a' and 'b' and 'd'.")


def test_inputs_are_duplicates_if_all_their_columns_are(random):
    """Not if only their gaps are in the same rows."""
    values, gaps = random.normal(size=(60, 2)), random.integers(0, 2, size=60)
    groups = {"a": [0, 1], "b": [2, 3]}
    inputs = np.column_stack([values[:, 0], gaps, values[:, 1], gaps])
    assert fit_checks.check_duplicate_columns(inputs, groups) is None
    inputs[:, 2] = 2.0 * inputs[:, 0]
    assert "'a' and 'b'" in fit_checks.check_duplicate_columns(inputs, groups).evidence


def test_two_columns_of_a_yes_no_text_are_no_duplicates(random):
    yes = (random.uniform(size=60) < 0.5).astype(float)
    apart = {"yes": [0], "no": [1]}
    assert fit_checks.check_duplicate_columns(np.column_stack([yes, 1.0 - yes]), apart) is None
    assert fit_checks.check_duplicate_columns(np.column_stack([yes, yes]), apart) is not None


def test_constant_columns_are_no_duplicates():
    assert fit_checks.check_duplicate_columns(np.ones((10, 2)), {"a": [0], "b": [1]}) is None


def test_telling_column(random):
    inputs = random.normal(size=(400, 3))
    noisy = inputs[:, 0] + random.normal(size=400)
    assert fit_checks.check_telling_columns(inputs, noisy, "abc") is None
    # Not monotone: no correlation would see it.
    finding = fit_checks.check_telling_columns(inputs, np.cos(2 * inputs[:, 2]), "abc")
    assert "'c'" in finding.evidence
    assert "'a'" not in finding.evidence


@pytest.mark.parametrize("rows", [40, 200, 2000])
@pytest.mark.parametrize("wild", [9500.0, -1e9, 1e15])
def test_one_wild_target_makes_no_column_telling(random, rows, wild):
    inputs = random.normal(size=(rows, 3))
    targets = 10.0 + inputs[:, 0] + random.normal(size=rows)
    targets[7] = wild
    assert fit_checks.check_telling_columns(inputs, targets, "abc") is None
    if rows >= 200:  # of fewer rows, its neighbours are more than one in fifty
        targets[targets != wild] = np.cos(2 * inputs[targets != wild, 2])
        assert "'c'" in fit_checks.check_telling_columns(inputs, targets, "abc").evidence


def test_rare_values_make_no_column_telling(random):
    """Nearly all targets are the same, and so are those of neighbours."""
    targets = np.zeros(1000)
    targets[:3] = 1.0
    assert fit_checks.check_telling_columns(random.normal(size=(1000, 2)), targets, "ab") is None


def test_wild_targets(random):
    targets = random.normal(10.0, size=300)
    for usual in (targets, np.exp(targets), random.integers(0, 3, size=300) * 1.0, np.arange(300) == 5.0):
        assert fit_checks.check_wild_targets(usual, str) is None
    targets[[3, 8]] = 9500.0, -4e6
    found = fit_checks.check_wild_targets(targets, "row {}".format)
    assert found.evidence.startswith("row 8 has −4,000,000, row 3 has 9,500; all other targets lie between ")
    twice = fit_checks.check_wild_targets(np.append(targets[:20], 9500.0), lambda row: f"line {row % 17}")
    assert twice is not None
    zeros = np.where(np.arange(300) < 20, 1.0, 0.0)
    zeros[0] = 500.0
    assert "row 0 has 500" in fit_checks.check_wild_targets(zeros, "row {}".format).evidence


def test_a_table_sorted_by_its_target_is_no_leak(random):
    targets = np.sort(random.normal(size=400))
    categories = random.integers(0, 3, size=(400, 2)).astype(float)
    assert fit_checks.check_telling_columns(categories, targets, "ab") is None


def test_shared_rows(random):
    inputs, targets = random.normal(size=(100, 2)), random.normal(size=100)
    others, their_targets = random.normal(size=(50, 2)), random.normal(size=50)
    assert fit_checks.check_shared_rows(inputs, targets, others, their_targets) is None
    others[:20], their_targets[:20] = inputs[:20], targets[:20]
    finding = fit_checks.check_shared_rows(inputs, targets, others, their_targets)
    assert finding.severity == "problem"
    assert "20 of 50" in finding.evidence
    # The same inputs with other targets are repeated measurements, not a leak.
    assert fit_checks.check_shared_rows(inputs, targets, inputs, targets + 1.0) is None


def test_repeated_targets(random):
    targets = random.normal(size=300)
    assert fit_checks.check_repeated_targets(targets) is None
    assert "few distinct" in fit_checks.check_repeated_targets(np.round(targets)).title
    targets[:90] = 0.0
    assert "30 %" in fit_checks.check_repeated_targets(targets).evidence


def test_skewed_target(random):
    normal = random.normal(size=500)
    assert fit_checks.check_skewed_target(normal + 10.0) is None
    assert fit_checks.check_skewed_target(np.exp(normal)) is not None
    assert fit_checks.check_skewed_target(np.exp(normal) - 5.0) is None  # no logarithm of negative numbers


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


def test_coverage_with_a_value_that_many_rows_share():
    """Intervals hold all of these rows or none, so that more than promised is no sign of anything; less is."""
    assert prediction_checks.check_coverage({0.5: 0.64, 0.95: 0.94}, 239, atom=0.39) is None
    # One in a hundred fewer than promised is chance: these are too wide, and that is all.
    assert prediction_checks.check_coverage({0.5: 0.64, 0.95: 0.94}, 239).title == "Error bars are too wide"
    assert prediction_checks.check_coverage({0.5: 0.3, 0.95: 0.6}, 239, atom=0.39).severity == "problem"


def test_no_shape_of_distributions_with_a_value_that_many_rows_share(training, held_out):
    inputs, targets = held_out
    many = np.where(np.arange(len(targets)) % 5 == 0, 100.0, targets)
    checkup = gather_contents(make_fit(*training), inputs, many).checkup
    assert checkup.skipped["shape of predicted distributions"].startswith("one target value is so common")
    checkup = gather_contents(make_fit(*training), inputs, targets).checkup
    assert "shape of predicted distributions" in checkup.passed


def test_heavy_tails(random):
    assert prediction_checks.check_heavy_tails(random.normal(size=1000)) is None
    assert prediction_checks.check_heavy_tails(random.standard_t(2, size=1000)) is not None
    # Three rows of thousands are a curiosity.
    assert prediction_checks.check_heavy_tails(np.append(random.normal(size=5000), [5.0, -5.0, 6.0])) is None


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
    # Clear, but small: a hundredth of what is left to explain.
    many = random.normal(size=(40_000, 1))
    slight = residual_panel("b", many, ["b"], random.normal(size=40_000) + 0.1 * np.sign(many[:, 0]))
    assert prediction_checks.check_structured_residuals([slight]) is None


def test_groups_of_equal_inputs_are_not_those_of_the_table(random):
    """Rows of one value come in the order of the table, in which neighbours are alike."""
    value, neighbours = np.repeat(np.arange(10.0), 100), np.tile(np.repeat([-1.0, 1.0], 50), 10)
    panel = residual_panel("a", value[:, None], ["a"], neighbours + 0.1 * random.normal(size=1000))
    assert prediction_checks.check_structured_residuals([panel]) is None


def test_unknown_ground(random):
    inputs = random.uniform(size=(500, 2))
    assert prediction_checks.check_unknown_ground(inputs, random.uniform(size=(100, 2)), "ab") is None
    moved = random.uniform(size=(100, 2)) + np.array([0.0, 0.5])
    assert "'b', by up to 5" in prediction_checks.check_unknown_ground(inputs, moved, "ab").evidence
    assert prediction_checks.check_unknown_ground(inputs, 1.05 * random.uniform(size=(100, 2)), "ab") is None


def test_shape_of_distributions(random):
    """A PIT histogram that chance explains is no finding; skewed errors are, and so are errors of another spread."""
    assert not any(prediction_checks.check_distributions(random.normal(size=rows)) for rows in (150, 1000, 20_000))
    for errors in (random.exponential(size=1000) - 1.0, 0.5 * random.normal(size=1000)):
        finding = prediction_checks.check_distributions(errors)
        assert finding.severity == "warning"
        assert "--target-scale" in finding.shell_fix
    # Errors of half the size: of a tenth that should be below a quantile, hardly any is.
    assert int(finding.evidence.split(" %")[0]) in (*range(15), *range(85, 101))
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
    assert fit_checks.check_noise_bound(1.2, 0.0, 0.125) is None
    assert fit_checks.check_noise_bound(1.2, 0.0, 0.01).title == "Noise explains everything"


def test_harmful_inputs():
    entries = [
        Importance("good", 2.0, 0.1, 0.2),
        Importance("idle", -0.02, 0.05, 0.01),  # clear, but small
        Importance("lucky", -0.5, 0.05, 0.2),  # the same in all shuffles of these rows, but others may differ
        Importance("bad", -0.5, 0.05, 0.05),
    ]
    finding = prediction_checks.check_harmful_inputs(ImportanceTable(entries, 100, 100, 4, 5, 10.0))
    assert finding.evidence.endswith("smaller: 'bad'.")
    assert "--drop" in finding.shell_fix
    assert prediction_checks.check_harmful_inputs(ImportanceTable(entries[:3], 100, 100, 3, 5, 10.0)) is None


def advice():
    """What to do, of each finding in the sources: for Python, and for the shell, which may be the same."""
    for module in (prediction_checks, fit_checks):
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "Finding":
                texts = [ast.unparse(each) for each in call.args[3:]]
                yield texts[0], texts[-1]


def test_advice_in_the_shell_names_options_that_there_are():
    commands = typer.main.get_command(cli.app).commands
    options = {name: {o for each in command.params for o in each.opts} for name, command in commands.items()}
    named = 0
    for _, shell in advice():
        assert not re.search(r"\w+='|feature_map|fit_auto|TableRegressor|GPRegressor", shell)
        for command, option in re.findall(r"(predict )?(--[a-z-]+)", shell):
            named += 1
            assert option in options[command.strip() or "fit"]
    assert named > 10


def test_advice_in_python_names_arguments_that_there_are():
    named = 0
    for python, _ in advice():
        assert "--" not in python
        for name, argument, value in re.findall(r"(\w+)\((\w+)=\\?'(\w+)\\?'\)", python):
            named += 1
            for owner in [TableRegressor, GPRegressor] if name[0].islower() else [finitegp.features, finitegp]:
                found = getattr(owner, name, None)
                if found is not None:
                    assert argument in inspect.signature(found).parameters
                    assert value in inspect.getdoc(found) + inspect.getsource(inspect.getmodule(found))
                    break
            else:
                pytest.fail(f"{name} of the advice does not exist")
    assert named >= 8


def test_kernels_have_no_features_that_can_die(training, held_out):
    found = gather_contents(make_fit(*training, record={"path": "kernel"}), *held_out).checkup
    assert found.skipped["dead features"] == "kernels have no features that can die"


def test_every_finding_says_what_to_do():
    findings = [
        fit_checks.check_dead_features(128, 128),
        fit_checks.check_noise_bound(1e-12),
        fit_checks.check_conditioning(math.inf, 1.0),
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


def test_copies_of_rows_do_not_make_a_column_telling():
    random = np.random.default_rng(0)
    size = random.uniform(20, 120, 40)
    inputs, targets = np.tile(size[:, None], (3, 1)), np.tile(9 * size + random.normal(0, 60, 40), 3)
    assert fit_checks.check_telling_columns(inputs, targets, ["size"]) is None
    assert fit_checks.check_telling_columns(inputs, 2 * inputs[:, 0], ["size"]) is not None
