"""Bayesian optimisation that starts from many rows: Hartmann's function of six inputs, 10,000 noisy rows known.

``python examples/bayesian_optimization.py`` (``--small`` for a quick look); needs ``pip install 'finitegp[botorch]'``.
The posterior of a finite-feature GP does not grow with the rows, so BoTorch's acquisition functions cost the same from
10,000 rows as from 100, and each new observation is one row more in the row sums.
"""

from __future__ import annotations

import sys
import time

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.models.transforms import Standardize
from botorch.models.transforms.input import InputStandardize
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import get_matheron_path_model
from botorch.test_functions import Hartmann
from botorch.utils.sampling import optimize_posterior_samples

from finitegp import FeatureGP, Lagged, MLPFeatures, make_optimizer, train
from finitegp.botorch import FeatureGPModel

NOISE = 0.1
BOUNDS = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.float64)


def main(small: bool = False) -> None:
    """Run the example."""
    rows, hidden, epochs, rounds = (2_000, (64, 64), 30, 2) if small else (10_000, (128, 128, 128), 60, 12)
    torch.manual_seed(0)
    truth = Hartmann(6, negate=True).double()

    def observe(X: torch.Tensor) -> torch.Tensor:
        return truth(X)[:, None] + NOISE * torch.randn(len(X), 1, dtype=torch.float64)

    # What is known: rows spread over the cube, none of them near the best value, 3.32.
    X = torch.rand(rows, 6, dtype=torch.float64)
    Y = observe(X)
    print(f"best of {rows:,} known rows, without noise: {float(truth(X).max()):.3f}")

    # Features that a network learns from all rows. Fourier features of a stationary kernel would need many more than
    # a few hundred in six dimensions: with 512 of them the recommendation is worse than the best known row.
    input_scaling, outcome_scaling = InputStandardize(6).train(), Standardize(1)
    inputs, targets = input_scaling(X).float(), outcome_scaling(Y)[0][:, 0].float()
    gp = FeatureGP(MLPFeatures(6, hidden=hidden, seed=0), noise_variance=0.1)
    algorithm = Lagged(gp, num_data=rows)
    train(algorithm, make_optimizer(algorithm), (inputs, targets), epochs=epochs, batch_size=256)
    model = FeatureGPModel.from_rows(
        gp, X, Y, input_transform=input_scaling, outcome_transform=outcome_scaling, optimize_noise=True
    )
    print(f"noise standard deviation: {gp.noise_variance**0.5 * float(outcome_scaling.stdvs):.3f}, in truth {NOISE}")

    # The deviation takes the learned features as given; how wrong they may be where rows are rare, it cannot know.
    with torch.no_grad():
        at_best = model.posterior(truth.optimizers.double())
    mean, deviation = float(at_best.mean), float(at_best.variance.sqrt())
    print(f"at the true optimum, {truth.optimal_value:.3f}: mean {mean:.3f}, standard deviation {deviation:.3f}")

    started = time.process_time()
    for number in range(rounds):
        # The noisy best is among the rows with the best means: a joint posterior over all rows would be for nothing.
        with torch.no_grad():
            means = model.posterior(X[:, None]).mean[:, 0, 0]
        best_rows = X[means.topk(20).indices]
        if number % 2 == 0:  # three points by noisy expected improvement ...
            acquisition = qLogNoisyExpectedImprovement(model, best_rows, prune_baseline=False)
            new_X, _ = optimize_acqf(acquisition, BOUNDS, q=3, num_restarts=4, raw_samples=128, sequential=True)
        else:  # ... or the maxima of three functions drawn from the posterior, exactly: Thompson sampling
            paths = get_matheron_path_model(model, sample_shape=torch.Size([3]))
            new_X, _ = optimize_posterior_samples(paths, BOUNDS, raw_samples=512, num_restarts=4)
        new_X = new_X.detach()
        new_Y = observe(new_X)
        model = model.condition_on_observations(new_X, new_Y)
        X, Y = torch.cat([X, new_X]), torch.cat([Y, new_Y])
    seconds = time.process_time() - started

    # What to recommend: the best mean, found from the best rows.
    with torch.no_grad():
        means = model.posterior(X[:, None]).mean[:, 0, 0]
    recommended = X[means.argmax()]
    print(
        f"recommended after {3 * rounds} more rows: {float(truth(recommended[None])):.3f} of {truth.optimal_value:.3f}"
    )
    print(f"processor seconds for each of {rounds} rounds: {seconds / rounds:.1f}")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
