"""Prediction with a model of any kind within a memory budget."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..features import PeriodicEmbedding
from ..memory import PredictionSetting
from ..model import FittedGP

_PROBE_ROWS = 2


def prediction_setting(fitted: FittedGP, num_columns: int, **table: int) -> PredictionSetting:
    """What a memory plan has to know of a model; its widest layer is found by a probe.

    Args:
        fitted: The model.
        num_columns: Input columns.
        table: ``table_columns``, ``table_rows`` and ``reading_bytes`` of the plan's setting.
    """
    return PredictionSetting(
        num_columns=num_columns,
        num_features=fitted.posterior.num_features,
        num_parameters=sum(tensor.numel() for tensor in fitted.model.state_dict().values()),
        layer_width=widest_layer_of(fitted.model, num_columns),
        chunk_size=fitted.chunk_size,
        **table,
    )


@torch.no_grad()
def widest_layer_of(model: nn.Module, num_columns: int) -> int:
    """Numbers per row that go into and come out of one layer, where they are most.

    Example:
        >>> from finitegp import FeatureGP
        >>> from finitegp.features import MLPFeatures
        >>> widest_layer_of(FeatureGP(MLPFeatures(3, hidden=(40, 20))).double(), num_columns=3)
        80
    """
    widest = num_columns

    def measure(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal widest
        tensors = [each for each in (*inputs, output) if isinstance(each, Tensor)]
        inside = 0
        if isinstance(layer, PeriodicEmbedding):
            inside = 2 * layer.frequencies.numel()  # angles and cosines
        widest = max(widest, inside, sum(tensor.numel() for tensor in tensors) // _PROBE_ROWS)

    layers = [layer for layer in model.modules() if not list(layer.children())]
    hooks = [layer.register_forward_hook(measure) for layer in layers]
    try:
        like = next((t for t in model.parameters() if t.is_floating_point()), torch.zeros((), dtype=torch.float64))
        model(torch.zeros(_PROBE_ROWS, num_columns).to(like))
    finally:
        for hook in hooks:
            hook.remove()
    return widest
