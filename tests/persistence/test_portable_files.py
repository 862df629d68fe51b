"""A file gives the same predictions where another LAPACK rounds differently."""

import numpy as np
import torch
from export_models import kept

from finitegp.features import landmarks
from finitegp.linalg import CholeskyFactor
from finitegp.persistence import load_fit, save_fit


def test_a_kernel_that_is_all_but_singular(tmp_path, monkeypatch):
    """The factor of an RBF kernel's covariance is known to seven digits; predictions have all of theirs."""
    fit, new = kept("automatic small").fitted, kept("automatic small").new
    assert any("rbf" in component.name for component in fit.components)
    save_fit(fit, tmp_path / "fit.finitegp")
    factors = []

    def numpys(matrix):
        lower = torch.from_numpy(np.linalg.cholesky(matrix.numpy() * (1.0 + 1e-15)))
        factors.append((lower, landmark_factor(matrix).lower))
        return CholeskyFactor(lower, 0.0)

    landmark_factor = landmarks.cholesky
    monkeypatch.setattr(landmarks, "cholesky", numpys)
    again = load_fit(tmp_path / "fit.finitegp")
    assert max(float((one - other).abs().max()) for one, other in factors) > 1e-9
    torch.testing.assert_close(again.predict(new).mean, fit.predict(new).mean, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(again.predict(new).std, fit.predict(new).std, rtol=1e-9, atol=0.0)
