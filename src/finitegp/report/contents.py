"""Everything that a report shows, as plain numbers and text: :func:`.gather_contents` makes it, a page draws it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..metrics import Scores
from ..persistence.container import plain_json

Array = npt.NDArray[np.float64]


#: From worst to least.
SEVERITIES = ("problem", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One problem.

    Attributes:
        severity: ``"problem"``: do not rely on the model before this is settled; ``"warning"``: look at it;
            ``"note"``: good to know.
        title: What is wrong, in a few words.
        evidence: The figures that show it.
        fix: What to do.
        shell_fix: What to do in the shell, where that differs from Python.
    """

    severity: str
    title: str
    evidence: str
    fix: str
    shell_fix: str = ""

    def __post_init__(self) -> None:
        """An unknown severity would vanish from the sorted list."""
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {SEVERITIES}, but is {self.severity!r}.")

    def to_dict(self) -> dict[str, str]:
        """The finding as JSON values."""
        return {"severity": self.severity, "title": self.title, "evidence": self.evidence, "fix": self.fix}


@dataclass(frozen=True)
class Checkup:
    """The outcome of the doctor's checks.

    Attributes:
        findings: Worst first.
        passed: Names of the checks that found nothing.
        skipped: Names of the checks that could not be made, with the reason.
    """

    findings: list[Finding]
    passed: list[str]
    skipped: dict[str, str]

    def in_shell(self) -> Checkup:
        """The same for people who work in the shell: advice names options of the command line."""
        findings = [dataclasses.replace(each, fix=each.shell_fix or each.fix) for each in self.findings]
        return dataclasses.replace(self, findings=findings)

    def count(self, severity: str) -> int:
        """How many findings are this severe."""
        return sum(finding.severity == severity for finding in self.findings)


@dataclass(frozen=True, eq=False)
class HeldOutPoints:
    """A reproducible sample of the ``total`` held-out rows for the chart of predictions, with 90 % intervals."""

    targets: Array
    mean: Array
    low: Array
    high: Array
    total: int


@dataclass(frozen=True, eq=False)
class Calibration:
    """Whether the error bars keep what they promise, on all held-out rows.

    Attributes:
        bin_edges: Of the PIT histogram, from 0 to 1.
        bin_counts: Held-out rows whose probability integral transform lies in each bin.
        bin_band: Counts between which a bin of a calibrated model lies with 95 % probability.
        nominal: Nominal coverages of central intervals.
        observed: The share of held-out targets inside each.
        nominal_low: Where the observed share of a calibrated model lies with 95 % probability: lower end ...
        nominal_high: ... and upper end.
        predicted_spread: Root mean square of the predicted standard deviation, for groups of rows sorted by it.
        observed_spread: Root mean square error of the same groups.
        spread_low: Where the latter lies for a calibrated model with 95 % probability: lower end ...
        spread_high: ... and upper end.
        spread_rows: Rows in each group.
    """

    bin_edges: Array
    bin_counts: npt.NDArray[np.int64]
    bin_band: tuple[float, float]
    nominal: Array
    observed: Array
    nominal_low: Array
    nominal_high: Array
    predicted_spread: Array
    observed_spread: Array
    spread_low: Array
    spread_high: Array
    spread_rows: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Curve:
    """One line of a training curve, in the chart ``panel``, such as ``"noise variance"``."""

    panel: str
    name: str
    epochs: list[float]
    values: list[float]


@dataclass(frozen=True, eq=False)
class Outliers:
    """Rows that the model does not expect, each judged by a model that has not seen it.

    Attributes:
        source: ``"leave-one-out"`` for training rows, ``"held-out"`` if those were not at hand.
        expected: Quantiles of the distribution that errors are expected to have, thinned ...
        standardized: ... and the sorted standardized residuals that belong to them.
        row_numbers: Of the worst rows.
        targets: What was observed there.
        mean: What was expected.
        std: With which standard deviation.
        values: The most important inputs of these rows, as text, in the order of ``value_names``.
        value_names: Names of these inputs.
        beyond_three: How many rows lie as far out as three deviations of a standard normal ...
        expected_beyond_three: ... and how many are expected to be.
        distribution: What that distribution is called.
        rows: How many were judged.
        rows_of: Out of how many.
    """

    source: str
    expected: Array
    standardized: Array
    row_numbers: list[int]
    targets: Array
    mean: Array
    std: Array
    values: list[list[str]]
    value_names: list[str]
    beyond_three: int
    expected_beyond_three: float
    distribution: str
    rows: int
    rows_of: int


@dataclass(frozen=True, eq=False)
class ResidualPanel:
    """Residuals against one input.

    Attributes:
        name: Of the input.
        categories: Names of its few values, or None if it is drawn as a number.
        values: The input of each drawn row; for categories their numbers, moved apart a little.
        residuals: Target minus prediction, in units of the predicted standard deviation.
        centers: Where local means were taken.
        local_mean: The mean residual there, over all rows.
        local_error: Its standard error.
        local_rows: How many rows it is of.
        total: How many rows there are.
        deviations: Between minus and plus this, nine of ten residuals should lie.
    """

    name: str
    categories: list[str] | None
    values: Array
    residuals: Array
    centers: Array
    local_mean: Array
    local_error: Array
    local_rows: npt.NDArray[np.int64]
    total: int
    deviations: float


@dataclass(frozen=True)
class Importance:
    """The effect of shuffling one input on the held-out error.

    ``increase`` of the RMSE is the mean over the shuffles and ``spread`` their standard deviation; ``error`` is its
    standard error, from how much it differs between held-out rows.
    """

    name: str
    increase: float
    spread: float
    error: float


@dataclass(frozen=True)
class ImportanceTable:
    """Permutation importance of the inputs, largest first, from ``repeats`` shuffles of each.

    ``rows`` of ``rows_of`` held-out rows were used. ``entries`` are fewer than ``inputs_of`` where a quick look left
    the others out. ``base_rmse`` is the RMSE of these rows without shuffling.
    """

    entries: list[Importance]
    rows: int
    rows_of: int
    inputs_of: int
    repeats: int
    base_rmse: float


@dataclass(frozen=True)
class ColumnFacts:
    """One column of a table that was encoded.

    Attributes:
        name: In the table.
        kind: What it holds.
        encoding: How it was turned into numbers.
        gaps: Values that are missing.
        distinct: Different values.
        relevance: Its total effect on predictions, from 0 to 1; None if that was not measured.
        note: What is worth knowing.
    """

    name: str
    kind: str
    encoding: str
    gaps: int
    distinct: int
    relevance: float | None
    note: str


@dataclass(frozen=True, eq=False)
class ReportContents:
    """Everything that a report shows.

    Attributes:
        title: Heading of the page.
        target_name: What is predicted.
        facts: What was trained: name and value, in order.
        settings: All settings of the fit, as JSON values.
        scores: The model first, then the baselines.
        points: For the chart of predictions.
        by_level: Residuals against the predicted mean.
        calibration: Of the error bars.
        curves: Training curves; empty if none were recorded.
        outliers: The most unexpected rows.
        residual_panels: Residuals by input, most important first.
        importance: Of the inputs.
        checkup: The doctor's findings.
        remarks: What could not be shown, and why, by section name.
        columns: Of the table, if one was encoded.
        other_scores: Scores on rows that were held out in another way, by how.
    """

    title: str
    target_name: str
    facts: dict[str, str]
    settings: dict[str, object]
    scores: list[Scores]
    points: HeldOutPoints
    by_level: ResidualPanel
    calibration: Calibration
    curves: list[Curve]
    outliers: Outliers
    residual_panels: list[ResidualPanel]
    importance: ImportanceTable
    checkup: Checkup
    remarks: dict[str, str]
    columns: list[ColumnFacts] = field(default_factory=list)
    other_scores: dict[str, list[Scores]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Everything as JSON values: arrays become lists, and a number that is not finite becomes None."""
        plain: dict[str, Any] = plain_json(dataclasses.asdict(self))
        return plain
