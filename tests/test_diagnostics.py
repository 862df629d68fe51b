"""Bias of gradients, and certificates of convergence."""

import pytest
import torch
from training_runs import assert_same_state, make, make_data, state_of

from finitegp import FeatureGP, fit_full_batch
from finitegp.algorithms import BSGD, SCGD, Lagged
from finitegp.callbacks import (
    BiasMeter,
)
from finitegp.data.sampling import Sampler
from finitegp.diagnostics import certify, measure_bias
from finitegp.features import FourierFeatures
from finitegp.likelihood import regularized_gram_factor
from finitegp.schedules import make_optimizer
from finitegp.training import train


@pytest.fixture
def data():
    return make_data()


class TestDiagnostics:
    def test_bias_meter_sees_what_is_biased(self, data):
        trained = make(Lagged)
        optimizer = make_optimizer(trained, learning_rate=5e-3)
        run = train(trained, optimizer, data, epochs=6, batch_size=10, callbacks=[BiasMeter(every=3)])
        assert [row["epoch"] for row in run.history if "gradient_angle_degrees" in row] == [3, 6]
        # At exact tracked quantities the unbiased gradient has no error at all.
        unbiased, biased, model = make(SCGD), make(BSGD), trained.model
        unbiased.model.load_state_dict(model.state_dict())
        statistics = model.statistics(data)
        unbiased.weights.data.copy_(
            regularized_gram_factor(statistics, model.noise_variance).solve(statistics.projected_targets)
        )
        unbiased.tracked_gram.copy_(statistics.gram + model.noise_variance * torch.eye(8))
        sampler = Sampler(data, 10, seed=0)
        found = measure_bias(unbiased, sampler)
        assert found.relative_error < 1e-3  # float32
        assert found.angle_degrees < 0.1
        assert found.batch_noise > 1.0
        biased.model.load_state_dict(model.state_dict())
        other = measure_bias(biased, sampler)
        assert other.relative_error > 0.2
        assert other.exact_norm == pytest.approx(found.exact_norm, rel=1e-6)
        assert other.nlml == pytest.approx(model.nlml(data), rel=1e-5)

    def test_measuring_changes_nothing(self, data):
        algorithm = make(SCGD)
        before = state_of(algorithm)
        measure_bias(algorithm, Sampler(data, 10, seed=0))
        assert_same_state(before, state_of(algorithm))
        assert all(parameter.grad is None for parameter in algorithm.parameters())

    def test_certificate(self, data):
        model = FeatureGP(FourierFeatures(3, 30, seed=0), 0.5).double()
        far = certify(model, data)
        fit_full_batch(model, data)
        near = certify(model, data)
        assert near.gradient_norm < 1e-4 < far.gradient_norm
        assert near.nlml == pytest.approx(model.nlml(data))
        assert 0 <= near.noise_gain < 1e-6 < far.noise_gain
