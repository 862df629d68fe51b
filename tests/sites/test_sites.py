"""Sites that share sums instead of rows: the joint posterior is that of the pooled rows, and wrong sums are refused."""

from __future__ import annotations

import copy
import math
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from reference import DenseGP
from site_tables import COUNTS, make_model, make_table

from finitegp import DataError, GPRegressor
from finitegp.component import student_component
from finitegp.conformal import ConformalScores
from finitegp.error_shape import ErrorShape
from finitegp.features import LinearFeatures
from finitegp.persistence.gps import encode_statistics
from finitegp.sites import SiteStatistics
from finitegp.tables.encoder import TableEncoder
from finitegp.tables.model import TableRegressor
from finitegp.tables.reader import TableReader


def pooled(*tables):
    return {name: np.concatenate([np.asarray(table[name]) for table in tables]) for name in tables[0]}


def dense_joint(model, table, new):
    """Mean and variance of new observations by the textbook, from all rows in one n x n matrix."""
    fit = model.regressor_.fits_[0]
    gp = fit.fitted.model
    inputs_scaler, target_scaler = fit.inputs_scaler, fit.target_scaler

    def scaled(rows):
        inputs = (model.encoder_.transform(rows) - inputs_scaler.mean) / inputs_scaler.scale
        inputs = torch.from_numpy(inputs)
        features = gp.feature_map(inputs) * math.sqrt(gp.output_scale)
        log_scale = gp.noise.log_scale(inputs, features)
        noise = fit.fitted.posterior.noise_variance * (1.0 if log_scale is None else log_scale.exp())
        return features, noise

    features, noise = scaled(table)
    targets = torch.from_numpy((np.asarray(table["price"]) - target_scaler.mean) / target_scaler.scale)
    mean, covariance = DenseGP(features, targets, noise).predict(scaled(new)[0])
    variance = covariance.diagonal() + scaled(new)[1]
    scale = float(target_scaler.scale)
    return mean * scale + float(target_scaler.mean), variance * scale**2


def assert_is_dense_joint(joint, model, table):
    new = make_table(15, seed=77)
    found = next(joint.predict_chunks(new))
    mean, variance = dense_joint(model, table, new)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-10)
    np.testing.assert_allclose(found.std**2, variance, rtol=1e-10)


@pytest.mark.parametrize("noise", ["constant", "input"])
def test_the_joint_posterior_is_that_of_the_pooled_rows(noise, tmp_path):
    model = make_model(noise=noise)
    model.save(tmp_path / "price.finitegp")
    tables = [make_table(count, seed) for seed, count in enumerate(COUNTS)]
    paths = [tmp_path / f"{number}.statistics" for number in range(3)]
    for table, path in zip(tables, paths, strict=True):  # each site loads the file anew
        TableRegressor.load(tmp_path / "price.finitegp").statistics(table).save(path)
    sites = [SiteStatistics.load(path) for path in paths]
    before = copy.deepcopy(model)
    kept = model.merge(*sites)
    assert_is_dense_joint(kept, model, pooled(make_table(40, seed=100), *tables))
    only = model.merge(*sites, keep_model_rows=False)
    assert_is_dense_joint(only, model, pooled(*tables))
    only.save(tmp_path / "joint.finitegp")
    assert_is_dense_joint(TableRegressor.load(tmp_path / "joint.finitegp"), model, pooled(*tables))
    # The model that was merged into is as before.
    new = make_table(15, seed=77)
    assert np.array_equal(next(model.predict_chunks(new)).mean, next(before.predict_chunks(new)).mean)
    assert model.regressor_.training_summary_ == before.regressor_.training_summary_
    for joint, rows in ((kept, 140), (only, 100)):
        summary = joint.regressor_.training_summary_
        assert summary["rows"] + summary["rows_added"] - summary["rows_forgotten"] == rows
        assert joint.regressor_.fits_[0].fitted.posterior.statistics.num_data == rows


def test_merging_is_updating_with_all_tables(model, sites, tolerances):
    updated = copy.deepcopy(model)
    for seed, count in enumerate(COUNTS):
        updated.update(make_table(count, seed))
    for order in ((0, 1, 2), (2, 0, 1)):
        joint = model.merge(*(sites[number] for number in order))
        one, other = (each.regressor_.fits_[0].fitted.posterior for each in (joint, updated))
        torch.testing.assert_close(one.statistics.gram, other.statistics.gram, rtol=tolerances["algebra"], atol=1e-10)
        torch.testing.assert_close(one.weight_mean, other.weight_mean, rtol=tolerances["algebra"], atol=1e-10)


def test_one_after_the_other_is_all_at_once(model, sites, tmp_path):
    model.merge(*sites[:2]).save(tmp_path / "two.finitegp")
    step = TableRegressor.load(tmp_path / "two.finitegp").merge(sites[2])
    new = make_table(15, seed=77)
    np.testing.assert_allclose(
        next(step.predict_chunks(new)).mean, next(model.merge(*sites).predict_chunks(new)).mean, rtol=1e-12
    )
    assert [each["rows"] for each in step.summary_["merged_sites"]] == list(COUNTS)


def test_the_noise_of_all_rows_together(model, sites):
    joint = model.merge(*sites, keep_model_rows=False, refit_noise=True)
    fitted = joint.regressor_.fits_[0].fitted
    # The optimum of the marginal likelihood by n x n matrices: no other noise has a larger one.
    table = pooled(*(make_table(count, seed) for seed, count in enumerate(COUNTS)))
    fit = model.regressor_.fits_[0]
    inputs = torch.from_numpy(fit.inputs_scaler.transform(model.encoder_.transform(table)))
    features = fitted.model.feature_map(inputs) * math.sqrt(fitted.model.output_scale)
    targets = torch.from_numpy(fit.target_scaler.transform(table["price"]))
    found = fitted.posterior.noise_variance
    assert found == pytest.approx(fitted.model.noise_variance, rel=1e-12)
    assert found != pytest.approx(fit.fitted.posterior.noise_variance, rel=1e-3)
    best = float(DenseGP(features, targets, found).total_nlml())
    for factor in np.geomspace(0.01, 100, 41):
        assert best <= float(DenseGP(features, targets, found * factor).total_nlml()) + 1e-9
    slopes = [float(DenseGP(features, targets, found * factor).total_nlml()) for factor in (1 - 1e-4, 1 + 1e-4)]
    assert slopes[0] == pytest.approx(slopes[1], rel=1e-9)
    assert_is_dense_joint(joint, joint, table)
    # The sums do not depend on the common noise variance, so those of the same sites still fit.
    more = joint.merge(model.statistics(make_table(30, seed=9)))
    assert more.regressor_.fits_[0].fitted.posterior.noise_variance == found


def test_intervals_by_counting_do_not_survive_another_noise(model, sites):
    fit = model.regressor_.fits_[0]
    scores = ConformalScores.of(np.linspace(0.1, 3.0, 50), "rows set aside")
    counted = copy.deepcopy(model)
    counted.regressor_.fits_ = [
        replace(fit, conformal=scores, components=(student_component(fit.fitted, ErrorShape(3.0)),))
    ]
    kept, refitted = counted.merge(*sites), counted.merge(*sites, refit_noise=True)
    new = make_table(15, seed=77)
    assert kept.predict_interval(new, method="conformal")[0].shape == (15,)
    assert kept.regressor_.fits_[0].components[0].degrees_of_freedom == 3.0
    assert math.isinf(refitted.regressor_.fits_[0].components[0].degrees_of_freedom)
    with pytest.raises(ValueError, match="need a fit that left rows out"):
        refitted.predict_interval(new, method="conformal")


def test_noise_at_its_lower_bound_is_told():
    model = make_model(features=LinearFeatures(4))
    table = make_table(30, seed=1)
    table["price"] = np.asarray(table["size"]) * 3.0
    with pytest.warns(UserWarning, match="merge without refit_noise"):
        model.merge(model.statistics(table), keep_model_rows=False, refit_noise=True)


def test_how_a_table_is_cut_makes_no_difference(model, tmp_path):
    table = make_table(60, seed=3)
    parts = [{name: values[start : start + 7] for name, values in table.items()} for start in range(0, 60, 7)]
    whole, cut = model.statistics(table), model.statistics(iter(parts))
    for name, values in encode_statistics(whole.statistics).items():
        torch.testing.assert_close(encode_statistics(cut.statistics)[name], values, rtol=1e-10, atol=1e-10)
    assert cut.rows == whole.rows == 60


def test_rows_are_let_go_while_a_table_is_read(model):
    """Memory that does not depend on the number of rows: of many chunks, no more than a few are alive at once."""
    alive, most = weakref.WeakSet(), 0

    class Column(np.ndarray):
        pass

    def chunks():
        nonlocal most
        for seed in range(30):
            table = make_table(50, seed)
            for name in ("size", "price"):
                table[name] = table[name].view(Column)
                alive.add(_Kept(table[name]))
            most = max(most, len(alive))
            yield table
            del table

    class _Kept:
        """Lives as long as the array it is hung onto."""

        def __init__(self, array):
            array.kept = self

    assert model.statistics(chunks()).rows == 1500
    assert most <= 3 * 2


def test_the_fingerprint_is_that_of_what_the_sums_depend_on(model, tmp_path):
    expected = model.statistics(make_table(30, seed=0)).fingerprint
    assert len(expected) == 64

    def fingerprint(changed):
        return changed.statistics(make_table(25, seed=1)).fingerprint

    model.save(tmp_path / "m.finitegp")
    loaded = TableRegressor.load(tmp_path / "m.finitegp")
    assert fingerprint(loaded) == expected
    assert fingerprint(loaded.update(make_table(5, seed=6))) == expected
    assert fingerprint(copy.deepcopy(model).with_target("price")) == expected
    other = copy.deepcopy(model)
    other.regressor_.fits_[0].fitted.model.noise.set_variance(5.0)
    assert fingerprint(other) == expected
    for change in (
        lambda each: each.fitted.model.feature_map.frequencies[0, 0].mul_(1 + 1e-15),
        lambda each: each.fitted.model.set_output_scale(2.0),
        lambda each: each.inputs_scaler.mean.__iadd__(1e-9),
        lambda each: each.target_scaler.scale.__imul__(2.0),
    ):
        other = copy.deepcopy(model)
        fit = other.regressor_.fits_[0]
        fit = replace(
            fit,
            target_scaler=replace(fit.target_scaler, scale=np.array(fit.target_scaler.scale)),
        )
        other.regressor_.fits_ = [fit]
        change(fit)
        assert fingerprint(other) != expected
        with pytest.raises(DataError, match="site 0 was made for another model: its features"):
            model.merge(other.statistics(make_table(25, seed=1)))
    table = make_table(40, seed=100)
    imputing = TableRegressor.from_parts(
        model.regressor_, TableEncoder.fit(table, exclude="price", missing="impute"), "price"
    )
    assert fingerprint(imputing) != expected


def test_statistics_of_another_release_that_differ_say_so(model, sites):
    other = replace(sites[0], fingerprint="0" * 64, version="9.9")
    with pytest.raises(DataError, match=r"another model by finitegp 9\.9, while this is .*Send this model's file"):
        model.merge(other)


def test_the_same_rows_do_not_count_twice_unnoticed(model, sites, tmp_path):
    with pytest.raises(DataError, match="site 2 and site 0 hold the same sums"):
        model.merge(sites[0], sites[1], sites[0])
    # The same rows in other pieces: the sums differ by rounding, the checksum does.
    table = make_table(COUNTS[0], 0)
    parts = [{name: values[start : start + 4] for name, values in table.items()} for start in range(0, COUNTS[0], 4)]
    again = model.statistics(iter(parts))
    with pytest.raises(DataError, match="site 1 and site 0 hold the same sums"):
        model.merge(sites[0], again)
    model.merge(*sites[:2]).save(tmp_path / "two.finitegp")
    joint = TableRegressor.load(tmp_path / "two.finitegp")
    with pytest.raises(DataError, match="site 1 was merged into this model before"):
        joint.merge(sites[2], sites[1])
    assert joint.merge(*sites, keep_model_rows=False).summary_["merged_sites"][2]["rows"] == COUNTS[2]
    mine = model.statistics(make_table(40, seed=100))
    with pytest.raises(DataError, match=r"the rows that the model has already.*keep_model_rows=False"):
        model.merge(sites[0], mine)
    model.merge(sites[0], mine, keep_model_rows=False)
    twice = model.merge(sites[0], sites[0], allow_repeats=True)
    assert twice.regressor_.fits_[0].fitted.posterior.statistics.num_data == 40 + 2 * COUNTS[0]


def test_one_other_row_is_another_site(model):
    table = make_table(500, seed=5)
    other = {name: np.asarray(values).copy() for name, values in table.items()}
    other["price"][3] += 0.01
    model.merge(model.statistics(table), model.statistics(other))


def test_wrong_arguments(model, sites):
    with pytest.raises(DataError, match="no sites to merge"):
        model.merge()
    with pytest.raises(TypeError, match="number 1 is a str"):
        model.merge(sites[0], "north.statistics")
    with pytest.raises(DataError, match="no column 'price'"):
        model.statistics({"size": [1.0], "cut": ["fair"]})
    with pytest.raises(DataError, match="no column 'cut'"):
        model.statistics({"size": [1.0], "price": [1.0]})
    with pytest.raises(DataError, match="does not know the name of its target"):
        TableRegressor.from_parts(model.regressor_, model.encoder_).statistics(make_table(30, 0))
    with pytest.raises(DataError, match="empty"):
        model.statistics(iter([]))


def test_fewer_rows_than_features_are_told_because_they_can_be_computed(tmp_path):
    model = make_model(features=LinearFeatures(4, bias=False))
    table = {"size": [3.21], "cut": ["good"], "price": [104.5]}
    with pytest.warns(UserWarning, match=r"1 rows, fewer than the 4 features.*rows may be computed"):
        site = model.statistics(table)
    # What the warning says, done: the row is the square root of a matrix of rank one.
    fit = model.regressor_.fits_[0]
    unit = float(fit.fitted.model(torch.eye(4, dtype=torch.float64))[0][0, 0])  # each feature is so many inputs
    row = (site.statistics.gram[:, 0] / site.statistics.gram[0, 0].sqrt()).numpy() / unit
    expected = model.encoder_.transform(table)[0]
    assert min(np.abs(fit.inputs_scaler.inverse(sign * row) - expected).max() for sign in (1, -1)) < 1e-9
    price = float(site.statistics.target_sum_of_squares.sqrt())
    assert min(abs(float(fit.target_scaler.inverse(sign * price)) - 104.5) for sign in (1, -1)) < 1e-9
    assert len(model.statistics(make_table(4, seed=0)).digest) == 64  # and four rows are not warned of


def test_with_fewer_rows_than_features_guessed_rows_can_be_tested(model):
    table, others = make_table(8, seed=0), make_table(8, seed=1)
    with pytest.warns(UserWarning, match="rows may be computed"):
        gram = model.statistics(table).statistics.gram
    fit = model.regressor_.fits_[0]
    eigenvalues, vectors = torch.linalg.eigh(gram)
    outside = vectors[:, eigenvalues < 1e-10 * eigenvalues[-1]]
    assert outside.shape[1] == 20 - 8

    def distance(rows):
        """Of each row's features from the range of the matrix."""
        features = fit.fitted.model(torch.from_numpy(fit.inputs_scaler.transform(model.encoder_.transform(rows))))[0]
        return (features @ outside).norm(dim=1) / features.norm(dim=1)

    assert float(distance(table).max()) < 1e-6
    assert float(distance(others).min()) > 1e-3


def test_no_row_is_in_the_file(model, sites, tmp_path):
    sites[0].save(tmp_path / "north.statistics")
    data = (tmp_path / "north.statistics").read_bytes()
    table = make_table(COUNTS[0], 0)
    fit = model.regressor_.fits_[0]
    encoded = model.encoder_.transform(table)[:, :1]
    scaled = fit.inputs_scaler.transform(model.encoder_.transform(table))[:, 0]
    for values in (table["size"], table["price"], encoded, scaled, fit.target_scaler.transform(table["price"])):
        for value in np.ravel(values):
            assert np.float64(value).tobytes() not in data
            assert np.float32(value).tobytes() not in data


def test_a_model_whose_notes_on_earlier_merges_are_strange_merges(model, sites):
    for noted in (3, {"a": 1}, [1, None, {"digest": 4}, {"rows": 3}]):
        changed = copy.copy(model)
        changed.summary_ = {"merged_sites": noted}
        assert len(changed.merge(sites[0]).summary_["merged_sites"]) == 1


def test_a_regressor_of_a_data_frame_has_sites_too(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = make_table(40, seed=100)
    frame = pandas.DataFrame({"size": table["size"], "price": table["price"]})
    GPRegressor(LinearFeatures(1), algorithm="exact", random_state=0).fit(frame[["size"]], frame["price"]).save(
        tmp_path / "m.finitegp"
    )
    (tmp_path / "t.csv").write_text("size,price\n" + "".join(f"{n / 7},{n % 5}\n" for n in range(20)))
    first = TableRegressor.load(tmp_path / "m.finitegp").with_target("price")
    joint = first.merge(first.statistics(TableReader(tmp_path / "t.csv")))
    joint.save(tmp_path / "joint.finitegp")
    # The joint model is a table model now, of the same features, so that sums for one are sums for the other.
    again = TableRegressor.load(tmp_path / "joint.finitegp")
    assert again.merge(first.statistics(make_table(10, seed=1))).regressor_.training_summary_["rows_added"] == 30
