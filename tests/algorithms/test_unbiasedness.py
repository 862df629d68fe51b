"""The mean gradient over all batches of a tiny problem, against the exact one: which algorithm is biased."""

import itertools
import math

import pytest
import torch
from algorithm_problems import (
    NUM_DATA,
    all_batches,
    assert_same_gradients,
    exact_mean_gradient,
    exact_quantities,
    gradients_of,
    mean_gradient,
    tiny_problem,
)

from finitegp.algorithms import BSGD, SCGD, Exact, Lagged, Minimax, PaperMinimax


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("noise", ["constant", "input"])
class TestExhaustiveUnbiasedness:
    def test_scgd(self, generator, noise, targets):
        model, rows = tiny_problem(generator, noise, targets)
        gram, _, weights = exact_quantities(model, rows)
        algorithm = SCGD(model, NUM_DATA, input_dim=3, num_targets=targets)
        algorithm.tracked_gram.copy_(gram)
        algorithm.weights.data.copy_(weights)
        found = mean_gradient(algorithm, rows)
        assert_same_gradients(found, exact_mean_gradient(model, rows))
        # At the optimal weights the objective is stationary in them.
        assert float(found["weights"].abs().max()) < 1e-10

    def test_scgd_weights_follow_the_ridge_objective(self, generator, noise, targets):
        model, rows = tiny_problem(generator, noise, targets)
        algorithm = SCGD(model, NUM_DATA, input_dim=3, num_targets=targets)
        algorithm.weights.data.normal_(generator=generator)
        features, log_scale = model(rows.inputs, rows.weights)
        precision = torch.ones(NUM_DATA) if log_scale is None else torch.exp(-log_scale)
        weights = algorithm.weights.detach().clone().requires_grad_(True)
        residuals = features.detach() @ weights - rows.targets
        fit = (residuals.square() * precision.detach()[:, None]).sum() / model.noise_variance
        (expected,) = torch.autograd.grad(0.5 * (fit + weights.square().sum()) / NUM_DATA, weights)
        found = mean_gradient(algorithm, rows)["weights"]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("noise_update", ["closed_form", "gradient"])
    def test_lagged(self, generator, noise, targets, noise_update):
        model, rows = tiny_problem(generator, noise, targets)
        _, inverse, weights = exact_quantities(model, rows)
        algorithm = Lagged(model, NUM_DATA, input_dim=3, num_targets=targets, noise_update=noise_update)
        algorithm.weights.copy_(weights)
        algorithm.inverse_gram.copy_(inverse)
        algorithm.inverse_trace.copy_(inverse.trace())
        found = mean_gradient(algorithm, rows)
        expected = exact_mean_gradient(model, rows)
        if noise_update == "closed_form":
            del expected["model.noise.log_variance"]
        assert_same_gradients(found, expected)

    def test_paper_minimax_has_the_gradient_of_its_saddle_function(self, generator, noise, targets):
        """For any A and B, against automatic differentiation of Psi written out over all rows."""
        model, rows = tiny_problem(generator, noise, targets)
        algorithm = PaperMinimax(model, NUM_DATA, penalty=3.0, input_dim=3, num_targets=targets)
        random = torch.randn(4, 4, generator=generator, dtype=torch.float64)
        algorithm.gram_estimate.data = random @ random.T + torch.eye(4).double()
        dual = torch.randn(4, 4, generator=generator, dtype=torch.float64)
        algorithm.dual_matrix.data = 0.7 * (dual + dual.T) / (dual + dual.T).norm()
        algorithm.weights.data.normal_(generator=generator)
        algorithm.project()  # the estimate is inside its constraint: only its inverse is taken
        descent = mean_gradient(algorithm, rows)
        ascent = torch.zeros(4, 4, dtype=torch.float64)
        for batch in all_batches(rows):
            algorithm.dual_gradient(batch)
            ascent += algorithm.dual_matrix.grad / 15

        def saddle():
            features, log_scale = model(rows.inputs, rows.weights)
            scale = torch.zeros(NUM_DATA).double() if log_scale is None else log_scale
            scaled = features * torch.exp(-0.5 * scale)[:, None]
            goal = rows.targets * torch.exp(-0.5 * scale)[:, None]
            noise_variance = model.noise.log_variance.exp()
            weights, a, b = algorithm.weights, algorithm.gram_estimate, algorithm.dual_matrix
            fit = (scaled @ weights - goal).square().sum() / noise_variance + weights.square().sum()
            constants = targets * ((NUM_DATA - 4) * model.noise.log_variance + scale.sum())
            gram = (scaled.T @ scaled + noise_variance * torch.eye(4).double()) / NUM_DATA
            penalty = 3.0 * (b * (a - gram)).sum() / a.norm()
            return (fit + constants + targets * (torch.logdet(a) + penalty)) / (2 * NUM_DATA)

        names = [name for name, p in algorithm.named_parameters() if p.requires_grad]
        expected = torch.autograd.grad(saddle(), [p for p in algorithm.parameters() if p.requires_grad])
        expected = dict(zip(names, expected, strict=True))
        torch.testing.assert_close(-ascent, expected.pop("dual_matrix"), rtol=1e-10, atol=1e-10)
        assert_same_gradients(descent, expected)

    def test_paper_minimax_is_exact_at_the_saddle_point(self, generator, noise, targets):
        """It exists if the penalty is at least |F| |F^-1|: there B = -(|F| / penalty) F^-1 lies in the ball."""
        model, rows = tiny_problem(generator, noise, targets)
        gram, inverse, weights = exact_quantities(model, rows)
        penalty = 1.01 * float(gram.norm() * inverse.norm())
        algorithm = PaperMinimax(model, NUM_DATA, penalty=penalty, input_dim=3, num_targets=targets)
        algorithm.gram_estimate.data = gram / NUM_DATA
        algorithm.dual_matrix.data = -(gram.norm() / penalty) * inverse
        algorithm.weights.data = weights
        algorithm.project()
        assert float(algorithm.dual_matrix.detach().norm()) <= 1.0
        found = mean_gradient(algorithm, rows)
        assert_same_gradients(found, exact_mean_gradient(model, rows))
        assert float(found["gram_estimate"].abs().max()) < 1e-10
        assert float(found["weights"].abs().max()) < 1e-10

    def test_minimax_is_exact_at_the_saddle_point(self, generator, noise, targets):
        model, rows = tiny_problem(generator, noise, targets)
        gram, _, weights = exact_quantities(model, rows)
        algorithm = Minimax(model, NUM_DATA, input_dim=3, num_targets=targets)
        algorithm.whitening.copy_(torch.linalg.inv(torch.linalg.cholesky(gram / NUM_DATA)).T)
        algorithm._set_inverse()
        algorithm.weights.data = weights
        found = mean_gradient(algorithm, rows)
        assert_same_gradients(found, exact_mean_gradient(model, rows))
        assert float(found["weights"].abs().max()) < 1e-10

    def test_minimax_steps_of_estimate_and_multiplier_are_unbiased(self, generator, noise, targets):
        """From any A and P, the mean over all pairs of batches of A + a [A P A - A + 2 (F_S - A)], and likewise P."""
        model, rows = tiny_problem(generator, noise, targets)
        algorithm = Minimax(model, NUM_DATA, window=math.inf, input_dim=3, num_targets=targets)
        random = torch.randn(2, 4, 4, generator=generator, dtype=torch.float64)
        estimate = random[0] @ random[0].T + torch.eye(4).double()
        whitening = torch.linalg.inv(torch.linalg.cholesky(estimate)).T
        symmetric = random[1] + random[1].T
        multiplier = torch.eye(4).double() + 0.3 * symmetric / torch.linalg.matrix_norm(symmetric, 2)
        gram, _, _ = exact_quantities(model, rows)
        # Two rows each, a sixteenth of 25,600 rows seen: a = 2 * 2 / 1600. In the metric of A that of P is a quarter.
        rate, exact = 1 / 400, whitening.T @ gram / NUM_DATA @ whitening
        mean_estimate, mean_multiplier = torch.zeros(4, 4).double(), torch.zeros(4, 4).double()
        for descent, ascent in itertools.product(all_batches(rows), repeat=2):
            algorithm.whitening.copy_(whitening)
            algorithm.multiplier.copy_(multiplier)
            algorithm.rows_seen.fill_(25598.0)
            with torch.no_grad():
                for stream, batch in enumerate((descent, ascent)):
                    algorithm._take_up(stream, [model(batch.inputs, batch.weights)], model.noise_variance)
            algorithm._move()
            # Back to the metric from before the step.
            inverse_root = torch.linalg.inv(algorithm.whitening) @ whitening
            mean_estimate += inverse_root.T @ inverse_root / 225
            change = torch.linalg.inv(whitening) @ algorithm.whitening
            mean_multiplier += change @ algorithm.multiplier @ change.T / 225
        assert algorithm.projections == 0
        expected = (1 - 3 * rate) * torch.eye(4).double() + rate * (multiplier + 2 * exact)
        torch.testing.assert_close(mean_estimate, expected, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(mean_multiplier, multiplier - rate / 4 * (expected - exact), rtol=1e-10, atol=1e-10)

    def test_bsgd_is_biased_by_a_margin(self, generator, noise, targets):
        """The same check fails: the error is of the size of the gradient itself."""
        model, rows = tiny_problem(generator, noise, targets)
        found = mean_gradient(BSGD(model, NUM_DATA, input_dim=3, num_targets=targets), rows)
        expected = exact_mean_gradient(model, rows)
        error = math.sqrt(sum(float((found[name] - g).square().sum()) for name, g in expected.items()))
        size = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
        assert error > 0.2 * size

    def test_bsgd_has_the_gradient_of_the_batch_likelihood(self, generator, noise, targets):
        """On the batch of all rows BSGD is exact."""
        model, rows = tiny_problem(generator, noise, targets)
        algorithm = BSGD(model, NUM_DATA, input_dim=3, num_targets=targets)
        algorithm.gradient(rows)
        assert_same_gradients(gradients_of(algorithm), exact_mean_gradient(model, rows))

    def test_exact(self, generator, noise, targets):
        model, rows = tiny_problem(generator, noise, targets)
        data = rows if rows.weights is not None else rows[:2]
        algorithm = Exact(model, tuple(data), input_dim=3, num_targets=targets)
        algorithm.gradient()
        assert_same_gradients(gradients_of(algorithm), exact_mean_gradient(model, rows), tolerance=1e-12)
