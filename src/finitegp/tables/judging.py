"""``fit_and_judge``: a fit with scores on rows that it did not see, beside baselines, and a report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..data.naming import check_columns
from ..distributed import ALONE, Ranks
from ..errors import DataError
from ..estimator.progress import Stages, show_stages
from ..memory import MemoryBudgetError
from ..memory.plan import Described, MemoryPlan
from ..metrics import Scores
from ..report.contents import ReportContents
from ..report.evaluation import Baseline, baselines
from .arrow_values import moment_text
from .columns import DateColumn
from .hold_out import HoldOut, Judging, Positions, make_folds, order_of, split_last
from .model import TableRegressor
from .predictions import KnownRows, all_scores, report_on
from .reader import TableReader
from .rows import TableLike, TableRows
from .scored_rows import JudgedRows, ScoredRows
from .summaries import TransformReport
from .targets import TargetScale
from .training_rows import TrainingRows

# With fewer rows, a fifth of them is too few: all rows are judged, by cross-validation.
FEWEST_TO_HOLD_OUT = 50
_FEWEST_TO_JUDGE = 5
_FOLDS = 5
_NO_ROOM = "The memory budget has no room for held-out rows: there are no scores and no report."


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
        notes: Sentences for the user.
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
        """The entry of the fit in a model file, in types that JSON has."""
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
    report: str | os.PathLike[str] | bool | None = None,
    force: bool = True,
    ranks: Ranks = ALONE,
    on_plan: Callable[[MemoryPlan[Described]], object] | None = None,
    shell: bool = False,
) -> JudgedFit:
    """Fit a model to some rows of a table, score it on the others, and let it take these in, exactly.

    Rows that are exact copies of one another are on one side of a split, so that no row judges that was trained on.
    With a report, where a random split judges and a column holds dates, a second fit to the earlier rows is judged by
    the later ones: the random split does not show how well these are predicted.

    Within a memory budget, rows of a long table stay on disk. Which of them are held out is decided as without one, by
    a pass over one column where a column decides; of these as many judge as the budget has room for, drawn at random.
    Copies are not looked for.

    Args:
        model: Not fitted; it is fitted in place.
        data: The table, or the name of its file.
        target: The column to predict.
        judging: Which rows judge.
        test: Another table that judges instead; the model does not take it in.
        seed: Of the split.
        report: The page to write; True gathers what it shows, for :func:`~finitegp.report.write_report`.
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
    if test is not None:
        for name in ("split_by", "group", "folds"):
            if getattr(judging, name):
                raise ValueError(f"test cannot be used together with {name} of judging: choose one.")
    stages = {"reading": 0.05, "fit": 1.0, "judging": 0.05}
    stages |= {"fit to the earlier rows": 0.5, "report": 0.2} if report else {}
    with show_stages("finitegp", stages, shown=bool(model.verbose) and ranks.is_first) as shown:
        shown.begin("reading")
        with ranks.working():  # so that what is wrong on all ranks is reported by one
            training = model.training_rows(data, target=target)
            check_columns([name for name in (judging.split_by, judging.group) if name], training.table.column_names)
            if model.missing == "error":
                model.check_gaps(training)  # also of rows that are held out, and before anything is fitted
        judge = _Judge(model, training, judging, seed, report, force, ranks, on_plan, shown, shell)
        return judge.with_table(test) if test is not None else judge.with_own_rows()


class _HeldOut(NamedTuple):
    """Rows that judge, positions of training rows for baselines and report, and those of other rows to take in."""

    rows: TableRows
    sample: Positions
    take_in: bool
    others: Positions = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class _Judge(HoldOut):
    """One fit and its judging."""

    model: TableRegressor
    report: str | os.PathLike[str] | bool | None
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
            return self._on_disk()
        split = self.split()
        targets = self.training.all_rows().targets
        if np.ptp(targets) == 0.0:
            raise DataError(f"The target is {targets[0]} in all rows: there is nothing to learn.")
        if np.ptp(targets[split.training]) == 0.0:
            raise DataError(
                "The target is the same in all rows that are left for training: add rows, or hold fewer out."
            )
        held_out = _HeldOut(self.training.take(split.held_out).rows, np.arange(len(split.training)), True)
        return self._judged(self.training.without(split.held_out), held_out, judging.how)

    def with_table(self, test: TableLike) -> JudgedFit:
        """The rows of another table judge, of a long one as many as a memory budget has room for."""
        source = _reader_of(self.training.table)
        table = self.model.open(test, source)
        self._check_test(table, source)
        if isinstance(table, TableRows):
            rows = table
        else:
            found = self.model.with_target(self.model.target_).training_rows(table, target=str(self.model.target_))
            most = min(found.num_rows, self.room() // 2)
            rows = found.take(self.drawn(found.num_rows, most)).rows
            if most < found.num_rows:
                self.notes.append(f"{most} of {found.num_rows} rows judge, drawn at random: they are kept in memory.")
        sample = self.sample(self.training.num_rows, rows.num_rows)
        return self._judged(self.training, _HeldOut(rows, sample, False), "another table")

    def _check_test(self, table: TableRows | TableReader, source: TableReader | None) -> None:
        """Refuse before the fit what cannot judge after it: rows of the fit, or rows without what it takes."""
        found = _reader_of(table)
        where = "the table to judge by" if found is None else str(found.paths[0])
        learned, judged = ([] if each is None else [*map(Path.resolve, each.paths)] for each in (source, found))
        if both := {*learned} & {*judged}:
            raise DataError(
                f"{min(both).name} is given to learn from and to judge by, which scores nothing but memory:",
                "leave test out, so that rows are held out, or give other rows.",
                code="test_is_learned_from",
            )
        check_columns([str(self.model.target_)], table.column_names, where)
        names = self.training.table.column_names
        if not set(names) <= set(table.column_names):  # which may do without columns that are left out
            encoder = self.training.encoder(self.model.encoding_options(names), TargetScale())
            check_columns(encoder.required_columns, table.column_names, where)
        if isinstance(table, TableRows):
            self.model.target_values(table)

    def _on_disk(self) -> JudgedFit:
        """Rows of a table on disk judge; none, if the budget has no room for them."""
        judging, room = self.judging, self.room()
        with self.ranks.working():
            if judging.split_by is None and judging.group is None:
                wanted = int(judging.test_fraction * self.training.num_rows)
                held_out = self.drawn(self.training.num_rows, min(wanted, room // 2))
                self._tell_fewer("held out", len(held_out), wanted)
            else:
                held_out = self.split().held_out
        judges = held_out[self.drawn(len(held_out), room // 2)]
        self._tell_fewer("used", len(judges), len(held_out))
        if len(judges) == 0:
            self.notes[:] = [_NO_ROOM]
            return self._alone()
        with self.ranks.working():
            training, sample = self.rest(held_out, len(judges))
            rows = self.training.take(judges).rows
        try:
            return self._judged(training, _HeldOut(rows, sample, True, np.setdiff1d(held_out, judges)), judging.how)
        except MemoryBudgetError:
            if self.ranks.world_size > 1:  # other ranks have heard of it, and stop
                raise
        self.notes[:] = [_NO_ROOM]
        return self._alone()

    def _tell_fewer(self, what: str, rows: int, wanted: int) -> None:
        if 0 < rows < wanted:
            self.notes.append(f"{rows} rows are {what} for the scores instead of {wanted}: they are kept in memory.")

    def _fit(self, model: TableRegressor, training: TrainingRows) -> float:
        """The seconds of a fit."""
        started = time.perf_counter()
        model.fit_rows(training, ranks=self.ranks, on_plan=self.on_plan)
        return time.perf_counter() - started

    def _alone(self) -> JudgedFit:
        self.stages.begin("fit")
        seconds = self._fit(self.model, self.training)
        return self._result("none", seconds, False)

    def _judged(self, training: TrainingRows, held_out: _HeldOut, how: str) -> JudgedFit:
        model = self.model
        self.stages.begin("fit")
        seconds = self._fit(model, training)
        if not self.ranks.is_first:
            return self._result(how, seconds, held_out.take_in)
        self.stages.begin("judging")
        # What the fit could read had it seen these rows is no mistake of the user.
        found = TransformReport(forgiving=held_out.take_in)
        judged = model.judge(*model.rows_to_judge(held_out.rows), found)
        known = _known_rows(model, training, held_out.sample)
        scores = all_scores(judged, known, self.seed)
        other_scores, remark = self._by_time(scores[0])
        contents = self._report(judged, known, scores, other_scores, remark)
        if held_out.take_in:
            for rows in (held_out.rows, *(part for part, _ in self.training.parts(held_out.others))):
                model.update(rows, report=TransformReport(forgiving=True))
        self.notes.extend(model.unusual(found))
        own = judged.scored
        return self._result(how, seconds, held_out.take_in, scores, len(own.targets), own.width, contents, other_scores)

    def _report(
        self,
        judged: JudgedRows,
        known: KnownRows,
        scores: list[Scores],
        other_scores: dict[str, list[Scores]] | None = None,
        remark: str = "",
    ) -> ReportContents | None:
        if not self.report:
            return None
        self.stages.begin("report")
        page = None if isinstance(self.report, bool) else self.report
        told = scores, other_scores, remark
        return report_on(self.model, judged, known, page, *told, seed=self.seed, force=self.force, shell=self.shell)

    def _result(
        self,
        how: str,
        seconds: float,
        take_in: bool,
        scores: Sequence[Scores] = (),
        rows: int = 0,
        width: float | None = None,
        contents: ReportContents | None = None,
        other: dict[str, list[Scores]] | None = None,
    ) -> JudgedFit:
        """The findings; nothing if no rows judged, or another process judges."""
        notes = list(dict.fromkeys([*self.model.notes_, *self.notes]))
        chosen = self.training.num_rows, rows, take_in, how
        return JudgedFit(self.model, list(scores), *chosen, width, contents, notes, seconds, other or {})

    def _by_time(self, own: Scores) -> tuple[dict[str, list[Scores]], str]:
        """Scores on the latest rows of a fit to the earlier ones, where there are dates and random rows judge."""
        judging = self.judging
        dates = [each for each in self.model.encoder_.columns if isinstance(each, DateColumn) and each.kind == "date"]
        column = next((each for each in dates if "days" in each.parts), None)
        if column is None or judging.split_by is not None:
            return {}, ""
        told = f"Column {column.name!r} holds dates, and random rows do not show how well later ones are predicted"
        if not self.report or judging.group is not None or self.training.on_disk:
            self.notes.append(f"{told}: split by it to see that.")
            return {}, ""
        order = order_of(self.training, column)
        dated = np.flatnonzero(np.isfinite(order))
        try:
            split = split_last(order[dated], judging.test_fraction or Judging().test_fraction)
        except DataError:
            return {}, ""
        if len(split.training) < FEWEST_TO_HOLD_OUT:
            self.notes.append(f"{told}: there are too few of them to see that.")
            return {}, ""
        self.stages.begin("fit to the earlier rows")
        later = dated[split.held_out]
        training = self.training.without(np.setdiff1d(np.arange(self.training.num_rows), dated[split.training]))
        model = self.model.unfitted()
        self._fit(model, training)
        rows, targets = self.training.take(later)
        judged = model.judge(rows, targets, TransformReport(forgiving=True))
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

    def _cross_validate(self, folds: int) -> JudgedFit:
        """All rows judged by models that were fitted without them; the model itself is fitted to all rows.

        Of rows on disk, as many of each fold judge as there is room for.
        """
        model, training = self.model, self.training
        started = time.perf_counter()
        parts: list[ScoredRows] = []
        others: list[list[Baseline]] = []
        judges: list[Positions] = []
        how = Judging(folds=folds).how
        self.stages.begin("fit")
        with self.ranks.working():
            most = max(_FEWEST_TO_JUDGE, self.room() // (2 * folds)) if training.on_disk else training.num_rows
            splits = make_folds(self.groups(), folds, seed=self.seed)
        for number, held_out in enumerate(splits):
            with self.ranks.working():
                judges.append(held_out[self.drawn(len(held_out), most)])
                each, (own, sample) = model.unfitted(), self.rest(held_out, sum(map(len, judges)))
            each.fit_rows(own, ranks=self.ranks)
            if self.ranks.is_first:
                judged = each.judge(*training.take(judges[-1]), TransformReport(forgiving=True))
                parts.append(judged.scored)
                others.append(baselines(_known_rows(each, own, sample)[:2], judged.inputs, seed=self.seed))
            score = f", left-out R2 {ScoredRows.joined(parts).scores().r_squared or 0.0:.3f}" if parts else ""
            self.stages.tell(f"fold {number + 1} of {folds}{score}")
        judging = np.sort(np.concatenate(judges))
        own, sample = self.rest(np.empty(0, dtype=np.int64), len(judging))
        self._fit(model, own)
        seconds = time.perf_counter() - started
        if not self.ranks.is_first:
            return self._result(how, seconds, True)
        self._tell_fewer("used", len(judging), training.num_rows)
        together = ScoredRows.joined(parts)
        scores = [together.scores()]
        for same in zip(*others, strict=True):
            mean, std = np.concatenate([fold.mean for fold in same]), np.concatenate([fold.std for fold in same])
            scores.append(Baseline(same[0].name, mean, std).score(together.targets))
        contents = None
        if self.report:
            self.notes.append("The charts of the report are of rows that the saved model has seen; its scores are not.")
            contents = self._report(model.judge(*training.take(judging)), _known_rows(model, own, sample), scores)
        return self._result(how, seconds, True, scores, len(judging), together.width, contents)


def _reader_of(table: TableRows | TableReader) -> TableReader | None:
    """The reader of a table that comes from files; None for any other table."""
    source = table.source if isinstance(table, TableRows) else table
    return source if isinstance(source, TableReader) else None


def _known_rows(model: TableRegressor, training: TrainingRows, positions: Positions) -> KnownRows:
    rows, targets = training.take(positions)
    return KnownRows(training.training_inputs(model.encoder_, positions), targets, rows)
