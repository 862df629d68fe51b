"""``fit_and_judge``: a fit with scores on rows that it did not see, beside baselines, and a report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..data.permutation import RandomPermutation
from ..distributed import ALONE, Ranks
from ..errors import DataError
from ..estimator.progress import Stages, show_stages
from ..memory import MemoryBudgetError, parse_bytes
from ..memory.plan import Described, MemoryPlan
from ..metrics import Scores
from .arrow_values import TableLike, family
from .columns import DateColumn
from .encoder import TableEncoder
from .model import TableRegressor
from .ordering import groups_of, order_by, order_of
from .profiles import ColumnOptions
from .rows import TableRows
from .scoring import ScoredRows
from .splits import Split, make_folds, split_groups, split_last
from .summaries import TransformReport
from .text_values import moment_text
from .training_rows import TrainingRows

if TYPE_CHECKING:
    from ..report import ReportContents
    from .reporting import KnownRows

# With fewer rows, a fifth of them is too few: all rows are judged, by cross-validation.
FEWEST_TO_HOLD_OUT = 50
_FEWEST_TO_JUDGE = 5
_FOLDS = 5
# Of rows on disk: training rows that the report and the linear baseline see, and the share of the memory budget that
# these and held-out rows take at most, twice while they are put together.
_SAMPLE_ROWS, _SHARE_OF_ROWS = 5000, 0.1
# Numbers that scores need of a row, and outputs that a column has at most, by what it holds.
_SCORED_NUMBERS, _MOST_OUTPUTS = 80, {"date": 8, "time": 8, "number": 2, "boolean": 2}


@dataclass(frozen=True)
class Judging:
    """Which rows judge a fit.

    Attributes:
        test_fraction: The share that is held out; 0 for none.
        split_by: A column: the rows with its highest values, such as the latest dates, are held out.
        group: A column: rows with the same value stay together.
        folds: The number of folds of a cross-validation that judges all rows; 0 for a single split.
    """

    test_fraction: float = 0.2
    split_by: str | None = None
    group: str | None = None
    folds: int = 0

    @property
    def how(self) -> str:
        """In words."""
        if self.folds:
            return f"{self.folds}-fold cross-validation"
        if self.split_by is not None:
            return f"the rows with the highest {self.split_by!r}"
        return "random rows" if self.group is None else f"whole groups of {self.group!r}"


@dataclass(frozen=True, eq=False)
class JudgedFit:
    """A fitted model and how good it is.

    Attributes:
        model: It has taken in the held-out rows.
        scores: The model's first, then those of the baselines; empty if no rows were held out.
        rows: Rows with a target.
        held_out_rows: Rows that judged.
        takes_in_held_out_rows: Whether the model has them too.
        how: How they were chosen, in words.
        width: The median width of 90 % intervals on them.
        contents: What the report shows; None if there is none.
        notes: What a user should hear of.
        seconds: To train.
        other_scores: Those of fits that were judged in another way, by how.
    """

    model: TableRegressor
    scores: list[Scores]
    rows: int
    held_out_rows: int
    takes_in_held_out_rows: bool
    how: str
    width: float | None
    contents: ReportContents | None
    notes: list[str]
    seconds: float
    other_scores: dict[str, list[Scores]] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """What a model file holds of the fit, in types that JSON has."""
        findings = [] if self.contents is None else self.contents.checkup.findings
        return {
            **self.model.summary_,
            "rows": self.rows,
            "held_out_rows": self.held_out_rows,
            "takes_in_held_out_rows": self.takes_in_held_out_rows,
            "judged_by": self.how,
            "scores": [each.to_dict() for each in self.scores],
            "other_scores": {how: [each.to_dict() for each in scores] for how, scores in self.other_scores.items()},
            "interval_width": self.width,
            "findings": [each.to_dict() for each in findings],
            "seconds": self.seconds,
        }


def fit_and_judge(
    model: TableRegressor,
    data: TableLike,
    target: str,
    judging: Judging | None = None,
    *,
    test: TableLike | None = None,
    seed: int = 0,
    report: str | os.PathLike[str] | None = None,
    force: bool = True,
    ranks: Ranks = ALONE,
    on_plan: Callable[[MemoryPlan[Described]], object] | None = None,
    shell: bool = False,
) -> JudgedFit:
    """Fit a model to some rows of a table, score it on the others, and let it take these in, exactly.

    Rows that are exact copies of one another are on one side of a split, so that no row judges that was trained on.
    With a report, where a random split judges and a column holds dates, a second fit to the earlier rows is judged by
    the later ones: the random split does not show how well these are predicted.

    Within a memory budget, rows of a long table stay on disk. Random rows then judge, or another table, as many as the
    budget has room for; copies are not looked for, and other ways to judge are refused.

    Args:
        model: Not fitted; it is fitted in place.
        data: The table, or the name of its file.
        target: The column to predict.
        judging: Which rows judge.
        test: Another table that judges instead; the model does not take it in.
        seed: Of the split.
        report: The page to write.
        force: Whether to replace a page that is there.
        ranks: The processes that share a fit within a memory budget; only the first one judges.
        on_plan: Called with the plan of the memory before such a fit.
        shell: Whether the advice of the report is to name options of the command line.

    Example:
        >>> table = {"size": np.arange(60.0), "price": 3.0 * np.arange(60.0) + np.sin(np.arange(60.0))}
        >>> fit = fit_and_judge(TableRegressor(effort="low", random_state=0), table, "price")
        >>> fit.held_out_rows, fit.scores[0].r_squared > 0.9, [each.name for each in fit.scores]
        (12, True, ['this model', 'linear', 'mean'])
    """
    judging = judging or Judging()
    stages = {"reading": 0.05, "fit": 1.0, "judging": 0.05}
    stages |= {"fit to the earlier rows": 0.5, "report": 0.2} if report is not None else {}
    with show_stages("finitegp", stages, shown=bool(model.verbose) and ranks.is_first) as shown:
        shown.begin("reading")
        with ranks.working():  # so that what is wrong on all ranks is reported by one
            training = model.training_rows(data, target=target)
            if training.on_disk:
                _refuse_on_disk(judging)
            if model.missing == "error":
                model.check_gaps(training)  # also of rows that are held out, and before anything is fitted
        judge = _Judge(model, training, judging, seed, report, force, ranks, on_plan, shown, shell)
        return judge.with_table(test) if test is not None else judge.with_own_rows()


def _refuse_on_disk(judging: Judging) -> None:
    """An error for ways to judge that need all rows at once."""
    for option in ("split_by", "group", "folds"):
        if getattr(judging, option):
            raise DataError(
                f"Rows that stay on disk cannot be judged by {judging.how}:",
                f"leave out {option} or the memory budget, or give the rows to judge with as another table (test).",
                code="not_on_disk",
                option=option,
            )


class _HeldOut(NamedTuple):
    """Rows that judge, and positions of training rows for baselines and report."""

    rows: TableRows
    sample: npt.NDArray[np.int64]
    take_in: bool


@dataclass(frozen=True, eq=False)
class _Judge:
    """One fit and its judging."""

    model: TableRegressor
    training: TrainingRows
    judging: Judging
    seed: int
    report: str | os.PathLike[str] | None
    force: bool
    ranks: Ranks
    on_plan: Callable[[MemoryPlan[Described]], object] | None
    stages: Stages
    shell: bool
    notes: list[str] = field(default_factory=list)

    def with_own_rows(self) -> JudgedFit:
        """Rows of the table itself judge."""
        judging, rows = self.judging, self.training.num_rows
        few = rows < FEWEST_TO_HOLD_OUT and judging == Judging()
        if (judging.folds or few) and rows >= _FEWEST_TO_JUDGE:
            return self._cross_validate(judging.folds or min(_FOLDS, rows))
        if judging.test_fraction == 0.0 or rows < _FEWEST_TO_JUDGE:
            why = "No rows are held out" if judging.test_fraction == 0.0 else f"{rows} rows are too few to judge with"
            self.notes.append(f"{why}, so there are no scores and no report.")
            return self._alone()
        if self.training.on_disk:
            return self._with_sample()
        split = self._split()
        targets = self.training.all_rows().targets
        if np.ptp(targets[split.training]) == 0.0:
            raise DataError(
                "The target is the same in all rows that are left for training: add rows, or hold fewer out."
            )
        held_out = _HeldOut(self.training.take(split.held_out).rows, np.arange(len(split.training)), True)
        return self._judged(self.training.without(split.held_out), held_out, judging.how)

    def with_table(self, test: TableLike) -> JudgedFit:
        """The rows of another table judge, of a long one as many as a memory budget has room for."""
        table = self.model.open(test)
        if isinstance(table, TableRows):
            rows = table
        else:
            found = self.model.with_target(self.model.target_).training_rows(table, target=str(self.model.target_))
            most = min(found.num_rows, self._room() // 2)
            rows = found.take(np.sort(RandomPermutation(found.num_rows, self.seed + 1)(np.arange(most)))).rows
            if most < found.num_rows:
                self.notes.append(f"{most} of {found.num_rows} rows judge, drawn at random: they are kept in memory.")
        sample = np.arange(self.training.num_rows)
        if self.training.on_disk:
            most = min(len(sample), _SAMPLE_ROWS, max(0, self._room() - rows.num_rows))
            sample = np.sort(RandomPermutation(len(sample), self.seed + 1)(np.arange(most)))
        return self._judged(self.training, _HeldOut(rows, sample, False), "another table")

    def _with_sample(self) -> JudgedFit:
        """Random rows of a table on disk judge; none, if the budget has no room for them."""
        rows, room = self.training.num_rows, self._room()
        wanted = int(self.judging.test_fraction * rows)
        tests = min(wanted, room // 2)
        if tests == 0:
            self.notes.append("The memory budget has no room for held-out rows: there are no scores and no report.")
            return self._alone()
        drawn = RandomPermutation(rows, self.seed + 1)(np.arange(tests + min(_SAMPLE_ROWS, room - tests, rows - tests)))
        positions, others = np.sort(drawn[:tests]), np.sort(drawn[tests:])
        with self.ranks.working():
            held_out = self.training.take(positions).rows
            kept_bytes = self._row_bytes() * len(drawn)
            training = self.training.without(positions, kept_bytes=kept_bytes)
        if tests < wanted:
            self.notes.append(f"{tests} rows are held out for the scores instead of {wanted}: they are kept in memory.")
        # Of the sample, positions among the rows that are left.
        sample = others - np.searchsorted(positions, others)
        try:
            return self._judged(training, _HeldOut(held_out, sample, True), self.judging.how)
        except MemoryBudgetError:
            if self.ranks.world_size > 1:  # other ranks have heard of it, and stop
                raise
        self.notes[:] = ["The memory budget has no room for held-out rows: there are no scores and no report."]
        return self._alone()

    def _room(self) -> int:
        """How many rows a memory budget lets us keep."""
        budget = (self.model.regressor or self.model).memory_budget
        return 0 if budget is None else int(_SHARE_OF_ROWS * parse_bytes(budget)) // self._row_bytes()

    def _row_bytes(self) -> int:
        """About what a row that is kept takes: as it is, encoded twice, and with its predictions."""
        first = next(iter(self.training.table.rows(0, min(self.training.table.num_rows, 1000))))
        most = [_MOST_OUTPUTS.get(family(each.type), self.model.max_one_hot + 1) for each in first.schema]
        return int(first.nbytes / first.num_rows) + 8 * (2 * sum(most) + _SCORED_NUMBERS)

    def _fit(self, model: TableRegressor, training: TrainingRows) -> float:
        """The seconds of a fit."""
        started = time.perf_counter()
        model.fit_rows(training, ranks=self.ranks, on_plan=self.on_plan)
        return time.perf_counter() - started

    def _alone(self) -> JudgedFit:
        self.stages.begin("fit")
        seconds = self._fit(self.model, self.training)
        return self._result([], 0, False, "none", None, None, seconds)

    def _judged(self, training: TrainingRows, held_out: _HeldOut, how: str) -> JudgedFit:
        model = self.model
        self.stages.begin("fit")
        seconds = self._fit(model, training)
        if not self.ranks.is_first:
            return self._result([], 0, held_out.take_in, how, None, None, seconds)
        from .reporting import all_scores, report_on

        self.stages.begin("judging")
        found = TransformReport()
        judged = model.judge(*model.rows_to_judge(held_out.rows), found)
        known = _known_rows(model, training, held_out.sample)
        scores = all_scores(judged, known, self.seed)
        other_scores, remark = self._by_time(scores[0])
        contents = None
        if self.report is not None:
            self.stages.begin("report")
            contents = report_on(
                model,
                judged,
                known,
                self.report,
                scores=scores,
                other_scores=other_scores,
                remark=remark,
                seed=self.seed,
                force=self.force,
                shell=self.shell,
            )
        if held_out.take_in:
            model.update(held_out.rows)
        self.notes.extend(found.lines())
        rows, width = len(judged.scored.targets), judged.scored.width
        return self._result(scores, rows, held_out.take_in, how, width, contents, seconds, other_scores)

    def _result(
        self,
        scores: list[Scores],
        held_out_rows: int,
        take_in: bool,
        how: str,
        width: float | None,
        contents: ReportContents | None,
        seconds: float,
        other_scores: dict[str, list[Scores]] | None = None,
    ) -> JudgedFit:
        notes = list(dict.fromkeys([*self.model.notes_, *self.notes]))
        rows = self.training.num_rows
        return JudgedFit(
            self.model, scores, rows, held_out_rows, take_in, how, width, contents, notes, seconds, other_scores or {}
        )

    def _by_time(self, own: Scores) -> tuple[dict[str, list[Scores]], str]:
        """Scores on the latest rows of a fit to the earlier ones, where there are dates and random rows judge."""
        judging = self.judging
        column = _date_column(self.model.encoder_)
        if column is None or judging.split_by is not None:
            return {}, ""
        told = f"Column {column.name!r} holds dates, and random rows do not show how well later ones are predicted"
        if self.report is None or judging.group is not None or self.training.on_disk:
            self.notes.append(f"{told}: split by it to see that.")
            return {}, ""
        order = order_of(self.training.all_rows().rows, column)
        dated = np.flatnonzero(np.isfinite(order))
        try:
            split = split_last(order[dated], judging.test_fraction or Judging().test_fraction)
        except DataError:
            return {}, ""
        if len(split.training) < FEWEST_TO_HOLD_OUT:
            self.notes.append(f"{told}: there are too few of them to see that.")
            return {}, ""
        from .reporting import all_scores

        self.stages.begin("fit to the earlier rows")
        later = dated[split.held_out]
        training = self.training.without(np.setdiff1d(np.arange(self.training.num_rows), dated[split.training]))
        model = self.model.unfitted()
        self._fit(model, training)
        rows, targets = self.training.take(later)
        judged = model.judge(rows, targets)
        known = _known_rows(model, training, np.arange(training.num_rows))
        scores = all_scores(judged, known, self.seed)
        first = moment_text(int(order[later].min()))
        remark = (
            f"{told}. By a model that was fitted to the rows before {first} alone, the {len(later)} rows from then on "
            f"have an RMSE of {scores[0].rmse:.4g} (random rows: {own.rmse:.4g}), and 90 % intervals hold "
            f"{100 * scores[0].coverage[0.9]:.0f} % (random rows: {100 * own.coverage[0.9]:.0f} %)."
        )
        self.notes.append(remark)
        return {f"The {len(later)} latest rows by {column.name!r}, from {first} on": scores}, remark

    def _split(self) -> Split:
        rows, judging = self.training.all_rows().rows, self.judging
        if judging.split_by is not None:
            known = ColumnOptions(None, self.model.decimal, self.model.day_first)
            return split_last(order_by(rows, judging.split_by, known), judging.test_fraction)
        return split_groups(groups_of(rows, judging.group), judging.test_fraction, seed=self.seed)

    def _cross_validate(self, folds: int) -> JudgedFit:
        """All rows judged by models that were fitted without them; the model itself is fitted to all rows."""
        from .reporting import Baseline, baselines, report_on

        model, training = self.model, self.training
        started = time.perf_counter()
        parts: list[ScoredRows] = []
        others: list[list[Baseline]] = []
        self.stages.begin("fit")
        splits = make_folds(groups_of(training.all_rows().rows, self.judging.group), folds, seed=self.seed)
        for number, split in enumerate(splits):
            each, own = model.unfitted(), training.without(split.held_out)
            each.fit_rows(own)
            judged = each.judge(*training.take(split.held_out))
            parts.append(judged.scored)
            others.append(baselines(_known_rows(each, own, np.arange(own.num_rows)), judged.inputs, self.seed))
            self.stages.tell(f"fold {number + 1} of {folds}")
        model.fit_rows(training)
        together = ScoredRows.joined(parts)
        scores = [together.scores()]
        for same in zip(*others, strict=True):
            mean, std = np.concatenate([fold.mean for fold in same]), np.concatenate([fold.std for fold in same])
            scores.append(Baseline(same[0].name, mean, std).score(together.targets))
        contents = None
        if self.report is not None:
            self.stages.begin("report")
            self.notes.append("The charts of the report are of rows that the saved model has seen; its scores are not.")
            known = _known_rows(model, training, np.arange(training.num_rows))
            judged = model.judge(*training.all_rows())
            contents = report_on(
                model, judged, known, self.report, scores=scores, seed=self.seed, force=self.force, shell=self.shell
            )
        seconds, how = time.perf_counter() - started, f"{folds}-fold cross-validation"
        return self._result(scores, training.num_rows, True, how, together.width, contents, seconds)


def _known_rows(model: TableRegressor, training: TrainingRows, positions: npt.NDArray[np.int64]) -> KnownRows:
    from .reporting import KnownRows

    rows, targets = training.take(positions)
    return KnownRows(model.encoder_.transform_training(rows, numbers=positions), targets, rows.numbers)


def _date_column(encoder: TableEncoder) -> DateColumn | None:
    """The first column of dates whose days differ."""
    dates = [each for each in encoder.columns if isinstance(each, DateColumn) and each.kind == "date"]
    return next((column for column in dates if "days" in column.parts), None)
