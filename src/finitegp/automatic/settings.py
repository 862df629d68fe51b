"""The settings of the automatic fit, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

# Rows that are in memory are summed in this number of shares, whatever the number of threads.
EXACT_PASS_SHARES = 2
# With at least this number of rows that hyperparameters were not learned from, these alone judge, without refits.
ENOUGH_JUDGES = 1000
_MANY_COLUMNS = 64


@dataclass(frozen=True)
class AutoSettings:
    """The choices of :func:`~finitegp.automatic.fit_auto`.

    Attributes:
        small_rows: The most different rows that are fitted by exact kernels alone ...
        most_rows_for_both: ... and by kernels and networks, of which left-out rows choose; larger tables are fitted by
            networks.
        learning_rows: Rows that the kernels' hyperparameters are learned from; the posterior takes in every row.
        members: Networks, each trained without one fold of the rows.
        hidden: Widths of each network.
        num_frequencies: Cosines per column of its embedding; fewer where there are many columns.
        embedding_width: Outputs per column of its embedding; more where there are few columns.
        batch_size: Rows per step.
        steps: Steps on a table of 2,000 rows; larger ones get more, in proportion to the rows to the power of 0.4 ...
        max_steps: ... but no more than these.
        learning_rate: Of Adam, after a tenth of the steps of linear warm-up, with cosine decay.
        weight_decays: Decoupled, of all parameters. Two networks are trained with each, and the one under which all
            networks together err least, on rows set aside, is that of all others.
        max_sample: Rows that features are learned from; the exact pass takes in every row.
        trees: The most gradient-boosted trees, which have a part in the mean if left-out rows gain by it; 0 for none.
        fourier_features: Random Fourier features beside the networks.
        input_noise: Whether the noise depends on the input.
        noise_networks: Networks for the noise.
        noise_steps: Steps of each.
        validation_fraction: Rows that nothing is trained on: they choose priors, noise and the shape of errors ...
        max_validation_rows: ... no more than these.
        log_columns: Whether kernels of small tables may see heavy-tailed columns on a logarithmic scale as well.
        heavy_tails: Whether the predictive distribution of large tables may be another than the Gaussian.
        skewed_errors: Whether it may be skewed, with large tables only if it may have heavy tails.
        repeated_rows: Whether a new row may be predicted by the targets of equal rows, where rows repeat by themselves
            (:class:`~finitegp.lite.hashing.RepeatedRows`). Wrong where equal inputs are measured anew.
        chunk_size: Rows that pass through all features at once where nothing is trained: memory grows with it, results
            differ by rounding.
    """

    small_rows: int = 2000
    most_rows_for_both: int = 4000
    learning_rows: int = 600
    members: int = 4
    hidden: tuple[int, ...] = (128, 128, 128)
    num_frequencies: int = 16
    embedding_width: int = 4
    batch_size: int = 128
    steps: int = 1700
    max_steps: int = 6000
    learning_rate: float = 7e-3
    weight_decays: tuple[float, ...] = (0.03, 0.3)
    max_sample: int = 100_000
    trees: int = 600
    fourier_features: int = 512
    input_noise: bool = True
    noise_networks: int = 4
    noise_steps: int = 600
    validation_fraction: float = 0.1
    max_validation_rows: int = 4000
    log_columns: bool = True
    heavy_tails: bool = True
    skewed_errors: bool = True
    repeated_rows: bool = True
    chunk_size: int = 4096

    def __post_init__(self) -> None:
        """Check what a user can set wrongly."""
        for name in (
            "batch_size",
            "steps",
            "max_steps",
            "noise_steps",
            "max_sample",
            "max_validation_rows",
            "learning_rows",
            "chunk_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but is {getattr(self, name)}.")
        for name in ("members", "noise_networks"):
            if getattr(self, name) < 2:
                raise ValueError(f"{name} must be at least 2, but is {getattr(self, name)}: folds show the noise.")
        if self.trees < 0:
            raise ValueError(f"trees must not be negative, but is {self.trees}.")
        if not self.weight_decays:
            raise ValueError("weight_decays must hold at least one value.")
        if self.fourier_features < 4 or self.fourier_features % 4:
            raise ValueError(f"fourier_features must be a multiple of four, but is {self.fourier_features}.")
        if not 0.0 < self.validation_fraction < 0.5:
            raise ValueError(f"validation_fraction must lie between 0 and 0.5, but is {self.validation_fraction}.")

    @property
    def trees_beside_kernels(self) -> int:
        """The most trees of a small table, which has fewer rows, and one fit for each fold."""
        return self.trees // 2

    def count_fourier(self, columns: int) -> int:
        """Fourier features beside the networks; with many columns fewer, and there is less to gain from them."""
        return self.fourier_features if columns <= _MANY_COLUMNS else max(4, self.fourier_features // 8 * 4)

    def count_validation(self, rows: int) -> int:
        """Rows of a sample that are set aside."""
        return min(max(1, int(self.validation_fraction * rows)), self.max_validation_rows)

    def with_changes(self, changes: Mapping[str, object]) -> AutoSettings:
        """The same settings with some changed by name; an unknown name is an error."""
        known = {field.name for field in fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(f"There is no setting {unknown[0]!r}; there are {', '.join(sorted(known))}.")
        # JSON has no tuples.
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in changes.items()}
        return replace(self, **values)

    def to_dict(self) -> dict[str, object]:
        """All settings by name."""
        return asdict(self)


#: What each effort stands for.
EFFORTS: dict[str, AutoSettings] = {
    "low": AutoSettings(
        most_rows_for_both=0,
        learning_rows=300,
        members=2,
        weight_decays=(0.1,),
        steps=1000,
        max_steps=1200,
        trees=200,
        fourier_features=256,
        noise_networks=2,
        noise_steps=300,
        max_sample=40_000,
        max_validation_rows=2000,
    ),
    "medium": AutoSettings(),
    "high": AutoSettings(
        learning_rows=1000,
        members=9,
        weight_decays=(0.01, 0.1, 0.3, 1.0),
        steps=5000,
        max_steps=25_000,
        trees=1000,
        noise_steps=1500,
    ),
}
