"""Parameters of GPRegressor: features, algorithms, stopping, warm start, randomness, and wrong ones."""

import copy
import json

import numpy as np
import pytest
import torch
from estimator_rows import make_rows, quick, quick_network
from sklearn.base import clone
from torch import nn

from finitegp import GPRegressor
from finitegp.automatic import AutoSettings
from finitegp.automatic import fit_auto as automatic_fit


@pytest.mark.parametrize("algorithm", ["lagged", "scgd", "minimax", "bsgd", "exact"])
def test_every_algorithm_fits(algorithm, rows):
    gp = quick(feature_map="fourier", algorithm=algorithm, epochs=20).fit(*rows)
    assert gp.score(*rows) > 0.8
    record = gp.training_summary_["fits"][0]
    assert record["algorithm"] == algorithm
    assert 0 < len(record["history"]) <= 20
    json.dumps(gp.training_summary_)


def test_a_module_is_copied_and_trained(rows):
    module = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU())
    before = copy.deepcopy(module.state_dict())
    gp = quick(feature_map=module, epochs=100, batch_size=16, learning_rate=1e-2, noise="input").fit(*rows)
    assert gp.score(*rows) > 0.9
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    trained = gp.fits_[0].fitted.model.feature_map.state_dict()
    assert not torch.equal(trained["0.weight"].float(), before["0.weight"])
    again = clone(gp).fit(*rows)
    np.testing.assert_array_equal(again.predict(rows[0]), gp.predict(rows[0]))


def test_parameters_reach_the_automatic_networks(monkeypatch, rows):
    asked = {}

    def fit_auto(inputs, targets, **options):
        asked.update(options)
        return automatic_fit(inputs, targets, effort="low")

    monkeypatch.setattr("finitegp.estimator.regressor.fit_auto", fit_auto)
    quick(epochs=3, batch_size=17, learning_rate=0.5, validation_fraction=0.2, noise="input", normalize_y=False).fit(
        *rows
    )
    assert (asked["noise"], asked["center"], asked["seed"], asked["effort"]) == ("input", False, 0, "low")
    settings = AutoSettings().with_changes(asked["settings"])
    assert (settings.batch_size, settings.learning_rate, settings.validation_fraction) == (17, 0.5, 0.2)
    assert settings.steps == settings.max_steps == 3 * 8  # three passes over 120 rows in batches of 17
    assert (asked["may_be_copies"], asked["keep_rows"]) == (True, True)
    quick(keep_rows=False).fit(*rows, sample_weight=np.ones(120))
    assert (asked["may_be_copies"], asked["keep_rows"]) == (False, False)


def test_early_stopping_holds_rows_out_and_the_closing_pass_takes_them_in():
    inputs, targets = make_rows(300)
    gp = quick_network(early_stopping=True, validation_fraction=0.2, epochs=40, batch_size=32).fit(inputs, targets)
    record = gp.training_summary_["fits"][0]
    assert record["validation"]["rows"] == 60
    assert record["validation"]["nlpd"] == min(
        row["validation_nlpd"] for row in record["history"] if "validation_nlpd" in row
    )
    assert gp.fits_[0].fitted.posterior.statistics.num_data == 300
    assert "validation" not in quick_network(early_stopping=False).fit(inputs, targets).training_summary_["fits"][0]


def test_warm_start_goes_on_from_the_fit_before(rows):
    inputs, targets = rows
    gp = quick_network(warm_start=True, epochs=5).fit(inputs, targets)
    first = gp.log_marginal_likelihood()
    frozen = {name: value.clone() for name, value in gp.fits_[0].fitted.model.feature_map.state_dict().items()}
    gp.fit(inputs, targets)
    assert gp.log_marginal_likelihood() > first
    cold = quick_network(epochs=5).fit(inputs, targets)
    cold.fit(inputs, targets)
    assert cold.log_marginal_likelihood() == first
    assert not torch.equal(frozen["layers.0.weight"], gp.fits_[0].fitted.model.feature_map.layers[0].weight)
    # Automatic features are kept; noise and posterior are those of the new rows.
    automatic = quick(warm_start=True).fit(inputs, targets)
    features = automatic.fits_[0].fitted.model.feature_map.state_dict()
    new = make_rows(80, seed=3)
    automatic.fit(*new)
    kept = automatic.fits_[0].fitted.model.feature_map.state_dict()
    assert all(torch.equal(features[name], kept[name]) for name in features)
    assert automatic.fits_[0].fitted.posterior.statistics.num_data == 80
    with pytest.raises(ValueError, match="warm_start goes on from has 1"):
        automatic.fit(inputs, np.stack([targets, targets], axis=1))


def test_random_state_determines_the_fit(rows):
    inputs, targets = rows
    predictions = [quick_network(random_state=state).fit(inputs, targets).predict(inputs) for state in (1, 1, 2, None)]
    assert np.array_equal(predictions[0], predictions[1])
    assert not np.array_equal(predictions[0], predictions[2])
    assert not np.array_equal(predictions[0], predictions[3])
    state = [quick(random_state=np.random.RandomState(5)).fit(inputs, targets).predict(inputs) for _ in range(2)]
    assert np.array_equal(*state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "rbf"}, r"feature_map must be one of \['auto', 'mlp', 'fourier'\] or a torch nn.Module"),
        ({"feature_map": nn.Linear}, "feature_map must be one of"),
        ({"algorithm": "svgp"}, "algorithm must be one of"),
        ({"noise": 0.1}, r"noise must be one of \['auto', 'constant', 'input'\], but is 0.1"),
        ({"effort": "max"}, "effort must be one of"),
        ({"epochs": 0}, "epochs must be 'auto' or a positive whole number, but is 0"),
        ({"batch_size": 1.5}, "batch_size must be 'auto' or a positive whole number"),
        ({"learning_rate": "fast"}, "learning_rate must be 'auto' or a positive number"),
        ({"validation_fraction": 0.6}, "validation_fraction must lie between"),
        ({"early_stopping": True}, "early_stopping=True needs a given feature_map"),
        ({"device": "meta"}, "device is 'meta', which torch cannot use here"),
        ({"algorithm": "exact", "learning_rate": 0.1}, "leave learning_rate at 'auto'"),
        ({"algorithm": "exact", "early_stopping": True}, "runs until it converges"),
        ({"keep_rows": "no"}, "keep_rows must be True or False, but is 'no'"),
        ({"repeated_rows": 1}, "repeated_rows must be True or False, but is 1"),
    ],
)
def test_bad_parameters_are_named(options, message, rows):
    with pytest.raises(ValueError, match=message):
        GPRegressor(**options).fit(*rows)


def test_progress_is_drawn_on_standard_error(rows, capsys):
    quick(verbose=True).fit(*rows)
    quick_network(verbose=1, early_stopping=False).fit(*rows)
    captured = capsys.readouterr()
    assert "This takes about" in captured.err
    assert "epoch 15/15" in captured.err
    assert captured.out == ""
