"""Everything that the automatic fit decides, in one place, so that each piece can be changed or left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class AutoSettings:
    """The choices of :func:`~finitegp.automatic.fit_auto`.

    Attributes:
        small_rows: Up to so many rows a kernel's Fourier features are fitted full-batch instead of networks.
        fourier_features: Number of Fourier features on small tables.
        kernels: The kernels that compete on small tables.
        members: Networks, each trained without one fold of the rows; their features together make the kernel.
        fold_fraction: The share of rows in a fold; small folds leave more rows to each network ...
        min_fold_rows: ... but all folds together hold at least so many rows, if there are as many.
        hidden: Widths of each network.
        activation: Its nonlinearity; see :class:`~finitegp.features.MLPFeatures`.
        embedding: Whether columns pass through :class:`~finitegp.features.PeriodicEmbedding` first.
        num_frequencies: Cosines per column of the embedding.
        embedding_width: Its outputs per column.
        frequency_scale: Of the initial frequencies of the embedding: large ones see sharp steps, small ones are smooth.
        learning_rate: Of Adam, with cosine decay.
        weight_decays: Decoupled, of all parameters. The first network is trained once with each, and the one with the
            smallest error on the validation rows is that of all other networks.
        batch_size: Rows per step.
        epochs: Passes over the rows of a member ...
        min_steps: ... but at least so many steps ...
        max_epochs: ... in no more passes than these ...
        max_steps: ... and in no more steps than these.
        block: Batches between refreshes of ``Lagged``.
        window: Batches that its statistics cover.
        refine_fraction: Where the noise depends on the input, networks are trained further with rows weighted by their
            noise, for this fraction of their epochs; 0 leaves it out.
        refine_rate: The learning rate of that, as a fraction of the first one.
        refine_power: Rows are weighted by noise variance to the power of minus this.
        input_noise: Whether the noise depends on the input.
        noise_networks: Networks for the noise; their mean variance counts.
        noise_hidden: Width of the noise networks.
        noise_epochs: Passes over the rows for the noise networks ...
        noise_min_steps: ... but at least so many steps.
        noise_learning_rate: Of Adam, with cosine decay.
        noise_weight_decay: Decoupled.
        validation_fraction: Rows that only stop, calibrate and choose; the closing pass uses them too ...
        max_validation_rows: ... no more than these.
        calibrate: Whether predictive variances are scaled to the validation rows.
        heavy_tails: Whether the predictive distribution may be Student's t, where the rows say that a few errors are
            far larger than most.
    """

    small_rows: int = 1500
    fourier_features: int = 512
    kernels: tuple[str, ...] = ("rbf", "matern32")
    members: int = 5
    fold_fraction: float = 0.1
    min_fold_rows: int = 10_000
    hidden: tuple[int, ...] = (128, 128, 128)
    activation: str = "mish"
    embedding: bool = True
    num_frequencies: int = 16
    embedding_width: int = 4
    frequency_scale: float = 1.0
    learning_rate: float = 5e-3
    weight_decays: tuple[float, ...] = (0.01, 0.1)
    batch_size: int = 128
    epochs: int = 12
    min_steps: int = 4000
    max_epochs: int = 100
    max_steps: int = 12000
    block: int = 5
    window: int = 100
    refine_fraction: float = 0.3
    refine_rate: float = 0.4
    refine_power: float = 0.5
    input_noise: bool = True
    noise_networks: int = 4
    noise_hidden: int = 64
    noise_epochs: int = 30
    noise_min_steps: int = 2000
    noise_learning_rate: float = 3e-3
    noise_weight_decay: float = 0.05
    validation_fraction: float = 0.1
    max_validation_rows: int = 10_000
    calibrate: bool = True
    heavy_tails: bool = True

    def __post_init__(self) -> None:
        """Check what a user can set wrongly."""
        whole = ("members", "batch_size", "epochs", "block", "noise_networks", "noise_hidden", "noise_epochs")
        for name in (*whole, "fourier_features"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but is {getattr(self, name)}.")
        if self.members < 2 and self.input_noise:
            raise ValueError("members must be at least 2 with input_noise: the noise is learned from left-out folds.")
        if not 0.0 < self.validation_fraction < 0.5:
            raise ValueError(f"validation_fraction must lie between 0 and 0.5, but is {self.validation_fraction}.")
        if not 0.0 <= self.refine_fraction <= 1.0:
            raise ValueError(f"refine_fraction must lie between 0 and 1, but is {self.refine_fraction}.")
        if not 0.0 < self.fold_fraction <= 1.0:
            raise ValueError(f"fold_fraction must lie between 0 and 1, but is {self.fold_fraction}.")
        for name in ("kernels", "weight_decays"):
            if not getattr(self, name):
                raise ValueError(f"{name} must hold at least one value.")

    def with_changes(self, changes: Mapping[str, Any]) -> AutoSettings:
        """The same settings with some changed by name; an unknown name is an error."""
        known = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(f"There is no setting {unknown[0]!r}; there are {', '.join(sorted(known))}.")
        # JSON has no tuples.
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in changes.items()}
        return replace(self, **values)

    def to_dict(self) -> dict[str, Any]:
        """All settings by name."""
        return asdict(self)


#: What each effort stands for.
EFFORTS: dict[str, AutoSettings] = {
    "low": AutoSettings(
        members=2,
        weight_decays=(0.03,),
        epochs=6,
        min_steps=1500,
        refine_fraction=0.0,
        noise_networks=2,
        noise_epochs=10,
        noise_min_steps=600,
        kernels=("rbf",),
        fourier_features=256,
    ),
    "medium": AutoSettings(),
    "high": AutoSettings(
        members=9,
        weight_decays=(0.003, 0.03, 0.1, 0.3),
        epochs=40,
        min_steps=6000,
        max_steps=40_000,
        kernels=("rbf", "matern32", "matern52"),
    ),
}
