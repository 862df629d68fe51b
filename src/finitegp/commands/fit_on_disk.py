"""``finitegp fit --memory``: rows are read from the table as often as they are needed, never all into memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .console import Console

if TYPE_CHECKING:
    from ..data import Source
    from ..distributed import Ranks
    from ..tables.encoder import TableEncoder
    from ..tables.reader import TableReader

# Rows of the table that are decoded at once.
CHUNK_ROWS = 8192
# Bytes of a CSV file that are read at once; a row must fit.
BLOCK_BYTES = 1 << 18
# Training rows that the report and the linear baseline see.
_SAMPLE_ROWS = 5000
# Held-out rows and this sample take at most this share of the budget, twice while they are put together.
_SHARE_OF_ROWS = 0.1


class SampledRows(NamedTuple):
    """Inputs and targets of some rows, and their numbers in the table."""

    inputs: npt.NDArray[np.float64]
    targets: npt.NDArray[np.float64]
    numbers: npt.NDArray[np.int64]


class DiskFit(NamedTuple):
    """A model, and rows to judge it with."""

    model: Any
    training_sample: SampledRows
    held_out: SampledRows
    seconds: float


def fit_on_disk(
    table: TableReader,
    encoder: TableEncoder,
    target: str,
    budget: str,
    *,
    effort: str,
    test_fraction: float,
    seed: int,
    console: Console,
    ranks: Ranks,
) -> DiskFit:
    """The regressor, a sample of its training rows, and the held-out rows, after the bill was shown."""
    from ..automatic import fit_source
    from ..data.other_rows import OtherRows
    from ..data.permutation import RandomPermutation
    from ..estimator import as_regressor
    from ..estimator.progress import stage_progress
    from ..memory import MemoryBudgetError, parse_bytes
    from ..tables.source import TableSource

    source = TableSource(table, target, encoder=encoder, chunk_size=CHUNK_ROWS)
    row_bytes = 2 * 8 * (source.input_dim + 1)
    wanted, room = int(test_fraction * source.num_data), int(_SHARE_OF_ROWS * parse_bytes(budget)) // row_bytes
    started = time.perf_counter()

    def fit(tests: int, sampled: int) -> DiskFit:
        order = RandomPermutation(source.num_data, seed + 1)(np.arange(tests + sampled))
        with ranks.working():  # so that what is wrong on all ranks is reported by one
            held_out, sample = _take(source, np.sort(order[:tests]), np.sort(order[tests:]))
        with stage_progress("fit", shown=not console.as_json and ranks.is_first) as progress:
            found = fit_source(
                OtherRows(source, held_out.numbers) if tests else source,
                effort=effort,
                seed=seed,
                memory_budget=budget,
                kept_bytes=row_bytes * (tests + sampled),
                on_plan=lambda plan: console.print(str(plan)),
                progress=progress,
                ranks=ranks,
            )
        if source.report is not None:
            console.note(*source.report.lines())
        if wanted == 0:
            console.note("No rows are held out, so there are no scores and no report.")
        elif tests < wanted:
            console.note(f"{tests} rows are held out for the scores instead of {wanted}: they are kept in memory.")
        model = as_regressor(found, effort=effort, random_state=seed, memory_budget=budget)
        return DiskFit(model, sample, held_out, time.perf_counter() - started)

    tests = min(wanted, room // 2)
    try:
        return fit(tests, min(_SAMPLE_ROWS, room - tests, source.num_data - tests) if tests else 0)
    except MemoryBudgetError:
        if tests == 0 or ranks.world_size > 1:  # other ranks have heard of it, and stop
            raise
        return fit(0, 0)


def _take(source: Source, *numbers: npt.NDArray[np.int64]) -> list[SampledRows]:
    """Rows of these numbers, which are in order, in one pass; none if there are no numbers."""
    columns = source.input_dim or 0
    found = [SampledRows(np.empty((len(each), columns)), np.empty(len(each)), each) for each in numbers]
    first = 0
    for rows in source if any(map(len, numbers)) else ():
        stop = first + len(rows.inputs)
        for sample in found:
            low, high = np.searchsorted(sample.numbers, [first, stop])
            sample.inputs[low:high] = rows.inputs.numpy()[sample.numbers[low:high] - first]
            sample.targets[low:high] = rows.observed.numpy()[sample.numbers[low:high] - first, 0]
        first = stop
    return found


def keep_to_budget(
    regressor: Any, budget: str | int, table: TableReader, console: Console, *, of_model: bool = False
) -> None:
    """Let a model predict in chunks that keep to a memory budget, perhaps its own; the bill is shown."""
    from ..memory import MemoryBudgetError, parse_bytes, return_freed_memory
    from ..prediction_memory import PredictionSetting, plan_prediction

    (fit,) = regressor.fits_
    setting = PredictionSetting.of(
        fit, table_columns=len(table.column_names), table_rows=CHUNK_ROWS, reading_bytes=table.reading_bytes
    )
    try:
        plan = plan_prediction(parse_bytes(budget), setting)
    except MemoryBudgetError as error:
        if not of_model:
            raise
        # Reading a CSV file takes more than a small model: a budget that was enough to fit it may not be here.
        problem = f"The model was fitted with a memory budget, which predictions keep to. {error.problem}"
        raise MemoryBudgetError(problem, "", error.plan) from None
    console.print(str(plan))
    return_freed_memory()
    regressor.fits_ = [fit.with_chunks(plan.setting.chunk_size)]
