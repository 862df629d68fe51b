"""``TableRegressor``: tables in, predictions in the target's units out; what scikit-learn expects; files; rows."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from table_frames import linear, make_frame

from finitegp import DataError, GPRegressor, TableRegressor, coverage_scorer, crps_scorer, nlpd_scorer
from finitegp.features import LinearFeatures
from finitegp.tables.judging import fit_and_judge


@pytest.fixture(scope="module")
def frame():
    return make_frame()


@pytest.fixture(scope="module")
def model(frame):
    return linear(random_state=0, target_scale="identity").fit(frame, target="price")


def test_every_kind_of_table_gives_the_same_model(frame, model, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    pa.feather.write_feather(pa.Table.from_pandas(frame), tmp_path / "t.feather")
    expected = model.predict(frame)
    inputs, price = frame.drop(columns="price"), frame["price"]
    tables = [pl.from_pandas(frame), pa.table(frame), dict(frame), tmp_path / "t.csv", tmp_path / "t.parquet"]
    for table in [*tables, tmp_path / "t.feather"]:
        made = clone(model).fit(table, target="price")
        np.testing.assert_allclose(made.predict(table), expected, rtol=1e-9)
    given = clone(model).fit(inputs, price)
    assert given.target_ == "price"
    np.testing.assert_allclose(given.predict(inputs), expected, rtol=1e-9)
    assert given.evaluate(frame).rmse == pytest.approx(model.evaluate(frame).rmse)
    # The target among the inputs is not an input.
    np.testing.assert_allclose(clone(model).fit(frame, price).predict(inputs), expected, rtol=1e-9)


def test_predictions_are_those_of_the_regressor(frame, model):
    inputs = model.encoder_.transform(frame)
    for ours, theirs in zip(
        model.predict(frame, return_std=True), model.regressor_.predict(inputs, return_std=True), strict=True
    ):
        assert np.array_equal(ours, theirs)
    lower, upper = model.predict_interval(frame, coverage=[0.5, 0.9])
    assert lower.shape == upper.shape == (80, 2)
    for column, coverage in enumerate((0.5, 0.9)):
        ends = model.regressor_.predict_interval(inputs, coverage)
        assert np.array_equal(lower[:, column], ends[0])
        assert np.array_equal(model.predict_interval(frame, coverage)[1], ends[1])
    # Several coverages, mean and deviation come from one prediction each.
    calls = []
    original = type(model.regressor_.fits_[0]).predict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(model.regressor_.fits_[0]), "predict", lambda *args, **kw: calls.append(1) or original(*args, **kw)
        )
        model.predict_interval(frame, coverage=[0.5, 0.8, 0.9])
        next(model.predict_chunks(frame))
        model.evaluate(frame)
    assert len(calls) == 3
    np.testing.assert_allclose(
        model.log_density(frame), model.regressor_.log_density(inputs, frame["price"].to_numpy()), rtol=1e-12
    )


def test_the_target_on_another_scale_comes_back_in_its_own_units(frame):
    skewed = frame.assign(price=np.exp(frame["price"] / 10))
    model = linear(target_scale="log", random_state=0).fit(skewed, target="price")
    plain = linear(target_scale="identity", random_state=0).fit(
        skewed.assign(price=np.log(skewed["price"])), target="price"
    )
    lower, upper = model.predict_interval(skewed, 0.9)
    for ours, logarithm in zip((lower, upper), plain.predict_interval(skewed, 0.9), strict=True):
        np.testing.assert_allclose(ours, np.exp(logarithm), rtol=1e-9)
    assert (lower > 0.0).all()
    log_mean, log_std = plain.predict(skewed, return_std=True)
    mean, std = model.predict(skewed, return_std=True)
    expected = stats.lognorm(log_std, scale=np.exp(log_mean))
    np.testing.assert_allclose(mean, expected.mean(), rtol=1e-3)
    np.testing.assert_allclose(std, expected.std(), rtol=2e-2)
    price = skewed["price"].to_numpy()
    np.testing.assert_allclose(model.log_density(skewed), expected.logpdf(price), rtol=1e-6)
    assert model.log_density(skewed.assign(price=-1.0))[0] == -np.inf


def test_predictions_of_a_target_that_was_never_negative_are_not(frame):
    small = frame.assign(price=np.abs(np.random.default_rng(0).normal(size=80)))
    model = linear(target_scale="identity").fit(small, target="price")
    assert (model.predict_interval(small, 0.99)[0] >= 0.0).all()
    # A line that is continued below zero.
    falling = TableRegressor(target_scale="identity", only=["size"], effort="low", random_state=0)
    falling.fit(frame.assign(price=6.0 - frame["size"]), target="price")
    mean, lower = falling.predict({"size": [9.0]}), falling.predict_interval({"size": [9.0]})[0]
    assert (mean == 0.0).all()
    assert (lower == 0.0).all()
    negative = linear(target_scale="identity").fit(small.assign(price=small["price"] - 1.0), target="price")
    assert (negative.predict_interval(small, 0.99)[0] < 0.0).any()


def test_rows_without_a_target_are_left_out_and_counted(frame, tmp_path):
    gaps = frame.copy()
    gaps.loc[[3, 50], "price"] = np.nan
    gaps.to_csv(tmp_path / "t.csv", index=False)
    model = linear(target_scale="identity").fit(tmp_path / "t.csv", target="price")
    assert model.rows_ == 78
    assert any("missing in 2 of 80 rows, first in line 5 of" in note for note in model.notes_)
    expected = linear(target_scale="identity").fit(gaps.dropna(), target="price")
    np.testing.assert_allclose(model.predict(frame), expected.predict(frame), rtol=1e-9)
    with pytest.warns(UserWarning, match="missing in 2 of 80 rows, first in row 3: these rows are left out"):
        scores = model.evaluate(gaps)
    assert scores.rmse == pytest.approx(model.evaluate(gaps.dropna()).rmse)
    with pytest.warns(UserWarning, match="left out"):
        model.update(gaps)
    assert model.rows_ == 156
    with pytest.warns(UserWarning, match="left out"):
        assert model.statistics(gaps).rows == 78
    assert np.isnan(model.log_density(gaps)[[3, 50]]).all()
    with pytest.raises(DataError, match="rows_without_target='drop'") as caught:
        linear(rows_without_target="error").fit(gaps, target="price")
    assert caught.value.code == "rows_without_target"


def test_new_rows_with_gaps_and_new_categories_are_never_better_known(frame, model):
    new = frame.drop(columns="price")
    with pytest.warns(UserWarning, match=r"'size': 80 of 80 values were missing"):
        mean, std = model.predict(new.assign(size=np.nan), return_std=True)
    # The mixture over sizes that the fit saw: its spread is there, and no single one is less certain.
    assert np.isfinite(mean).all()
    for size in (frame["size"].min(), frame["size"].median(), frame["size"].max()):
        assert (std > 0.99 * model.predict(new.assign(size=size), return_std=True)[1]).all()
    assert std.min() > 0.5 * 10 * frame["size"].std()
    with pytest.warns(UserWarning, match=r"'cut': 80 of 80 values are categories .* such as 'z'"):
        unseen_mean, unseen = model.predict(new.assign(cut="z"), return_std=True)
    for cut in "abc":
        assert (unseen >= model.predict(new.assign(cut=cut), return_std=True)[1]).all()
    # Intervals and densities claim the same.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lower, upper = model.predict_interval(new.assign(cut="z"), 0.9)
        density = model.log_density(new.assign(cut="z"), unseen_mean)
    np.testing.assert_allclose((upper + lower) / 2, unseen_mean, rtol=1e-9)
    np.testing.assert_allclose(density, -np.log(unseen * np.sqrt(2 * np.pi)), rtol=1e-6)
    np.testing.assert_allclose(upper - lower, 2 * stats.norm.ppf(0.95) * unseen, rtol=1e-6)


@pytest.mark.parametrize("scale", ["identity", "log", "square root", "yeo-johnson"])
def test_quantiles_are_the_ends_of_intervals(frame, scale):
    model = linear(target_scale=scale).fit(frame, target="price")
    coverages = [0.1, 0.5, 0.9, 0.999]
    levels = [0.5 - 0.5 * each for each in coverages] + [0.5 + 0.5 * each for each in coverages]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of categories that are new
        for table in (frame, frame.assign(cut="z")):
            found = model.quantile(table, levels)
            lower, upper = model.predict_interval(table, coverages)
            np.testing.assert_allclose(found, np.hstack([lower, upper]), rtol=1e-12)
            assert np.array_equal(model.quantile(table, levels[0]), found[:, 0])
    for wrong in (0.0, 1.0, [], [0.5, 1.5], float("nan")):
        with pytest.raises(ValueError, match="level must be"):
            model.quantile(frame, wrong)
    with pytest.raises(ValueError, match="level must be"):
        model.quantile(frame, "median")


@pytest.mark.parametrize("scale", ["identity", "log"])
@pytest.mark.parametrize("make", [linear, lambda **each: TableRegressor(effort="low", random_state=0, **each)])
def test_samples_have_the_predicted_intervals(frame, scale, make):
    """In the target's units, also of rows that hold something new."""
    model = make(target_scale=scale).fit(frame, target="price")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = frame[:6].assign(size=[9.0, *frame["size"][1:6]], cut=["a", "b", "z", "c", "z", "a"])
        samples = model.sample_y(table, n_samples=20_000, random_state=3)
        assert samples.shape == (6, 20_000)
        assert np.array_equal(samples, model.sample_y(table, n_samples=20_000, random_state=3))
        for level, quantiles in zip((0.05, 0.5, 0.9), model.quantile(table, [0.05, 0.5, 0.9]).T, strict=True):
            np.testing.assert_allclose((samples <= quantiles[:, None]).mean(axis=1), level, atol=0.015)
        lower, upper = model.predict_interval(table, 0.8)
        inside = (lower[:, None] < samples) & (samples < upper[:, None])
        np.testing.assert_allclose(inside.mean(axis=1), 0.8, atol=0.015)


def test_samples_of_rows_are_correlated(frame, model):
    """Rows that are known no better than each other: what they have in common is off in the same direction."""
    far = frame[:2].assign(size=[400.0, 401.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = model.sample_y(far, n_samples=2000)
    assert np.corrcoef(one, other)[0, 1] > 0.9
    assert model.sample_y(frame).shape == (80, 1)
    with pytest.raises(ValueError, match="n_samples must be at least 1, but is 0"):
        model.sample_y(frame, n_samples=0)


def test_values_outside_of_the_fit_are_told(frame, model):
    low, high = frame["size"].min(), frame["size"].max()
    told = rf"'size': 1 of 80 values lie outside of what the fit saw, {low:.6g} to {high:.6g}, the farthest, 99, by "
    with pytest.warns(UserWarning, match=f"{told}{100 * (99 - high) / (high - low):.0f} % of that range"):
        model.predict(frame.assign(size=[99.0, *frame["size"][1:]]))
    with pytest.warns(UserWarning, match=r"'day': 80 of 80 values lie outside .* the farthest, 2100-01-01"):
        model.predict(frame.assign(day="1.1.2100"))


def test_what_is_outside_is_known_for_each_row_and_column():
    table = make_frame(60).drop(columns="day").assign(same=1.0)
    model = TableRegressor(effort="low", random_state=0).fit(table, target="price")
    assert model.feature_names_in_.tolist() == ["size", "cut", "same"]
    assert not model.outside(table).any()
    new = table.head(4).assign(size=[3.0, 9.0, 3.0, -9.0], cut=["a", "b", "z", "z"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of just this
        found = model.outside(new)
    unit = table["size"].std(ddof=0)
    low, high = ((table["size"].min() + 9.0) / unit, (9.0 - table["size"].max()) / unit)
    np.testing.assert_allclose(found[[1, 3], 0], [high, low], rtol=0.02)  # a little less: neighbours are close by
    np.testing.assert_array_equal(found[:, 1:], [[0.0, 0.0], [0.0, 0.0], [np.inf, 0.0], [np.inf, 0.0]])
    assert found[[0, 2], 0].tolist() == [0.0, 0.0]
    (chunk,) = model.predict_chunks(new, outside=True)
    assert chunk.outside == ["", f"size: {found[1, 0]:.2g}", "cut: new", f"cut: new; size: {found[3, 0]:.2g}"]
    assert next(model.predict_chunks(new)).outside is None
    with pytest.raises(DataError, match="after automatic fits only"):
        linear().fit(make_frame(), target="price").outside(make_frame())


def test_copies_are_counted_and_stay_on_one_side_of_a_split(frame):
    twice = pd.concat([frame, frame.iloc[:10]], ignore_index=True)
    model = linear(target_scale="identity").fit(twice, target="price")
    assert any(
        note.startswith("10 of 90 training rows are copies of another in all columns (row 80 of row 0")
        for note in model.notes_
    )
    fit = fit_and_judge(linear(target_scale="identity"), pd.concat([frame] * 2, ignore_index=True), "price")
    assert fit.held_out_rows == 32
    assert fit.model.rows_ == 160


def test_rows_are_forgotten_and_a_wrong_one_changes_nothing(frame):
    model = linear(target_scale="identity", random_state=0).fit(frame, target="price")
    before, few = model.predict(frame), frame.iloc[:7]
    model.forget(few)
    assert model.rows_ == len(frame) - 7
    assert not np.allclose(model.predict(frame), before, rtol=1e-9)
    model.update(few)
    np.testing.assert_allclose(model.predict(frame), before, rtol=1e-6)
    np.testing.assert_allclose(
        model.forget(few.drop(columns="price"), few["price"]).update(few).predict(frame), before, rtol=1e-6
    )
    wrong = few.assign(price=[1.0, 2.0, np.inf, 1.0, 1.0, 1.0, 1.0])
    for change in (model.update, model.forget):
        with pytest.raises(DataError):
            change(wrong)
    assert model.rows_ == len(frame)


def test_scikit_learn_tools_take_it(frame):
    inputs, price = frame.drop(columns="price"), frame["price"]
    model = linear(target_scale="identity", random_state=0)
    assert (cross_val_score(model, inputs, price, cv=3) > 0.9).all()
    for scorer in (nlpd_scorer, crps_scorer, coverage_scorer):
        assert np.isfinite(cross_val_score(model, inputs, price, cv=2, scoring=scorer)).all()
    search = GridSearchCV(model, {"target_scale": ["identity", "log"]}, cv=2).fit(inputs, price)
    assert search.best_params_["target_scale"] in ("identity", "log")
    pipeline = Pipeline([("model", model)]).fit(inputs, price)
    found = permutation_importance(pipeline, inputs, price, n_repeats=2, random_state=0)
    assert found.importances_mean[0] > found.importances_mean[1] > found.importances_mean[2]
    assert clone(model).get_params()["target_scale"] == "identity"
    assert list(pipeline[-1].feature_names_in_) == ["size", "cut", "day"]
    assert pipeline.predict(pl.from_pandas(inputs)).shape == (80,)


def test_files_keep_everything(frame, tmp_path):
    table = frame.assign(price=[f"$ {value:,.2f}" for value in 1000 * frame["price"]], town=["x", "y"] * 40)
    model = linear(target_scale="log", categorical=["town"], random_state=0, feature_map=LinearFeatures(11)).fit(
        table, target="price"
    )
    model.save(tmp_path / "m.finitegp")
    again = TableRegressor.load(tmp_path / "m.finitegp")
    assert (again.scale_, again.target_, again.categorical) == (model.scale_, "price", ["town"])
    assert np.array_equal(again.predict(table), model.predict(table))
    assert again.evaluate(table) == model.evaluate(table)
    assert again.columns_ == model.columns_
    assert again.update(table).rows_ == 160


def test_weights_drop_and_only(frame):
    weighted = frame.assign(times=[2.0, *[1.0] * 79])
    model = linear(weight="times", target_scale="identity").fit(weighted, target="price")
    assert model.rows_ == 81
    assert "times" not in [line.column for line in model.columns_]
    assert [
        line.column for line in linear(only=["size"], feature_map=LinearFeatures(1)).fit(frame, target="price").columns_
    ] == ["size"]
    assert "day" not in [
        line.column for line in linear(drop=["day"], feature_map=LinearFeatures(4)).fit(frame, target="price").columns_
    ]
    with pytest.raises(DataError, match="no column 'sizes'"):
        linear(drop=["sizes"]).fit(frame, target="price")
    with pytest.raises(ValueError, match="drop must be a list of columns"):
        linear(drop="day").fit(frame, target="price")


def test_weights_of_rows_that_come_later(frame, tmp_path):
    weighted = frame.assign(times=np.arange(80) % 3.0)
    repeated = frame.loc[np.repeat(frame.index, np.arange(80) % 3)]
    model = linear(weight="times", target_scale="identity").fit(weighted, target="price")
    model.save(tmp_path / "model.finitegp")
    expected = TableRegressor.load(tmp_path / "model.finitegp").set_params(weight=None).update(repeated)
    found = TableRegressor.load(tmp_path / "model.finitegp").update(weighted)
    assert found.rows_ == expected.rows_ == 2 * (80 // 3 * 3 + 1)
    np.testing.assert_allclose(found.predict(frame), expected.predict(frame), rtol=1e-9)
    site = TableRegressor.load(tmp_path / "model.finitegp").statistics(weighted)
    assert site.statistics.num_data == len(repeated)
    with pytest.raises(DataError, match="The rows have no column 'times', which held the weights"):
        model.update(frame)
    with pytest.raises(DataError, match="The weight 'times' is missing or negative in row 1"):
        model.update(weighted.assign(times=[1.0, *[-1.0] * 79]))


def test_weights_that_are_no_numbers_are_called_weights(frame):
    kinds = {
        "town": (["here"] * 80, "must be numbers, but row 0 holds 'here'"),
        "when": (pd.date_range("2020-01-01", periods=80), "holds dates or times"),
        "times": ([np.inf] + [1.0] * 79, "is infinite in 1 of 80 rows, first in row 0"),
        "lists": ([[1]] * 80, "has the type list.*, but must be numbers"),
    }
    for name, (values, problem) in kinds.items():
        with pytest.raises(DataError, match=rf"^The weight '{name}' {problem}.*: correct .* as weight\.$"):
            linear(weight=name).fit(frame.assign(**{name: values}), target="price")
    with pytest.raises(DataError, match=r"^The target 'town' must be numbers, but row 0 holds 'here'.* target\.$"):
        linear().fit(frame.assign(town=["here"] * 80), target="town")
    model = linear(weight="times").fit(frame.assign(times=1.0), target="price")
    with pytest.raises(DataError, match=r"^The weight 'times'.* as weight\.$"):
        model.update(frame.assign(times=["here"] * 80))


def test_weights_that_make_no_sense(frame):
    for weights, message in (
        ([1.0, 2.0], r"one number for each of 80 rows, but has shape \(2,\)"),
        ([-1.0] + [1.0] * 79, r"must be finite and not negative, but is -1.0 in row 0"),
        ([1.0] * 79 + [np.nan], r"must be finite and not negative, but is nan in row 79"),
        ([0.0] * 80, "zero in every row"),
        (["a"] * 80, "but is 'a' in row 0"),
    ):
        with pytest.raises(ValueError, match=f"sample_weight .*{message}"):
            linear().fit(frame, target="price", sample_weight=weights)
    with pytest.raises(ValueError, match="either sample_weight or the column 'size' as weight"):
        linear(weight="size").fit(frame, target="price", sample_weight=np.ones(80))


def test_held_out_rows_are_taken_in_with_their_weights(frame):
    weighted = frame.assign(times=1.0 + np.arange(80) % 3)
    judged = fit_and_judge(linear(weight="times", target_scale="identity"), weighted, "price")
    assert judged.held_out_rows == 16
    assert judged.model.rows_ == weighted["times"].sum()


def test_mistakes(frame):
    with pytest.raises(DataError, match="pass y, or target='NAME'"):
        linear().fit(frame)
    with pytest.raises(DataError, match=r"no column 'prise' .*did you mean 'price'"):
        linear().fit(frame, target="prise")
    with pytest.raises(DataError, match="'cut' must be numbers, but row 0 holds"):
        linear().fit(frame, target="cut")
    with pytest.raises(ValueError, match="y must have one number for each of 80 rows"):
        linear().fit(frame, [1.0, 2.0])
    with pytest.raises(DataError, match=r"y must be .*, but is '3 kg' in row 0: pass the table with this column"):
        linear().fit(frame, ["3 kg"] * 80)
    for times in (pd.to_timedelta(np.arange(80), unit="h"), pd.date_range("2020", periods=80), np.full(80, 1j)):
        with pytest.raises(DataError, match=r"y must be one number per row, but holds (timedelta|datetime|complex)"):
            linear().fit(frame, times)
    with pytest.raises(ValueError, match="target_scale must be"):
        linear(target_scale="cube").fit(frame, target="price")
    with pytest.raises(ValueError, match=r"drop must be a list of columns, but is 'cut': write \['cut'\]"):
        linear(drop="cut").fit(frame, target="price")
    for table in (frame, pl.from_pandas(frame)):
        with pytest.raises(DataError, match=r"'cut' holds text or dates .*TableRegressor takes tables"):
            GPRegressor().fit(table, frame["price"])


def test_rows_are_counted_with_those_that_have_no_target(frame, model):
    odd = frame.astype({"size": object})
    odd.loc[0, "price"], odd.loc[5, "size"] = np.nan, "odd"
    for use in (model.evaluate, model.log_density, model.update):
        with pytest.raises(DataError, match="Column 'size', row 5 holds 'odd'"):
            use(odd)
    far = frame.copy()
    far.loc[0, "price"], far.loc[5, "size"] = np.nan, 1e9
    assert any(
        "'size': row 5 holds a value that is absurdly far" in note for note in linear().fit(far, target="price").notes_
    )


def test_a_target_with_many_zeros_is_named(frame):
    zeros = frame.assign(price=np.where(np.arange(80) % 3 == 0, 0.0, frame["price"]))
    model = linear(target_scale="auto").fit(zeros, target="price")
    assert any("is exactly 0 in 34 % of the rows" in note for note in model.notes_)
    assert np.isfinite(model.log_density(zeros)).all()
