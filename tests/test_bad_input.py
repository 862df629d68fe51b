"""Bad input gets a clear error that names what is wrong; unusual but good input gives the right result."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from finitegp import (
    BSGD,
    SCGD,
    ArraySource,
    DataError,
    Exact,
    FeatureGP,
    FeatureMapError,
    InputNoise,
    IterableSource,
    Lagged,
    exact_gradient,
    fit_full_batch,
    make_optimizer,
    train,
)
from finitegp.data import as_source
from finitegp.errors import ArgumentError
from finitegp.features import FourierFeatures, MLPFeatures

ENTRY_POINTS = [
    pytest.param(lambda model, data: model.nlml(data), id="nlml"),
    pytest.param(lambda model, data: model.condition(data), id="condition"),
    pytest.param(exact_gradient, id="exact_gradient"),
    pytest.param(lambda model, data: fit_full_batch(model, data, max_iterations=2), id="fit_full_batch"),
]


@pytest.fixture
def model():
    return FeatureGP(MLPFeatures(3, hidden=(8, 4), seed=0), 0.1)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return rng.normal(size=(20, 3)), rng.normal(size=20)


@pytest.mark.parametrize("use", ENTRY_POINTS)
def test_every_entry_point_names_the_bad_row_and_column(model, arrays, use):
    inputs, targets = arrays
    for value in (np.nan, np.inf, -np.inf):
        bad = inputs.copy()
        bad[13, 2] = value
        with pytest.raises(DataError, match=r"inputs must be finite, but row 13, column 2 is"):
            use(model, (bad, targets))
        bad = targets.copy()
        bad[7] = value
        with pytest.raises(DataError, match=r"targets must be finite, but row 7, column 0"):
            use(model, (inputs, bad))
    with pytest.raises(DataError, match="no rows"):
        use(model, (inputs[:0], targets[:0]))
    with pytest.raises(DataError, match="inputs have 20 rows but targets have 19 rows"):
        use(model, (inputs, targets[:19]))
    with pytest.raises(DataError, match="takes 3 input columns, but got 2"):
        use(model, (inputs[:, :2], targets))
    with pytest.raises(DataError, match="two-dimensional"):
        use(model, (inputs[:, 0], targets))
    with pytest.raises(DataError, match="used up after one pass"):
        use(model, iter([(inputs, targets)]))


def test_rows_are_counted_over_the_whole_data(arrays):
    inputs, targets = arrays
    bad = inputs.copy()
    bad[13, 1] = np.nan
    with pytest.raises(DataError, match="row 13, column 1"):
        list(ArraySource(bad, targets, chunk_size=4))
    with pytest.raises(DataError, match=r"chunk 2: .*row 13, column 1"):
        list(IterableSource([(bad[i : i + 5], targets[i : i + 5]) for i in range(0, 20, 5)]))


def test_data_frames_give_their_column_names(arrays):
    inputs, targets = arrays
    frame = pd.DataFrame(inputs, columns=["carat", "depth", "table"])
    assert len(list(as_source((frame, pd.Series(targets))))) == 1
    frame.loc[4, "depth"] = np.nan
    with pytest.raises(DataError, match=r"row 4, column 1 \('depth'\)"):
        list(as_source((frame, targets)))
    frame["cut"] = "ideal"
    with pytest.raises(DataError, match="column 'cut' holds 'ideal'"):
        as_source((frame, targets))
    mixed = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], "c": [True, False]})
    rows = next(iter(as_source((mixed, [1.0, 2.0]))))
    assert rows.inputs.tolist() == [[1.0, 0.5, 1.0], [2.0, 1.5, 0.0]]


@pytest.mark.parametrize("kind", ["int64", "int8", "uint8", "bool", "float16", "float32", ">f8"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_number_types_are_read_correctly(model, kind, library):
    if library == "torch" and kind == ">f8":
        pytest.skip("torch has no big-endian tensors")
    values = np.random.default_rng(1).integers(0, 2, size=(20, 3))
    targets = values.sum(axis=1) + 0.5
    expected = model.nlml((values.astype(np.float64), targets))
    inputs = values.astype(kind)
    found = model.nlml((torch.from_numpy(inputs) if library == "torch" else inputs, targets))
    assert found == pytest.approx(expected, rel=1e-14)


def test_layout_of_arrays_does_not_matter_and_nothing_is_changed(model, arrays):
    inputs, targets = arrays
    expected = model.nlml((inputs, targets))
    wide = np.zeros((40, 6))
    wide[::2, ::2] = inputs
    read_only = inputs.copy()
    read_only.flags.writeable = False
    for layout in (np.asfortranarray(inputs), wide[::2, ::2], inputs[::-1][::-1], read_only):
        before = layout.copy()
        assert model.nlml((layout, targets)) == pytest.approx(expected, rel=1e-14)
        assert np.array_equal(before, layout)
    assert model.nlml((torch.tensor(inputs).T.contiguous().T, torch.tensor(targets))) == pytest.approx(expected)
    assert model.nlml((inputs[::-1], targets[::-1])) == pytest.approx(expected, rel=1e-12)


def test_lists_are_arrays_too(arrays):
    inputs, targets = arrays
    source = ArraySource(inputs.tolist(), targets.tolist())
    assert source.num_data == 20
    assert source.input_dim == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("table.csv", "but is a str"),
        ({"inputs": 1}, "but is a dict"),
        (np.zeros((3, 2)), "but is a ndarray"),
        (5, "but is a int"),
        (([["a", "b"]], [1.0]), "inputs"),
        ((np.zeros((2, 2), dtype=complex), np.zeros(2)), "complex"),
        ((torch.zeros(2, 2, dtype=torch.complex64), np.zeros(2)), "real numbers"),
        ((torch.eye(2).to_sparse(), np.zeros(2)), r"dense tensor .*inputs\.to_dense\(\)"),
        ((torch.zeros(2, 2, device="meta"), np.zeros(2)), "inputs must be a dense tensor that holds numbers"),
        ((np.array([["a"], ["b"]]), np.zeros(2)), "encode them as numbers"),
        ((np.zeros((2, 0)), np.zeros(2)), "no columns"),
        ((np.zeros((2, 1)), np.float64(3.0)), "targets have no rows"),
        ((np.zeros((2, 1)), np.zeros((2, 1, 1))), "3 dimensions"),
        (
            (np.zeros((2, 1)), np.zeros(2), np.array([1.0, 0.0])),
            "weights must be positive, but row 1 has 0.0",
        ),
        ((np.zeros((2, 1)), np.zeros(2), np.array([1.0, np.nan])), "weights must be finite, but row 1"),
        ((np.zeros((2, 1)), np.zeros(2), np.ones((2, 1))), "weights must be one number per row"),
        ((np.zeros((2, 1)), np.zeros(2), np.ones(3)), "weights have 3 rows"),
        ([], "no rows"),
        ([torch.zeros(2, 1)], "chunk 0 of the data must be"),
    ],
)
def test_what_is_not_data_is_named(data, message):
    with pytest.raises(DataError, match=message):
        list(as_source(data))


def test_data_that_change_between_passes(model, arrays):
    inputs, targets = arrays

    class Growing:
        passes = 0

        def __iter__(self):
            self.passes += 1
            yield inputs[: 10 + self.passes], targets[: 10 + self.passes]

    with pytest.raises(DataError, match="11 rows before, 12 rows now"):
        exact_gradient(model, Growing())


class Misbehaving(nn.Module):
    def __init__(self, result):
        super().__init__()
        self.result = result
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return self.result(self.scale * inputs)


def not_finite(inputs):
    features = inputs.clone()
    features[5, 1] = float("nan")
    return features


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: x[:, 0], r"must return \(rows, features\) with 20 rows, but returned shape \(20,\)"),
        (lambda x: x[:5], r"returned shape \(5, 3\)"),
        (lambda x: x @ x, "failed on inputs of shape"),
        (lambda x: x @ torch.ones(3, 2), "have to be parameters or buffers"),
        (lambda x: (x, x), "but returned a tuple"),
        (lambda x: x[:, :0], r"but returned shape \(20, 0\)"),
        (not_finite, "row 5, column 1 of this batch is nan"),
        (lambda x: x * 1e200, "overflow"),
    ],
)
def test_feature_maps_that_return_the_wrong_thing(arrays, result, message):
    with pytest.raises(DataError, match=message):
        FeatureGP(Misbehaving(result), 0.1).nlml(arrays)


def test_noise_and_scale_must_be_positive(arrays):
    for bad in (0.0, -0.1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="noise_variance must be positive"):
            FeatureGP(nn.Identity(), bad)
        with pytest.raises(ValueError, match="noise_variance must be positive"):
            FeatureGP(nn.Identity(), 1.0).noise.set_variance(bad)
        with pytest.raises(ValueError, match="output_scale must be positive"):
            FeatureGP(nn.Identity(), 1.0, output_scale=bad)
    with pytest.raises(ValueError, match="not both"):
        FeatureGP(nn.Identity(), 0.1, noise_model=InputNoise(nn.Linear(3, 1)))
    with pytest.raises(TypeError, match=r"nn\.Module, but is a function"):
        FeatureGP(lambda x: x, 0.1)
    with pytest.raises(ValueError, match="reads"):
        InputNoise(nn.Linear(3, 1), reads="weights")
    with pytest.raises(ValueError, match="max_log_scale"):
        InputNoise(nn.Linear(3, 1), max_log_scale=0.0)
    with pytest.raises(DataError, match="one number per row"):
        FeatureGP(nn.Identity(), noise_model=InputNoise(nn.Linear(3, 2))).nlml(arrays)
    with pytest.raises(ValueError, match="chunk_size"):
        ArraySource(*arrays, chunk_size=0)


def test_prediction_checks_its_inputs(model, arrays):
    fitted = model.condition(arrays)
    with pytest.raises(DataError, match="row 1, column 0"):
        fitted.predict(np.array([[0.0, 1.0, 2.0], [np.nan, 1.0, 2.0]]))
    with pytest.raises(DataError, match="takes 3 input columns, but got 4"):
        fitted.predict(np.zeros((2, 4)))
    with pytest.raises(DataError, match="no rows"):
        fitted.predict(np.zeros((0, 3)))
    other = FeatureGP(MLPFeatures(3, hidden=(8, 4), seed=1), 0.1).condition(arrays)
    with pytest.raises(DataError, match="parameters differ"):
        fitted.merge(other)


def test_constant_targets_have_no_noise_to_estimate(model, arrays):
    with pytest.raises(DataError, match="targets are all zero"):
        model.optimize_noise((arrays[0], np.zeros(20)))


def test_one_row_works(model):
    fitted = model.condition((np.zeros((1, 3)), np.ones(1)))
    assert bool(torch.isfinite(fitted.predict(np.zeros((1, 3))).std).all())


def test_fourier_map_in_a_model_names_the_wrong_width(arrays):
    with pytest.raises(DataError, match="takes 5 input columns, but got 3"):
        FeatureGP(FourierFeatures(5, 10), 0.1).nlml(arrays)


def test_training_names_what_fails_on_the_rows(arrays):
    inputs, targets = arrays
    network = nn.Sequential(nn.Linear(3, 8), nn.Tanh())

    def run(feature_map, rows, noise_model=None, algorithm_class=SCGD, **options):
        model = FeatureGP(feature_map, noise_model=noise_model)
        algorithm = algorithm_class(model, num_data=20, input_dim=3)
        train(algorithm, make_optimizer(algorithm), (rows, targets), **({"epochs": 1, "batch_size": 10} | options))

    wide = np.hstack([inputs, inputs])
    for algorithm_class in (SCGD, Lagged, BSGD):
        with pytest.raises(FeatureMapError, match=r"feature map failed on inputs of shape \(10, 6\)"):
            run(network, wide, algorithm_class=algorithm_class)
        with pytest.raises(
            FeatureMapError, match=r"feature map or the noise model failed on inputs of shape \(10, 3\)"
        ):
            run(network, inputs, InputNoise(nn.Linear(3, 1)), algorithm_class=algorithm_class)
    for factor in ("a", -1.0, float("nan")):
        with pytest.raises(
            ValueError, match=r"schedule must give a number from 0 on for every step, but gave .* step 0"
        ):
            run(network, inputs, schedule=lambda step, factor=factor: factor)
    with pytest.raises(ArgumentError, match=r"epochs must be a whole number, but is 1\.5"):
        run(network, inputs, epochs=1.5)


def test_batches_of_one_row_for_batch_norm_are_named(arrays):
    inputs, targets = arrays
    model = FeatureGP(nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8)), 0.1)
    algorithm = Lagged(model, num_data=20, input_dim=3)
    for batch_size, good in ((19, False), (1, False), (10, True)):
        if good:
            train(algorithm, make_optimizer(algorithm), (inputs, targets), epochs=1, batch_size=batch_size)
        else:
            with pytest.raises(ValueError, match="batch_size leaves a batch of one row, which the BatchNorm1d"):
                train(algorithm, make_optimizer(algorithm), (inputs, targets), epochs=1, batch_size=batch_size)


def test_exact_takes_the_number_of_columns_from_the_rows(arrays):
    model = FeatureGP(nn.Sequential(nn.Linear(3, 8), nn.Tanh()), 0.1)
    assert Exact(model, arrays).num_features == 8


def test_full_batch_takes_at_least_one_iteration(model, arrays):
    with pytest.raises(ValueError, match="max_iterations must be at least 1, but is 0"):
        fit_full_batch(model, arrays, max_iterations=0)
