"""A network of your own as feature map: predict the frequency of noisy oscillations, with error bars.

``python examples/deep_kernel.py`` (``--small`` for a quick look). Rows are 64 samples of a damped oscillation with
a random phase: what matters about them is the same wherever it occurs, so a convolution suits them. Any ``nn.Module``
from ``(rows, columns)`` to ``(rows, features)`` will do; the kernel is the inner product of its outputs.
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from torch import Tensor, nn

from finitegp import FeatureGP, GPRegressor, Lagged, Validation, cosine_decay, make_optimizer, score, train

SAMPLES = 64


class ConvolutionFeatures(nn.Module):
    """Two convolutions, then the mean over time and a linear layer."""

    def __init__(self, channels: int = 16, num_features: int = 32) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, channels, kernel_size=9, padding=4),
            nn.SiLU(),
            nn.Conv1d(channels, channels, kernel_size=9, padding=4),
            nn.SiLU(),
        )
        self.output = nn.Linear(channels, num_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Features ``(rows, num_features)`` of signals ``(rows, samples)``."""
        return self.output(self.layers(inputs[:, None, :]).mean(dim=2))


def make_signals(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Signals ``(rows, SAMPLES)`` and their frequencies."""
    generator = np.random.default_rng(seed)
    time = np.linspace(0, 1, SAMPLES)
    frequency = generator.uniform(3, 12, size=rows)
    phase, damping = generator.uniform(0, 2 * np.pi, size=rows), generator.uniform(0, 3, size=rows)
    signal = np.exp(-damping[:, None] * time) * np.sin(2 * np.pi * frequency[:, None] * time + phase[:, None])
    return signal + 0.3 * generator.normal(size=signal.shape), frequency


def main(small: bool = False) -> None:
    """Run the example."""
    rows, epochs = (300, 5) if small else (4000, 30)
    X, y = make_signals(rows, seed=0)
    X_test, y_test = make_signals(rows // 4, seed=1)
    torch.manual_seed(0)  # of the networks' first weights

    # As a scikit-learn estimator: scaling, early stopping and calibration come with it.
    gp = GPRegressor(ConvolutionFeatures(), epochs=epochs, batch_size=64, learning_rate=3e-3, random_state=0)
    mean, std = gp.fit(X, y).predict(X_test, return_std=True)

    # The same in torch, where every part can be changed, and where scaling and settings are ours to choose.
    inputs, targets = torch.from_numpy(X / X.std()).float(), torch.from_numpy((y - y.mean()) / y.std())
    held_out = rows // 10
    training = inputs[held_out:], targets[held_out:]
    model = FeatureGP(ConvolutionFeatures(), noise_variance=0.1)
    algorithm = Lagged(model, num_data=rows - held_out, block=5, window=100, input_dim=SAMPLES)
    run = train(
        algorithm,
        make_optimizer(algorithm, learning_rate=3e-3),
        training,
        epochs=epochs,
        batch_size=64,
        schedule=cosine_decay(epochs * -(-(rows - held_out) // 64)),
        callbacks=[Validation((inputs[:held_out], targets[:held_out]), every=max(1, epochs // 10))],
    )
    fitted = model.condition((inputs, targets))  # the exact posterior of all rows, one pass
    prediction = fitted.predict(torch.from_numpy(X_test / X.std()).float())

    best = run.best.epoch if run.best else epochs
    print(f"{rows} signals to train, {len(y_test)} to test; train kept the state of epoch {best}")
    truth, constant = torch.as_tensor(y_test), torch.ones(len(y_test))
    scores = {
        "mean of the training rows": score(y.mean() * constant, y.std() * constant, truth),
        "GPRegressor(module)": score(torch.as_tensor(mean), torch.as_tensor(std), truth),
        "FeatureGP, Lagged, train": score(prediction.mean * y.std() + y.mean(), prediction.std * y.std(), truth),
    }
    for name, found in scores.items():
        inside = f"{100 * found.coverage[0.9]:.0f} %"
        print(f"{name:26s} RMSE {found.rmse:.3f}   NLPD {found.nlpd:6.3f}   in 90 % intervals: {inside}")


if __name__ == "__main__":
    main(small="--small" in sys.argv[1:])
