"""``Cell``: one experiment, named by everything that determines its result; and the grids made of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KERNELS = ("linear", "gaussian")
#: The paper's four, with the letters it uses for them.
PAPER_METHODS = ("minimax", "scgd", "svgp", "bsgd")
#: Ours: with constant noise, with noise that depends on the input, and the saddle point with steps that settle at it.
OUR_METHODS = ("lagged", "lagged-input-noise", "minimax-stable")
#: Our default, which chooses for itself: like the peers it has settings of its own, no kernel and no batch size.
AUTO = "auto"
#: AdaDelta's; the paper does not give its grid. After 20 epochs 3 was worse than 1 on bike and elevators; after fewer,
#: on other tables, 1 is often the best of these, so that a wider grid might do better.
LEARNING_RATES = (0.1, 0.3, 1.0)
#: Lagged's grid: each entry one configuration.
LAGGED_SETTINGS: tuple[dict[str, Any], ...] = (
    {"learning_rate": 1e-3, "weight_update": "train", "block": 20, "window": 1000},
    {"learning_rate": 4e-3, "weight_update": "solve", "block": 10, "window": 40},
)


@dataclass(frozen=True)
class Cell:
    """One experiment.

    Attributes:
        dataset: The table.
        split: Which of its ten splits.
        method: One of the paper's, ours, or a peer.
        kernel: ``"linear"`` or ``"gaussian"`` on the paper's network; None for a peer.
        batch_size: None for a peer, which has settings of its own.
        epochs: None for a peer.
        seed: Of initialisation and batches.
        settings: Everything else that was chosen, by name.
    """

    dataset: str
    split: int
    method: str
    kernel: str | None = None
    batch_size: int | None = None
    epochs: int | None = None
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Cell:
        """The cell that a line of results, or the JSON of a cell, belongs to."""
        return cls(**{name: row[name] for name in cls.__dataclass_fields__})

    def to_row(self) -> dict[str, Any]:
        """The cell as the first entries of its line of results."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"settings": dict(self.settings)}

    @property
    def key(self) -> str:
        """Equal for equal cells."""
        return json.dumps(self.to_row(), sort_keys=True)

    @property
    def digest(self) -> str:
        """A short name of the cell, fit for a file."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:20]

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        where = f"{self.dataset}/{self.split} {self.method}"
        if self.kernel is None:
            return " ".join([where, *(f"{name}={value}" for name, value in self.settings.items())])
        rate = self.settings.get("learning_rate")
        return (
            f"{where} {self.kernel} batch {self.batch_size} lr {rate} {self.settings.get('weight_update', '')}".strip()
        )


def make_grid(
    *,
    methods: Sequence[str],
    datasets: Iterable[str],
    splits: Iterable[int] = (0,),
    kernels: Iterable[str] = ("linear",),
    batch_sizes: Iterable[int] = (32,),
    learning_rates: Sequence[float] | None = None,
    optimizer: str | None = None,
    epochs: int = 100,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> list[Cell]:
    """All combinations, without repetition.

    ``learning_rates`` replaces each method's own grid; ``settings`` are set in every cell. With a protocol among them
    there is no optimizer: the protocol has its own, and the cell is that of ``reproduce``.

    Example:
        >>> len(make_grid(methods=["scgd", "bsgd"], datasets=["bike"], batch_sizes=[32, 64], learning_rates=[1.0]))
        4
    """
    found: dict[str, Cell] = {}
    kernels, batch_sizes, splits = list(kernels), list(batch_sizes), list(splits)
    for dataset in datasets:
        for split in splits:
            for method in methods:
                if method not in PAPER_METHODS + OUR_METHODS:
                    cell = Cell(dataset, split, method, seed=seed, settings=dict(settings or {}))
                    found[cell.key] = cell
                    continue
                for kernel in kernels:
                    for batch_size in batch_sizes:
                        for chosen in _configurations(method, learning_rates, optimizer):
                            chosen = chosen | dict(settings or {})
                            if "protocol" in chosen:
                                del chosen["optimizer"]
                            cell = Cell(dataset, split, method, kernel, batch_size, epochs, seed, chosen)
                            found[cell.key] = cell
    return list(found.values())


def _configurations(method: str, learning_rates: Sequence[float] | None, optimizer: str | None) -> list[dict[str, Any]]:
    if method in PAPER_METHODS:
        name = optimizer or "adadelta"
        return [{"optimizer": name, "learning_rate": rate} for rate in learning_rates or LEARNING_RATES]
    settings = ({"learning_rate": 1e-3},) if method == "minimax-stable" else LAGGED_SETTINGS
    grid = [{"optimizer": optimizer or "adam"} | setting for setting in settings]
    if learning_rates is None:
        return grid
    return [setting | {"learning_rate": rate} for setting in grid for rate in learning_rates]
