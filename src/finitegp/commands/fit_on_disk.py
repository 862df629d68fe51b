"""``finitegp fit --memory``: rows go from the table to disk, never all of them into memory."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .console import Console

if TYPE_CHECKING:
    from ..distributed import Ranks
    from ..memory.fit_plan import FitPlan
    from ..out_of_core import DiskRows
    from ..tables.encoder import TableEncoder
    from ..tables.reader import TableReader

# Rows of the table that are decoded at once.
CHUNK_ROWS = 8192
# Bytes of a CSV file that are read at once; a row must fit.
BLOCK_BYTES = 1 << 18
# Training rows that the report and the linear baseline see.
_SAMPLE_ROWS = 5000
# What is kept of each column while its type is found: a sample of values with their hashes.
_BYTES_PER_COLUMN = 3 * 8 * 16_384


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
    from ..estimator import as_regressor
    from ..estimator.progress import stage_progress
    from ..memory import return_freed_memory
    from ..out_of_core import DiskRows, fit_disk_rows
    from ..out_of_core.fit import chosen_settings, plan_for
    from ..tables.source import TableSource

    with ranks.working():  # so that what is wrong on all ranks is reported by one
        source = TableSource(table, target, encoder=encoder, chunk_size=CHUNK_ROWS)
        size: dict[str, int] = {"num_columns": source.input_dim, "num_data": source.num_data}
        settings = chosen_settings(effort, "auto", None, **size)
        plan = plan_for(
            budget,
            settings,
            source=source,
            test_fraction=test_fraction,
            columns_bytes=_BYTES_PER_COLUMN * len(table.column_names),
            **size,
        )
    console.print(str(plan))
    wanted = int(test_fraction * source.num_data)
    if wanted == 0:
        console.note("No rows are held out, so there are no scores and no report.")
    if plan.setting.test_rows < wanted:
        console.note(
            f"{plan.setting.test_rows} rows are held out for the scores instead of {wanted}: they are kept in memory."
        )
    started = time.perf_counter()
    return_freed_memory()
    with _ended_in_order(), stage_progress("fit", shown=not console.as_json and ranks.is_first) as progress:
        rows = DiskRows.prepare(source, ranks=ranks, chunk_size=plan.setting.chunk_size, seed=seed, progress=progress)
        if source.report is not None:
            console.note(*source.report.lines())
        fit = fit_disk_rows(rows, plan, settings, seed=seed, progress=progress, ranks=ranks)
    seconds = time.perf_counter() - started
    fit.record.update({"effort": effort, "seed": seed, "seconds": seconds})
    model = as_regressor(fit, effort=effort, random_state=seed, memory_budget=budget)
    with ranks.working():  # the file goes with the first rank's `rows`: not before the others have read
        return DiskFit(model, _sample(rows, plan), _rows(rows, 0, plan.setting.test_rows), seconds)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Inside, SIGTERM, which schedulers of jobs send, ends the process so that its temporary files go with it."""
    # Under torchrun the signal is heard already.
    default = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def keep_to_budget(
    regressor: Any, budget: str | int, table: TableReader, console: Console, *, of_model: bool = False
) -> None:
    """Let a model predict in chunks that keep to a memory budget, perhaps its own; the bill is shown."""
    from ..memory import MemoryBudgetError, plan_prediction, return_freed_memory
    from ..out_of_core.prediction import prediction_setting

    (fit,) = regressor.fits_
    setting = prediction_setting(
        fit.fitted,
        regressor.n_features_in_,
        table_columns=len(table.column_names),
        table_rows=CHUNK_ROWS,
        reading_bytes=table.reading_bytes,
    )
    try:
        plan = plan_prediction(budget, setting)
    except MemoryBudgetError as error:
        if not of_model:
            raise
        # Reading a CSV file takes more than a small model: a budget that was enough to fit it may not be here.
        problem = f"The model was fitted with a memory budget, which predictions keep to. {error.problem}"
        raise MemoryBudgetError(problem, "", error.plan) from None
    console.print(str(plan))
    return_freed_memory()
    fit.fitted.chunk_size = plan.setting.chunk_size


def _sample(rows: DiskRows, plan: FitPlan) -> SampledRows:
    first = plan.setting.test_rows + plan.setting.held_out_rows
    return _rows(rows, first, min(first + min(_SAMPLE_ROWS, plan.setting.held_out_rows), len(rows)))


def _rows(rows: DiskRows, start: int, stop: int) -> SampledRows:
    numbers = np.sort(rows.order(np.arange(start, stop)))
    return SampledRows(*rows.in_original_units(rows.table(start, stop)), numbers)
