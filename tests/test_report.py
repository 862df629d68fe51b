"""The report: its numbers against independent computations, and its page against what a browser needs."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas
import pytest
import torch
from scipy import stats
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import permutation_importance
from sklearn.linear_model import BayesianRidge

from finitegp import FeatureGP, GPRegressor
from finitegp.automatic.fit import AutoFit, fit_auto
from finitegp.data.scaling import Standardizer
from finitegp.errors import DataError
from finitegp.features import ConcatenatedFeatures, ConstantFeatures, FourierFeatures, LinearFeatures
from finitegp.report import Checkup, Finding, gather_contents, render_page, write_report
from finitegp.report.calibration import measure_calibration
from finitegp.report.contents import Curve, Importance
from finitegp.report.importance import measure_importance
from finitegp.report.residuals import find_outliers, residual_panel
from finitegp.report.subject import as_subject, measure_model

SECTIONS = (
    "doctor trained scores predicted calibration importance residuals outliers curves".split()  # noqa: SIM905
)
HOSTILE = "<script>alert(1)</script>"
HOSTILE_TARGET = "price \"in\" <b>£</b> & 'more'"


def make_fit(inputs, targets, record=None):
    """A GP on standardised rows, as ``fit_auto`` gives it, but in milliseconds."""
    inputs_scaler, target_scaler = Standardizer.fit(inputs), Standardizer.fit(targets)
    data = inputs_scaler.transform(inputs), target_scaler.transform(targets)
    columns = inputs.shape[1]
    features = ConcatenatedFeatures(
        FourierFeatures(columns, 128, length_scales=2.0 * columns**0.5, seed=0),
        LinearFeatures(columns),
        ConstantFeatures(),
    )
    model = FeatureGP(features, 0.1).double()
    model.optimize_noise(data)
    return AutoFit(model.condition(data), inputs_scaler, target_scaler, record or {})


def make_rows(rows, seed, columns=3):
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(rows, columns))
    targets = 100 + 10 * (np.sin(inputs[:, 0]) + 0.5 * inputs[:, -1] + 0.3 * random.normal(size=rows))
    return inputs, targets


@pytest.fixture(scope="module")
def training():
    return make_rows(500, seed=0)


@pytest.fixture(scope="module")
def held_out():
    return make_rows(250, seed=1)


@pytest.fixture(scope="module")
def fit(training):
    return make_fit(*training)


@pytest.fixture(scope="module")
def contents(fit, training, held_out):
    return gather_contents(
        fit,
        *held_out,
        training_inputs=training[0],
        training_targets=training[1],
        column_names=[HOSTILE, "a" * 120, "age"],
        target_name=HOSTILE_TARGET,
        history=[{"epoch": epoch, "nlml": 1.0 / epoch, "loss": 2.0} for epoch in range(1, 6)],
    )


@pytest.fixture(scope="module")
def page(contents):
    return render_page(contents)


# The numbers.


def test_scores_equal_independent_ones(contents, fit, training, held_out):
    prediction = fit.predict(held_out[0])
    mean, std = prediction.mean.numpy(), prediction.std.numpy()
    own = contents.scores[0]
    np.testing.assert_allclose(own.rmse, np.sqrt(np.mean((mean - held_out[1]) ** 2)), rtol=1e-12)
    np.testing.assert_allclose(own.mae, np.mean(np.abs(mean - held_out[1])), rtol=1e-12)
    densities = stats.norm.logpdf(held_out[1], mean, std)
    np.testing.assert_allclose(own.nlpd, -np.mean(densities), rtol=1e-12)
    np.testing.assert_allclose(own.nlpd_error, np.std(densities) / np.sqrt(250), rtol=1e-9)
    low, high = stats.norm.interval(0.9, mean, std)
    assert own.coverage[0.9] == np.mean((low <= held_out[1]) & (held_out[1] <= high))
    ridge = BayesianRidge().fit(training[0], training[1])
    linear = next(scores for scores in contents.scores if scores.name == "linear")
    # On standardised columns its weak priors differ a little.
    expected = np.sqrt(np.mean((ridge.predict(held_out[0]) - held_out[1]) ** 2))
    np.testing.assert_allclose(linear.rmse, expected, rtol=1e-3)
    baseline = next(scores for scores in contents.scores if scores.name == "mean")
    np.testing.assert_allclose(baseline.rmse, np.sqrt(np.mean((training[1].mean() - held_out[1]) ** 2)), rtol=1e-12)


def test_standard_error_of_the_rmse_is_what_repetition_shows():
    from finitegp.report.baselines import score_model

    random = np.random.default_rng(0)
    found = [score_model("m", np.zeros(200), np.ones(200), random.normal(size=200)) for _ in range(400)]
    spread = np.std([scores.rmse for scores in found])
    # The spread of 400 repetitions is itself known to 4 %.
    np.testing.assert_allclose(np.mean([scores.rmse_error for scores in found]), spread, rtol=0.15)


def test_calibration_equals_an_independent_computation(seed):
    random = np.random.default_rng(seed)
    mean, std = random.normal(size=300), random.uniform(0.5, 2.0, size=300)
    targets = mean + 1.3 * std * random.normal(size=300)
    found = measure_calibration(mean, std, targets)
    transform = np.array([stats.norm(m, s).cdf(t) for m, s, t in zip(mean, std, targets, strict=True)])
    counts = [np.sum((0.1 * k <= transform) & (transform < 0.1 * (k + 1))) for k in range(10)]
    assert found.bin_counts.tolist() == counts
    for level, observed in zip(found.nominal, found.observed, strict=True):
        low, high = stats.norm.interval(level, mean, std)
        assert observed == np.mean((low <= targets) & (targets <= high))
    assert found.bin_band == stats.binom.interval(0.95, 300, 0.1)
    low, high = stats.binom.interval(0.95, 300, 0.5)
    middle = int(np.argmin(np.abs(found.nominal - 0.5)))
    assert (found.nominal_low[middle], found.nominal_high[middle]) == (low / 300, high / 300)
    assert found.spread_rows.sum() == 300
    first = np.argsort(std)[: found.spread_rows[0]]
    np.testing.assert_allclose(found.observed_spread[0], np.sqrt(np.mean((targets - mean)[first] ** 2)), rtol=1e-12)
    assert np.all(np.diff(found.predicted_spread) > 0)


def test_bands_hold_calibrated_models_as_often_as_they_say():
    random = np.random.default_rng(0)
    inside, spread_inside = [], []
    for _ in range(100):
        std = random.uniform(0.5, 2.0, size=300)
        found = measure_calibration(np.zeros(300), std, std * random.normal(size=300))
        inside += list((found.bin_band[0] <= found.bin_counts) & (found.bin_counts <= found.bin_band[1]))
        spread_inside += list(
            (found.spread_low <= found.observed_spread) & (found.observed_spread <= found.spread_high)
        )
    # A thousand bins each; counts are whole numbers, so their band holds a little more than 95 %.
    assert 0.93 <= np.mean(inside) <= 0.98
    assert 0.93 <= np.mean(spread_inside) <= 0.97


class Wrapped(RegressorMixin, BaseEstimator):
    """A function as a fitted estimator of scikit-learn."""

    def __init__(self, function=None):
        self.function = function

    def fit(self, inputs, targets):
        return self

    def predict(self, inputs):
        return self.function(inputs)

    def __sklearn_is_fitted__(self):
        return True


def test_importance_agrees_with_scikit_learn(fit, held_out):
    subject = as_subject(fit)
    groups = {name: [number] for number, name in enumerate("abc")}
    found = measure_importance(subject.predict_mean, *held_out, groups, repeats=20, seed=0)
    peer = permutation_importance(
        Wrapped(subject.predict_mean),
        *held_out,
        scoring="neg_root_mean_squared_error",
        n_repeats=20,
        random_state=0,
    )
    ours = {entry.name: entry for entry in found.entries}
    for number, name in enumerate("abc"):
        # Both are means of twenty random shuffles.
        error = np.hypot(peer.importances_std[number], ours[name].spread) / np.sqrt(20)
        assert abs(ours[name].increase - peer.importances_mean[number]) < 4 * error + 1e-9
    assert [entry.name for entry in found.entries][:2] == ["a", "c"]


def test_columns_of_a_group_are_shuffled_together():
    random = np.random.default_rng(0)
    codes = random.integers(0, 3, size=200)
    one_hot = np.eye(3)[codes]
    seen = []

    def predict(rows):
        seen.append(rows.sum(axis=1))
        return rows @ [1.0, 2.0, 3.0]

    found = measure_importance(predict, one_hot, codes + 1.0, {"text": [0, 1, 2]})
    assert found.base_rmse == 0.0
    assert found.entries[0].increase > 0.5
    assert all(np.all(total == 1.0) for total in seen)  # never a row with two categories or none


def test_importance_of_many_inputs_finds_the_one_that_matters():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(300, 80))
    groups = {f"x{number}": [number] for number in range(80)}
    found = measure_importance(lambda rows: rows[:, 57], inputs, inputs[:, 57], groups, max_inputs=10)
    assert len(found.entries) == 10
    assert found.inputs_of == 80
    assert found.entries[0].name == "x57"


def test_mean_only_predictions_equal_full_ones(fit, held_out):
    subject = as_subject(fit)
    np.testing.assert_allclose(subject.predict_mean(held_out[0]), fit.predict(held_out[0]).mean.numpy(), rtol=1e-10)


def test_outliers_are_those_of_refits_without_the_row(training, contents, fit):
    outliers = contents.outliers
    assert outliers.source == "leave-one-out"
    assert outliers.rows == 500
    row = outliers.row_numbers[0]
    kept = np.delete(np.arange(500), row)
    scaled = fit.inputs_scaler.transform(training[0]), fit.target_scaler.transform(training[1])
    refit = fit.fitted.model.condition((scaled[0][kept], scaled[1][kept])).predict(scaled[0][[row]])
    mean = float(refit.mean) * float(fit.target_scaler.scale) + float(fit.target_scaler.mean)
    np.testing.assert_allclose(outliers.mean[0], mean, rtol=1e-8)
    np.testing.assert_allclose(outliers.std[0], float(refit.std) * float(fit.target_scaler.scale), rtol=1e-8)
    deviations = np.abs((outliers.targets - outliers.mean) / outliers.std)
    assert np.all(np.diff(deviations) <= 0)
    assert np.all(np.diff(outliers.standardized) >= 0)


def test_row_numbers_of_the_file_are_shown(fit, training, held_out):
    numbers = np.arange(500) * 7 + 3
    found = gather_contents(
        fit, *held_out, training_inputs=training[0], training_targets=training[1], training_row_numbers=numbers
    ).outliers
    assert all((number - 3) % 7 == 0 for number in found.row_numbers)
    assert training[1][(found.row_numbers[0] - 3) // 7] == found.targets[0]


def test_model_facts_equal_dense_ones(fit, training):
    facts = measure_model(as_subject(fit))
    posterior = fit.fitted.posterior
    gram, noise = posterior.statistics.gram.numpy(), posterior.noise_variance
    regularized = gram + noise * np.eye(len(gram))
    np.testing.assert_allclose(facts.effective_dimension, np.trace(np.linalg.solve(regularized, gram)), rtol=1e-8)
    np.testing.assert_allclose(facts.condition_number, np.linalg.cond(regularized), rtol=1e-6)
    scaled = torch.from_numpy(fit.inputs_scaler.transform(training[0]))
    features = fit.fitted.model.feature_map(scaled).numpy()
    covariance = float(fit.target_scaler.scale) ** 2 * (features @ features.T + noise * np.eye(500))
    density = stats.multivariate_normal(np.full(500, float(fit.target_scaler.mean)), covariance).logpdf(training[1])
    np.testing.assert_allclose(facts.nlml, -density / 500, rtol=1e-9)


def test_dead_features_are_counted():
    class HalfDead(torch.nn.Module):
        num_features = 4

        def forward(self, inputs):
            return torch.cat([inputs, 0.0 * inputs], dim=1)

    fitted = FeatureGP(HalfDead(), 0.1).condition((np.random.default_rng(0).normal(size=(30, 2)), np.arange(30.0)))
    assert measure_model(as_subject(fitted)).dead_features == 2


def test_residual_panels_of_numbers_and_categories():
    random = np.random.default_rng(0)
    numbers, residuals = random.normal(size=(1000, 1)), random.normal(size=1000)
    panel = residual_panel("age", numbers, ["age"], residuals)
    assert panel.categories is None
    assert len(panel.values) == 400
    order = np.argsort(numbers[:, 0])
    np.testing.assert_allclose(panel.local_mean[0], residuals[order[: -(-1000 // 12)]].mean(), rtol=1e-12)
    codes = random.integers(0, 3, size=1000)
    one_hot = np.eye(4)[codes]  # the fourth category does not occur
    panel = residual_panel("color", one_hot, ["color=red", "color=green", "color=blue", "color=grey"], residuals)
    assert panel.categories == ["red", "green", "blue"]
    np.testing.assert_allclose(panel.local_mean, [residuals[codes == k].mean() for k in range(3)], rtol=1e-12)
    panel = residual_panel("doors", codes[:, None].astype(float), ["doors"], residuals)
    assert panel.categories == ["0", "1", "2"]


def test_columns_that_belong_together_but_are_no_categories():
    """The parts of a date, or a number with a column that says where it was missing."""
    random = np.random.default_rng(0)
    months, days = random.integers(1, 13, size=500), random.integers(1, 32, size=500)
    columns = np.column_stack([months, days]).astype(float)
    residuals = random.normal(size=500)
    panel = residual_panel("date", columns, ["date month", "date day"], residuals)
    assert (panel.name, panel.categories) == ("date day", None)
    inputs, names = np.column_stack([np.zeros(500), columns]), ["month", "day"]
    found = find_outliers(
        "held-out",
        np.zeros(500),
        np.ones(500),
        residuals,
        inputs,
        [("date", [1, 2], names)],
        np.arange(500),
        rows_of=500,
    )
    row = found.row_numbers[0]
    assert found.values[0] == [f"{months[row]}, {days[row]}"]


# The doctor, on whole fits.


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


def test_the_window_is_judged_from_the_record_of_a_real_fit():
    inputs, targets = make_rows(300, seed=2)
    settings = {"small_rows": 100, "members": 2, "hidden": [16], "epochs": 2, "min_steps": 60, "noise_epochs": 2}
    fitted = fit_auto(inputs[:200], targets[:200], effort="low", settings=settings | {"window": 10})
    assert "window" in gather_contents(fitted, inputs[200:], targets[200:]).checkup.passed
    fitted.record["settings"]["window"] = 50
    checkup = gather_contents(fitted, inputs[200:], targets[200:]).checkup
    assert "Window is too large" in {finding.title for finding in checkup.findings}


# Inputs of all kinds.


def test_a_bare_fitted_gp_without_training_rows(fit, held_out):
    scaled = fit.inputs_scaler.transform(held_out[0]), fit.target_scaler.transform(held_out[1])
    found = gather_contents(fit.fitted, *scaled)
    assert [scores.name for scores in found.scores] == ["this model"]
    assert found.outliers.source == "held-out"
    assert "leakage: shared rows" in found.checkup.skipped
    assert set(found.remarks) == {"scores", "outliers", "curves"}
    text = render_page(found)
    assert "training rows were not given" in text


class Estimator:
    """What the report needs of an estimator: two targets, of which the second is asked for."""

    def __init__(self, fits):
        self.fits_ = fits
        self.n_features_in_ = 3
        self.feature_names_in_ = np.array(["one", "two", "three"])
        self.training_summary_ = {"rows": 500}

    def predict(self, inputs, return_std=False):
        predictions = [fit.predict(inputs) for fit in self.fits_]
        mean, std = (np.stack([getattr(p, name).numpy() for p in predictions], axis=1) for name in ("mean", "std"))
        return (mean, std) if return_std else mean


def test_an_estimator_with_several_targets(fit, training, held_out):
    estimator = Estimator([make_fit(training[0], -training[1]), fit])
    both = np.column_stack([-held_out[1], held_out[1]])
    found = gather_contents(estimator, held_out[0], both, target_index=1)
    direct = gather_contents(fit, *held_out, column_names=["one", "two", "three"])
    assert found.scores == direct.scores
    assert found.importance == direct.importance
    assert found.facts["Made with"] == "Estimator"
    with pytest.raises(DataError, match="target_index is 2"):
        gather_contents(estimator, held_out[0], both, target_index=2)


def test_the_regressor_with_named_columns(training, held_out, recwarn):
    names = ["one", "two", "three"]
    frame, other = (pandas.DataFrame(inputs, columns=names) for inputs, _ in (training, held_out))
    regressor = GPRegressor(feature_map="mlp", epochs=3, random_state=0).fit(frame, training[1])
    found = gather_contents(
        regressor, other, held_out[1], training_inputs=frame, training_targets=training[1], target_name="wear"
    )
    mean, _ = regressor.predict(other, return_std=True)
    np.testing.assert_allclose(found.scores[0].rmse, np.sqrt(np.mean((mean - held_out[1]) ** 2)), rtol=1e-9)
    assert {entry.name for entry in found.importance.entries} == set(names)
    assert found.outliers.source == "leave-one-out"
    assert found.facts["Made with"] == "GPRegressor"
    assert [curve.panel for curve in found.curves]
    assert not [warning for warning in recwarn if "feature names" in str(warning.message)]
    check_well_formed(render_page(found))


def test_an_estimator_that_shows_no_posterior(fit, held_out):
    estimator = Estimator([fit])
    del estimator.fits_
    estimator.predict = lambda inputs, return_std=True: tuple(
        getattr(fit.predict(inputs), name).numpy() for name in ("mean", "std")
    )
    found = gather_contents(estimator, *held_out)
    assert found.scores[0] == gather_contents(fit, *held_out).scores[0]
    assert "conditioning" in found.checkup.skipped
    check_well_formed(render_page(found))


@pytest.mark.parametrize(
    ("rows", "columns"), [((40, 20), 1), ((500, 1), 2), ((250, 50), 200)], ids=["one column", "one row", "wide"]
)
def test_odd_tables(rows, columns):
    training, held_out = (make_rows(count, seed, columns) for seed, count in enumerate(rows))
    found = gather_contents(make_fit(*training), *held_out, training_inputs=training[0], training_targets=training[1])
    check_well_formed(render_page(found))


def test_errors_say_what_to_do(fit, held_out):
    with pytest.raises(TypeError, match="FittedGP, the outcome of fit_auto"):
        gather_contents(object(), *held_out)
    with pytest.raises(DataError, match="column_names are 2"):
        gather_contents(fit, *held_out, column_names=["a", "b"])
    with pytest.raises(DataError, match="'a' twice"):
        gather_contents(fit, *held_out, column_names=["a", "b", "a"])
    with pytest.raises(DataError, match="no such column"):
        gather_contents(fit, *held_out, column_groups={"color": ["red"]})
    with pytest.raises(ValueError, match="both, or neither"):
        gather_contents(fit, *held_out, training_inputs=held_out[0])


# The page.


class Parser(HTMLParser):
    """Collects tags with their attributes, and checks that all are closed in order."""

    VOID = frozenset({"meta", "br", "path", "rect"})

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.text = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text.append(data)


def parse(text):
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert not parser.open
    return parser


def check_well_formed(text):
    parser = parse(text)
    identifiers = [attributes["id"] for _, attributes in parser.tags if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)
    for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        root = ElementTree.fromstring(drawing)
        for path in root.iter("path"):
            assert re.fullmatch(r"[MLHVZhv0-9. \-]+", path.get("d"))
    visible = " ".join(parser.text)
    assert not re.search(r"\b(nan|inf|None)\b", visible, re.IGNORECASE)
    return parser


def test_page_is_well_formed(page):
    check_well_formed(page)


def test_page_refers_to_nothing_outside(page):
    parser = parse(page)
    allowed = {"a": "#", "clippath": "#"}
    for tag, attributes in parser.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "base", "form", "image", "use"}
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in {"href", "src", "srcset", "action", "data", "xlink:href", "poster"}:
                assert value.startswith(allowed.get(tag, " no reference is allowed here"))
    assert not re.search(r"https?:|@import|//[a-z]", page)
    assert all(reference.startswith("#") for reference in re.findall(r"url\(([^)]*)\)", page))
    policy = next(a["content"] for tag, a in parser.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_page_has_all_sections_and_links_to_them(page):
    parser = parse(page)
    sections = [attributes["id"] for tag, attributes in parser.tags if tag == "section"]
    links = [attributes["href"][1:] for tag, attributes in parser.tags if tag == "a"]
    assert sections == links == SECTIONS


def test_names_are_escaped(page):
    parser = parse(page)
    assert "<script" not in page
    assert "<b>" not in page
    text = "".join(parser.text)
    assert HOSTILE in text
    assert HOSTILE_TARGET in text
    # Inside attributes too: a quote would end one and begin another.
    known = {
        "id",
        "class",
        "scope",
        "aria-label",
        "aria-labelledby",
        "tabindex",
        "role",
        "href",
        "d",
        "lang",
        "charset",
    }
    known |= {"name", "content", "http-equiv", "viewbox", "x", "y", "width", "height", "text-anchor", "transform"}
    assert {name for _, attributes in parser.tags for name in attributes} <= known | {"clip-path"}


def test_every_text_is_escaped(contents):
    names = ["text", *SECTIONS]
    outliers = dataclasses.replace(
        contents.outliers, values=[[HOSTILE]] * len(contents.outliers.values), value_names=[HOSTILE]
    )
    panel = dataclasses.replace(
        contents.residual_panels[0], name=HOSTILE, categories=[HOSTILE] * len(contents.residual_panels[0].centers)
    )
    hostile = dataclasses.replace(
        contents,
        title=HOSTILE,
        target_name=HOSTILE,
        facts={HOSTILE: HOSTILE, "Training rows": HOSTILE, "Versions": HOSTILE},
        settings={HOSTILE: HOSTILE},
        scores=[dataclasses.replace(scores, name=HOSTILE) for scores in contents.scores],
        by_level=panel,
        curves=[Curve(HOSTILE, HOSTILE, [1.0, 2.0], [1.0, 2.0])],
        outliers=outliers,
        residual_panels=[panel],
        importance=dataclasses.replace(contents.importance, entries=[Importance(HOSTILE, 1.0, 0.1)]),
        checkup=Checkup([Finding("note", HOSTILE, HOSTILE, HOSTILE)], [HOSTILE], {HOSTILE: HOSTILE}),
        remarks=dict.fromkeys(names, HOSTILE),
    )
    text = render_page(hostile)
    assert "<script" not in text
    check_well_formed(text)


def test_charts_can_be_read_without_seeing_them(page):
    parser = parse(page)
    drawings = [attributes for tag, attributes in parser.tags if tag == "svg"]
    identifiers = {attributes["id"] for _, attributes in parser.tags if "id" in attributes}
    assert len(drawings) >= 9
    for attributes in drawings:
        assert attributes["role"] == "img"
        assert set(attributes["aria-labelledby"].split()) <= identifiers
    assert page.count("<summary>Numbers as a table</summary>") == len(drawings)


def test_samples_are_named_as_such_and_reproducible(fit):
    inputs, targets = make_rows(3000, seed=3)
    found = gather_contents(fit, inputs, targets)
    text = render_page(found)
    assert "A random sample of 500 of 3,000 held-out rows" in text
    assert "between 1,000 of 3,000" in text
    assert len(text) < 300_000
    again = gather_contents(fit, inputs, targets)
    again.facts["Time to predict"] = found.facts["Time to predict"]  # the only thing that may differ
    assert render_page(again) == text


def test_training_curves_of_one_run_and_of_several(contents, fit, held_out):
    assert [(curve.panel, curve.values[-1]) for curve in contents.curves] == [("exact NLML per row", 0.2)]
    runs = {f"network {k}": [{"epoch": e, "noise_variance": 1.0 / e} for e in (1, 2, 3)] for k in (1, 2)}
    several = AutoFit(fit.fitted, fit.inputs_scaler, fit.target_scaler, {"history": runs})
    found = gather_contents(several, *held_out)
    assert [(curve.panel, curve.name) for curve in found.curves] == [
        ("noise variance", "network 1"),
        ("noise variance", "network 2"),
    ]
    assert "Training curve: noise variance" in render_page(found)


def test_contents_are_json(contents):
    stored = json.dumps(contents.to_dict(), allow_nan=False)
    assert json.loads(stored)["scores"][0]["name"] == "this model"


# The file.


def test_write_is_whole_or_nothing_and_does_not_overwrite(contents, page, tmp_path, monkeypatch):
    path = write_report(contents, tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == page
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="force=True"):
        write_report(contents, path)
    assert path.read_text() == "mine"

    def fail(*arguments):
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("os.replace", fail)
        with pytest.raises(OSError, match="no space left"):
            write_report(contents, path, force=True)
    assert path.read_text() == "mine"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert write_report(contents, path, force=True).read_text(encoding="utf-8") == page
    with pytest.raises(FileNotFoundError, match="There is no folder"):
        write_report(contents, tmp_path / "none" / "report.html")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write_report(contents, tmp_path, force=True)
