"""Saving and loading what was fitted: ``save_fit``, ``load_fit``."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import __version__
from ..automatic import AutoFit
from ..errors import ModelFileError
from ..noise import NoiseModel
from .container import read_container, write_container
from .fits import decode_fit, encode_fit


def save_fit(fit: AutoFit, path: str | os.PathLike[str]) -> None:
    """Write a fit into one file: features, noise, scaling, posterior and record, but no training rows.

    A feature map that is not one of this library's (or made of ``nn.Sequential``, ``nn.Linear`` and activations) is
    saved as its tensors and the name of its class.

    Example:
        >>> import tempfile
        >>> from finitegp.automatic import fit_auto
        >>> generator = np.random.default_rng(0)
        >>> inputs = generator.normal(size=(40, 2))
        >>> targets = inputs[:, 0] + 0.1 * generator.normal(size=40)
        >>> fit = fit_auto(inputs, targets, settings={"fourier_features": 16, "kernels": ["rbf"]})
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     save_fit(fit, f"{directory}/small.finitegp")
        ...     again = load_fit(f"{directory}/small.finitegp")
        >>> bool((again.predict(inputs).mean == fit.predict(inputs).mean).all())
        True
    """
    header, tensors = encode_fits([fit])
    write_container(path, {"kind": "fit", **header}, tensors)


def load_fit(
    path: str | os.PathLike[str], *, feature_map: nn.Module | None = None, noise_model: NoiseModel | None = None
) -> AutoFit:
    """Read a fit that :func:`save_fit` wrote; its predictions are the same to the last bit on the same machine.

    Args:
        path: The file.
        feature_map: Needed if the saved one was a module of your own: a module made in the same way, whose tensors are
            then those of the file. It is copied, not changed.
        noise_model: The same for a noise model.

    Raises:
        ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether, or if the
            modules passed in are not those that were saved.
    """
    header, tensors = read_container(path)
    if header.get("kind") != "fit":
        raise ModelFileError(f"{path} holds a {str(header.get('kind'))[:60]!r}, not a single fit.")
    return decode_fits(path, header, tensors, feature_map=feature_map, noise_model=noise_model)[0]


def encode_fits(fits: Sequence[AutoFit]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header entries and tensors of several fits, and the versions of what made them."""
    headers: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for number, fit in enumerate(fits):
        header, mine = encode_fit(fit, f"fits.{number}.")
        headers.append(header)
        tensors |= mine
    versions = {
        "finitegp": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return {"versions": versions, "fits": headers}, tensors


def decode_fits(
    path: str | os.PathLike[str],
    header: dict[str, Any],
    tensors: dict[str, Tensor],
    *,
    feature_map: nn.Module | None = None,
    noise_model: NoiseModel | None = None,
) -> list[AutoFit]:
    """The fits of a file."""
    stored = header.get("fits")
    if not isinstance(stored, list) or not stored or len(stored) > len(tensors):
        raise ModelFileError(f"{path} cannot be used: it holds no fit.")
    try:
        return [
            decode_fit(each, tensors, f"fits.{number}.", feature_map=feature_map, noise_model=noise_model)
            for number, each in enumerate(stored)
        ]
    except ModelFileError as error:
        raise ModelFileError(f"{path} cannot be used: {error}.") from None
