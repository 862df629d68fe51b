"""The memory bill of :mod:`.large_table`, item by item, and what a memory budget makes smaller.

Every item follows the code that it is the bill of: where a line has ``3``, three such arrays are alive at once in the
worst moment. ``benchmarks/memory.py`` compares the sums with what the kernel measures, and a test does so for one fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from ..extrapolation import CHEAP_FREQUENCIES, CLUSTERED_ROWS, MODELS, MOST_CENTRES, PIECE, TESTED_ROWS
from ..linalg import GRAM_BLOCK_ROWS
from ..lite.program import TREE_NUMBERS, TREES_AT_ONCE
from ..memory.plan import CHUNKS, SMALL_OBJECTS, Item, MemoryPlan, Part, find_plan
from ..trees import mask_bytes
from .boosting import LARGE_TREES, NOISE_TREES, boosting_bytes, tree_bytes
from .ensemble import LARGEST_GROUP, embedding_shape, fold_size
from .lagged_training import BLOCK
from .noise_networks import BATCH_SIZE, FREQUENCIES, HIDDEN
from .noise_trees import COUNTS
from .settings import EXACT_PASS_SHARES, AutoSettings

# What is tried, best first: shares of the sample, and rows set aside.
_SHARES_OF_SAMPLE = (1.0, 0.7, 0.5, 0.35, 0.25, 0.18, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01)
_VALIDATION_ROWS = (2000, 1000, 500, 250)
# With fewer rows to learn from, a smaller model comes first; with fewer still nothing can be learned.
_FEW_ROWS, _FEWEST_ROWS = 10_000, 1_000
# Few rows at once slow everything down: before, a thread goes.
_SMALL_CHUNK, _SMALLEST_CHUNK = 256, 64
# BLAS copies panels of this number of rows into memory of its own, and keeps it: measured with OpenBLAS.
_BLAS_PANEL_ROWS = 384
# The width of the embedding of noise networks: the default of PeriodicEmbedding.
_NOISE_WIDTH = 4


@dataclass(frozen=True)
class LargeTableSetting:
    """Everything that the memory of the fit depends on.

    Attributes:
        settings: Those of the fit.
        wanted: Those without a budget.
        rows: Of all data.
        columns: Input columns.
        threads: How many.
        counted: Whether rows stand for several.
        reading_bytes: Memory that reading takes besides the chunks.
        kept_bytes: What the caller keeps.
        in_order: Whether rows can only be read in order, by one thread, which is a chunk ahead of the others.
    """

    settings: AutoSettings
    wanted: AutoSettings
    rows: int
    columns: int
    threads: int = 1
    counted: bool = False
    reading_bytes: int = 0
    kept_bytes: int = 0
    in_order: bool = False

    @property
    def sample(self) -> int:
        """Rows in memory."""
        return min(self.rows, self.settings.max_sample)

    @property
    def num_features(self) -> int:
        """Of all networks, the Fourier kernel and the line."""
        networks = self.settings.members * self.settings.hidden[-1]
        return networks + self.settings.count_fourier(self.columns) + self.columns + 1

    def describe(self) -> str:
        """The setting in a line."""
        s = self.settings
        changed = ", ".join(
            f"{name} {getattr(s, name)} instead of {getattr(self.wanted, name)}" for name in self.changes()
        )
        return (
            f"{self.rows} rows of {self.columns} columns, {self.sample} of them in memory, {s.members} networks, "
            f"{self.num_features} features, chunks of {s.chunk_size}, {self.threads} "
            + ("thread" if self.threads == 1 else "threads")
            + (f"; for the budget: {changed}" if changed else "; nothing is smaller than without a budget")
        )

    def changes(self) -> list[str]:
        """The names of settings that a budget has changed."""
        names = ("trees", "members", "hidden", "fourier_features", "max_sample", "max_validation_rows", "chunk_size")
        return [name for name in names if getattr(self.settings, name) != getattr(self.wanted, name)]


def plan_large_table(budget: int, wanted: LargeTableSetting) -> MemoryPlan[LargeTableSetting]:
    """The setting nearest to what is wanted that fits; the smallest of all if none does.

    Rows that pass at once become fewer first, then the sample and the rows set aside; only if that is not enough, the
    model becomes smaller: Fourier features, networks, and at last their width.
    """
    return find_plan(_candidates(wanted), memory_bill, budget, _PARTS)


def _candidates(wanted: LargeTableSetting) -> Iterator[LargeTableSetting]:
    for model in _models(wanted.settings):
        last = model.hidden != wanted.settings.hidden
        fewest = min(_FEWEST_ROWS if last else _FEW_ROWS, wanted.sample)
        for share in _SHARES_OF_SAMPLE:
            sample = int(share * wanted.sample)
            if sample < fewest:
                break
            settings = model if share == 1.0 else replace(model, max_sample=sample)
            set_aside = settings.count_validation(sample)
            yield replace(wanted, settings=settings)
            for rows in _VALIDATION_ROWS if last else _VALIDATION_ROWS[:2]:
                if rows < set_aside:
                    yield replace(wanted, settings=replace(settings, max_validation_rows=rows))


def _models(settings: AutoSettings) -> Iterator[AutoSettings]:
    yield settings
    if settings.trees:
        settings = replace(settings, trees=0)
        yield settings
    fourier = settings.fourier_features
    while fourier >= 128:
        fourier = fourier // 8 * 4
        yield replace(settings, fourier_features=fourier)
    for members in range(settings.members - 1, 1, -1):
        yield replace(settings, members=members, fourier_features=fourier)
    for share in (2, 4):
        hidden = tuple(max(8, width // share) for width in settings.hidden)
        yield replace(settings, members=2, fourier_features=min(fourier, 32), hidden=hidden)


def _chunks(smallest: int, setting: LargeTableSetting) -> Iterator[LargeTableSetting]:
    for size in CHUNKS:
        if smallest <= size <= setting.settings.chunk_size:
            yield replace(setting, settings=replace(setting.settings, chunk_size=size))


_PARTS: tuple[Part[LargeTableSetting], ...] = (
    Part(lambda setting: _chunks(_SMALL_CHUNK, setting)),
    Part(lambda setting: (replace(setting, threads=count) for count in range(setting.threads, 0, -1))),
    Part(lambda setting: _chunks(_SMALLEST_CHUNK, setting)),
)


def memory_bill(fit: LargeTableSetting) -> Iterator[Item]:
    """The items in memory in each stage of :func:`~finitegp.automatic.large_table.fit_large_table`."""
    yield Item("always", "small objects", SMALL_OBJECTS)
    if fit.kept_bytes:
        yield Item("always", "rows held out or shown", fit.kept_bytes)
    yield Item("always", "sample", fit.sample * 8 * (fit.columns + (2 if fit.counted else 1)))
    yield Item("always", "targets of rows that may come again", fit.sample * 8 * 3)
    yield from _sampling(fit)
    yield from _training(fit)
    if fit.settings.trees:
        yield from _trees(fit)
    yield from _extrapolation(fit)
    if fit.settings.input_noise:
        yield from _noise(fit)
    yield from _exact_pass(fit)
    yield from _calibration(fit)
    yield from _prediction(fit)


def _chunk_of_rows(fit: LargeTableSetting) -> int:
    """As read, in float64, and scaled."""
    return 3 * 8 * fit.settings.chunk_size * (fit.columns + 1) + fit.reading_bytes


def _sampling(fit: LargeTableSetting) -> Iterator[Item]:
    yield Item("sampling", "rows as they are read", _chunk_of_rows(fit))
    # Numbers of rows and their order; then quantiles column by column; then hashes that show equal rows.
    yield Item("sampling", "numbers of rows, and what is found of columns", 12 * 8 * fit.sample)


def _networks(phase: str, fit: LargeTableSetting) -> Item:
    return Item(phase, "networks", 4 * fit.settings.members * _parameters(fit.columns, fit.settings))


def _training(fit: LargeTableSetting) -> Iterator[Item]:
    s, p = fit.settings, fit.columns
    rows, group = fit.sample - s.count_validation(fit.sample), LARGEST_GROUP
    groups = min(fit.threads, -(-s.members // group))
    at_once, width = groups * group, s.hidden[-1]
    for phase in ("training: step", "training: refresh", "training: sums"):
        yield _networks(phase, fit)
        yield Item(phase, "sample in float32", rows * 4 * (p + 1))
        # Of each member: its rows, a permutation, and its rows in that order.
        yield Item(phase, "orders of the rows", at_once * 3 * 8 * rows)
        yield Item(phase, "matrices that are tracked", at_once * (8 + 4) * width**2)
    # Values, gradients and moments; the step's gradient and its update; stacked values before they are joined.
    yield Item("training: step", "parameters and optimizer", at_once * 7 * 4 * _parameters(p, s))
    yield Item("training: refresh", "parameters and optimizer", at_once * 5 * 4 * _parameters(p, s))
    batch = min(s.batch_size, rows)
    pending = max(BLOCK, 10 * width // batch)
    yield Item("training: step", "batch in the networks", at_once * 4 * batch * (_kept(p, s) + _back(p, s)))
    yield Item("training: step", "features since the last refresh", at_once * 4 * pending * batch * width)
    yield Item("training: refresh", "batch in the networks", at_once * 4 * batch * _kept(p, s))
    yield Item("training: refresh", "features since the last refresh", at_once * 2 * 4 * pending * batch * width)
    yield Item("training: refresh", "matrices that are solved", groups * (group * 4 + 5 * 8) * width**2)
    chunk = min(s.chunk_size, rows)
    yield Item("training: sums", "parameters", at_once * 4 * _parameters(p, s))
    yield Item("training: sums", "chunk in the networks", at_once * 4 * chunk * _kept(p, s))
    block = 8 * min(GRAM_BLOCK_ROWS, chunk) * width
    # Also while eigenvectors are found.
    yield Item("training: sums", "features of a member and sums", groups * (4 * chunk * width + block))
    yield Item("training: sums", "matrices", groups * (group + 6) * 8 * width**2)


def _trees(fit: LargeTableSetting) -> Iterator[Item]:
    rows, held_out = fit.sample - fit.settings.count_validation(fit.sample), fit.settings.count_validation(fit.sample)
    yield _networks("trees", fit)
    yield _folds("trees", fit)
    growing = 2 * boosting_bytes(rows, fit.columns, fit.settings.trees, LARGE_TREES) + 16 * held_out
    # The halves that predict each other come after these.
    yield Item("trees", "what trees of the other half predict", 3 * 8 * rows)
    yield Item("trees", "binned rows, histograms and trees that grow", growing)
    yield Item("trees", "trees", tree_bytes(fit.settings.trees, LARGE_TREES) + mask_bytes(fit.settings.trees))


def _extrapolation(fit: LargeTableSetting) -> Iterator[Item]:
    s, p = fit.settings, fit.columns
    for phase in ("effects of columns", "extrapolation"):
        yield _networks(phase, fit)
        yield _folds(phase, fit)
    yield Item("effects of columns", "networks side by side", 4 * s.members * _parameters(p, s))
    yield Item("effects of columns", "rows in the networks", 4 * s.members * min(s.chunk_size, 400) * _kept(p, s))
    rows, width = min(TESTED_ROWS, fit.sample), 2 * CHEAP_FREQUENCIES + p + 1
    cheap = 8 * ((MODELS + 3) * width**2 + 3 * max(PIECE, rows // 5) * width + (MODELS + 3) * rows * p)
    clustered = 8 * 3 * min(CLUSTERED_ROWS, fit.sample) * p + 8 * 2 * PIECE * MOST_CENTRES
    yield Item("extrapolation", "linear models, or rows in clusters", max(cheap, clustered, 8 * 5 * fit.sample))


def _folds(phase: str, fit: LargeTableSetting) -> Item:
    """Of each fold, numbers and predictions; then residuals, squares and variances."""
    return Item(phase, "folds", 6 * 8 * _left_out(fit))


def _left_out(fit: LargeTableSetting) -> int:
    rows = fit.sample - fit.settings.count_validation(fit.sample)
    return int(fit.settings.members * fold_size(rows, fit.settings.members))


def _noise(fit: LargeTableSetting) -> Iterator[Item]:
    s, p, rows = fit.settings, fit.columns, _left_out(fit)
    at_once = min(fit.threads, s.noise_networks)
    yield _networks("noise", fit)
    yield _folds("noise", fit)
    yield Item("noise", "rows of the folds", rows * (8 * (p + 1) + 4 * (p + 1)))
    yield Item("noise", "orders of the rows", at_once * 4 * 8 * rows)
    # The best so far, twice while it is replaced.
    yield Item("noise", "noise networks", 4 * (s.noise_networks + at_once * 8) * _noise_parameters(p))
    kept = p * (2 * FREQUENCIES + 3 * _NOISE_WIDTH + 1) + 3 * sum(HIDDEN)
    back = 2 * p * FREQUENCIES + 3 * max(*HIDDEN, p * _NOISE_WIDTH)
    passing = max(min(BATCH_SIZE, rows) * (kept + back), min(s.chunk_size, rows) * kept)
    yield Item("noise", "rows in the networks", at_once * 4 * passing)
    if s.trees:
        yield _networks("noise trees", fit)
        yield _folds("noise trees", fit)
        # As they are, bounded in float32 and float64, and those of a fold's others; logarithms and predictions.
        yield Item("noise trees", "rows of the folds", rows * (8 * 3 + 4) * (p + 1) + rows * 8 * (len(COUNTS) + 6))
        growing = boosting_bytes(rows, p, COUNTS[-1], NOISE_TREES)
        yield Item("noise trees", "binned rows, histograms and trees that grow", growing)


def _model(phase: str, fit: LargeTableSetting, copies: int) -> Iterator[Item]:
    """The joined model in float64."""
    s, p = fit.settings, fit.columns
    noise = s.noise_networks * _noise_parameters(p) if s.input_noise else 0
    numbers = s.members * _parameters(p, s) + noise + s.count_fourier(p) // 2 * p
    trees = tree_bytes(COUNTS[-1], NOISE_TREES) if s.trees and s.input_noise else 0
    yield Item(phase, "model", copies * (8 * numbers + trees))
    yield Item(phase, "work space of BLAS", 8 * _BLAS_PANEL_ROWS * fit.num_features)


def _matrix(fit: LargeTableSetting) -> int:
    return 8 * (fit.num_features + 1) ** 2


def _held_out(phase: str, fit: LargeTableSetting) -> Iterator[Item]:
    rows = fit.settings.count_validation(fit.sample)
    yield _networks(phase, fit)
    yield _folds(phase, fit)
    yield Item(phase, "features of rows set aside", 8 * rows * fit.num_features)


def _exact_pass(fit: LargeTableSetting) -> Iterator[Item]:
    chunk, at_once = fit.settings.chunk_size, min(fit.threads, EXACT_PASS_SHARES)
    yield from _held_out("exact pass", fit)
    yield from _model("exact pass", fit, 2)
    # Of rows set aside; of each share; and the first of these with its mirror image.
    yield Item("exact pass", "sums", (2 + EXACT_PASS_SHARES) * _matrix(fit))
    block = 8 * min(GRAM_BLOCK_ROWS, chunk) * fit.num_features
    yield Item("exact pass", "chunk in the features", at_once * (8 * chunk * _numbers_per_row(fit) + block))
    ahead = 1 if fit.in_order and fit.threads > 1 else 0
    yield Item("exact pass", "rows of the chunk", (at_once + ahead) * _chunk_of_rows(fit))


def _calibration(fit: LargeTableSetting) -> Iterator[Item]:
    rows = fit.settings.count_validation(fit.sample)
    yield from _held_out("calibration", fit)
    yield from _model("calibration", fit, 2)
    yield Item("calibration", "sums, sums without rows set aside, scaled ones, factor", 5 * _matrix(fit))
    chunk = min(rows, fit.settings.chunk_size)
    yield Item("calibration", "rows that are predicted", 8 * 4 * chunk * fit.num_features)


def _prediction(fit: LargeTableSetting) -> Iterator[Item]:
    chunk = fit.settings.chunk_size
    yield from _model("prediction", fit, 1)
    if fit.settings.trees:
        walks = TREE_NUMBERS * 8 * TREES_AT_ONCE + mask_bytes(fit.settings.trees)
        yield Item("prediction", "trees", tree_bytes(fit.settings.trees, LARGE_TREES) + walks)
    yield Item("prediction", "posterior, and blocks of its factor", 2 * _matrix(fit) + _matrix(fit) // 2)
    numbers = max(_numbers_per_row(fit), 4 * fit.num_features) + 8 * fit.columns
    yield Item("prediction", "chunk in the features", 8 * chunk * numbers)
    yield Item("prediction", "distances to centres", 8 * 2 * PIECE * MOST_CENTRES)


def _numbers_per_row(fit: LargeTableSetting) -> int:
    """Features of all maps and these joined; or a layer at work, beside features of other maps or of all."""
    s, p = fit.settings, fit.columns
    width, frequencies = embedding_shape(p, s)
    d, layer = fit.num_features, max(2 * p * frequencies, 3 * p * width, 2 * max(s.hidden))
    noise = max(2 * p * FREQUENCIES, 2 * max(HIDDEN)) if s.input_noise else 0
    return max(2 * d, d - s.hidden[-1] + layer, d + noise)


def _kept(columns: int, settings: AutoSettings) -> int:
    """Numbers per row and member that a forward pass of batched networks keeps, and what the last layer takes."""
    width, frequencies = embedding_shape(columns, settings)
    embedded = columns * (2 * frequencies + 3 * width + 1)
    return embedded + 2 * sum(settings.hidden) + 4 * max(settings.hidden)


def _back(columns: int, settings: AutoSettings) -> int:
    """Numbers per row and member of gradients: of two layers, or of columns and angles."""
    width, frequencies = embedding_shape(columns, settings)
    return max(2 * max(settings.hidden), columns * (2 * width + frequencies))


@lru_cache
def _parameters(columns: int, settings: AutoSettings) -> int:
    width, frequencies = embedding_shape(columns, settings)
    embedding = columns * (2 * frequencies + (frequencies + 1) * (width - 1))
    widths = (columns * width, *settings.hidden)
    return embedding + sum((one + 1) * other for one, other in pairwise(widths))


def _noise_parameters(columns: int) -> int:
    embedding = columns * (2 * FREQUENCIES + (FREQUENCIES + 1) * (_NOISE_WIDTH - 1))
    widths = (columns * _NOISE_WIDTH, *HIDDEN, 1)
    return embedding + sum((one + 1) * other for one, other in pairwise(widths))
