"""The fingerprint of what row sums depend on besides the rows: sums with different fingerprints must not be added."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from torch import Tensor

from ..scaled import ScaledGP
from .fits import encode_fit
from .gps import encode_gp

_SCALERS = ("inputs_scaler", "target_scaler")
_MODULES = ("feature_map", "noise")
_TENSORS = ("model.", "inputs_scaler.", "target_scaler.")
# The noise variance that all rows share is not in the sums, so it may be optimised anew without making them useless.
_NOT_IN_THE_SUMS = "model.noise.log_variance"


def fixed_part_fingerprint(fit: ScaledGP, encoder: Mapping[str, object]) -> str:
    """The hash of features, row noise scales, scaling and encoding, to the last bit; 64 hexadecimal digits.

    It does not change when a posterior takes up rows, nor when a model is saved and loaded.

    Args:
        fit: Of which the posterior, the record and the common noise variance are left aside.
        encoder: Of the table, as JSON.
    """
    whole, tensors = encode_fit(fit)
    header, mine = encode_gp(fit.fitted, len(fit.inputs_scaler.scale))
    tensors |= mine
    chosen = {name: tensor for name, tensor in tensors.items() if name.startswith(_TENSORS)}
    chosen.pop(_NOT_IN_THE_SUMS, None)
    return content_hash(
        {"encoder": encoder, **{name: header[name] for name in _MODULES}, **{name: whole[name] for name in _SCALERS}},
        chosen,
    )


def content_hash(header: Mapping[str, object], tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of JSON and tensors, in an order of its own; the same on every machine."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.numpy()
        digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
