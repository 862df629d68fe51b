"""``TableRegressor``: exact Gaussian-process regression on tables as people have them."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import nn

from ..arguments import check_arguments
from ..data.naming import listed
from ..data.scaling import check_magnitude
from ..distributed import ALONE, Ranks
from ..errors import ArgumentError, DataError
from ..estimator.parameters import check_parameters, seed_of
from ..estimator.regressor import GPRegressor
from ..formatting import counted
from ..memory.plan import Described, MemoryPlan
from ..sites import EncodedChunk, SiteStatistics, merge_sites, site_statistics
from .encoder import TableEncoder
from .learning import learn, load_table_model, save_table_model
from .predictions import TablePredictions
from .rows import TableLike
from .summaries import TransformReport
from .targets import TargetScale, check_varies, plain_target
from .training_rows import TrainingRows, note_on_copies

if TYPE_CHECKING:
    from ..export import OnnxExport

Array = npt.NDArray[np.float64]
_FEWEST_ROWS = 2
# Parameters of the regressor that is made.
_PASSED_ON = ("effort", "verbose", "memory_budget", "time_budget", "keep_rows", "repeated_rows", "device")


@check_arguments
class TableRegressor(RegressorMixin, TablePredictions):  # type: ignore[misc]
    """Exact Gaussian-process regression on a table with text, dates and gaps, with honest error bars.

    Tables are pandas or polars data frames, Arrow tables, mappings of names to columns, arrays, or files (CSV, Parquet,
    Feather, Excel). Columns are found by name and turned into numbers by :class:`TableEncoder`; rows without a
    target are left out and counted; a skewed target is modelled on another scale, while predictions, intervals and
    densities are in its own units. A scikit-learn estimator: it works in ``cross_val_score``, ``GridSearchCV``,
    ``Pipeline`` and ``permutation_importance``.

    Args:
        target_scale: ``"identity"``, ``"log"``, ``"square root"``, ``"yeo-johnson"``, or ``"auto"``: the one on which
            left-out rows have the highest density.
        categorical: Columns that hold categories, whatever they look like.
        numeric: Columns that hold numbers.
        date: Columns that hold dates.
        drop: Columns to leave out.
        only: The only columns to use; all by default.
        weight: The column with the number of equal rows that each row stands for.
        day_first: Whether 01/02/2020 is 1 February (True) or 2 January (False); by default some row must show it.
        decimal: ``"."`` or ``","`` before the decimals of numbers in text; by default it is found.
        missing: ``"impute"`` puts the usual value into gaps of the inputs and marks where they were; ``"error"``
            refuses them.
        rows_without_target: ``"drop"`` leaves them out; ``"error"`` refuses them.
        max_one_hot: The most categories of a column that becomes one column for each. By default 16, and in tables of
            up to 2,000 rows up to 256 that have three rows each on average and mostly fewer than 30, if ``keep_rows``.
        effort: ``"low"``, ``"medium"`` or ``"high"``: how much time to spend.
        random_state: A number makes the fit reproducible.
        verbose: Draw a progress bar.
        memory_budget: Such as ``"64MB"``, for the fit of the encoded rows; see :class:`GPRegressor`.
        time_budget: Such as ``"60s"``, for the same fit; see :class:`GPRegressor`.
        keep_rows: Whether the fit of a small table may hold its rows; see :class:`GPRegressor`.
        repeated_rows: Whether a row that is equal to training rows may be predicted by their targets; see
            :class:`GPRegressor`.
        device: Where networks are trained; see :class:`GPRegressor`.
        regressor: A :class:`GPRegressor` with other settings; ``effort``, ``random_state``, ``verbose``,
            ``memory_budget``, ``time_budget``, ``keep_rows``, ``repeated_rows`` and ``device`` are then its own.

    Attributes:
        regressor_: The fitted :class:`GPRegressor`; it takes what ``encoder_`` makes of a table.
        encoder_: The encoding of the columns.
        scale_: The :class:`TargetScale`.
        target_: The name of the target; None if it has none.
        columns_: What became of each column.
        notes_: What was decided on the way, one sentence each.
        summary_: Rows, scores, densities of scales and more of the fit; everything in it is JSON.
        feature_names_in_: The names of the columns.
        n_features_in_: Their number.

    Example:
        >>> table = {"size": [1.0, 2, 3, 4, 5, 6], "cut": ["a", "b", "a", "b", "a", "b"], "price": [2, 5, 4, 7, 6, 9]}
        >>> model = TableRegressor(effort="low", random_state=0).fit(table, target="price")
        >>> mean, std = model.predict({"cut": ["b"], "size": [3]}, return_std=True)
        >>> bool(abs(mean[0] - 6) < 1)
        True
        >>> lower, upper = model.predict_interval({"cut": ["b"], "size": [3]}, coverage=[0.5, 0.9])
        >>> lower.shape
        (1, 2)
        >>> model.quantile({"cut": ["b"], "size": [3]}, 0.95).tolist() == upper[:, 1].tolist()
        True
        >>> model.sample_y({"cut": ["b"], "size": [3]}, n_samples=10).shape
        (1, 10)
    """

    regressor_: GPRegressor
    notes_: list[str]

    # Fitting

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if not isinstance(self.regressor, GPRegressor | None):
            raise ArgumentError(f"regressor must be a GPRegressor or None, but is {self.regressor!r}.")
        check_parameters(self.new_regressor(0))

    def new_regressor(self, seed: int) -> GPRegressor:
        """The regressor to fit."""
        if self.regressor is not None:
            made: GPRegressor = clone(self.regressor)
            return made
        return GPRegressor(random_state=seed, **{name: getattr(self, name) for name in _PASSED_ON})

    def fit(
        self,
        X: TableLike,
        y: ArrayLike | None = None,
        *,
        target: str | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> TableRegressor:
        """Fit to a table.

        Args:
            X: The table, or the name of its file.
            y: The targets, one number per row; a column of ``X`` of the same name is not used as an input.
            target: The column of ``X`` to predict, instead of ``y``.
            sample_weight: ``(rows,)``: a row of weight ``k`` stands for ``k`` equal rows.
        """
        return self.fit_rows(self.training_rows(X, y, target=target, sample_weight=sample_weight))

    def fit_rows(
        self,
        training: TrainingRows,
        *,
        ranks: Ranks = ALONE,
        on_plan: Callable[[MemoryPlan[Described]], object] | None = None,
    ) -> TableRegressor:
        """Fit to what :meth:`training_rows` gave, or to a part of it.

        Args:
            training: The rows.
            ranks: The processes that share a fit within a memory budget.
            on_plan: Called with the plan of the memory before such a fit.
        """
        rows = training.num_rows
        if rows < _FEWEST_ROWS:
            raise DataError(
                f"The table has {counted(rows, 'row')} with a target, but at least {_FEWEST_ROWS} are needed to "
                "learn from."
            )
        moments = training.facts.moments
        smallest, largest = float(moments.smallest[0]), float(moments.largest[0])
        check_varies(smallest, largest, self.target_)
        check_magnitude(smallest, largest, f"The target {self.target_ or 'y'!r}")
        started = time.perf_counter()
        names, seed = training.table.column_names, seed_of(self.random_state)
        what = self.new_regressor(seed), self.encoding_options(names), self.target_scale
        learned = learn(training, *what, seed=seed, ranks=ranks, on_plan=on_plan)
        self.regressor_, self.encoder_, self.scale_ = learned.regressor, learned.encoder, learned.scale
        self.feature_names_in_ = np.array([name for name in names if name != self.target_], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        self.notes_ = [*self.notes_on(training), *note_on_copies(training), *self._notes_on_fit()]
        self.summary_ = {
            "rows": rows,
            "rows_without_target": training.facts.missing,
            "target_mean": float(moments.mean[0]),
            "target_std": float(np.sqrt(moments.variance[0])),
            "target_scale": self.scale_.to_dict(),
            "left_out_density_by_scale": learned.densities,
            "total_effects": learned.effects,
            "seconds": time.perf_counter() - started,
        }
        return self

    def _notes_on_fit(self) -> list[str]:
        notes = list(self.encoder_.notes)
        if self.scale_.name != "identity":
            notes.insert(0, f"The target is modelled on the scale {self.scale_.name!r}.")
        repeated = self.regressor_.fits_[0].repeated
        if repeated is not None:
            notes.append(
                f"Rows repeat, {100.0 * repeated.agreement[0]:.0f} % of them with the same target: a new row that is "
                "equal to a training row is predicted by what that row had."
            )
        names = self.encoder_.feature_names_out
        logs = [names[number] for number in self.regressor_.fits_[0].record.get("log_columns", ())]
        if logs:
            notes.append(f"Seen on a logarithmic scale as well, because the evidence is for it: {listed(logs)}.")
        gaps = [f"{line.column} ({line.gaps})" for line in self.encoder_.summary() if line.gaps and line.outputs]
        if gaps:
            notes.append(f"Gaps were filled with the usual value, and a column marks where they were: {listed(gaps)}.")
        return notes

    @classmethod
    def from_parts(
        cls,
        regressor: GPRegressor,
        encoder: TableEncoder,
        target: str | None = None,
        summary: Mapping[str, object] | None = None,
        scale: TargetScale | None = None,
    ) -> TableRegressor:
        """A fitted model around a regressor that was fitted elsewhere to what an encoder made of a table."""
        same = {name: getattr(regressor, name) for name in ("effort", "random_state", "memory_budget")}
        model = cls(missing=encoder.missing, **same)
        model.regressor_, model.encoder_, model.target_ = regressor, encoder, target
        model.scale_, model.notes_ = scale or TargetScale(), []
        model.summary_ = dict(summary or {})
        model._target_column = plain_target(target)
        model.feature_names_in_ = np.array([column.name for column in encoder.columns], dtype=object)
        model.n_features_in_ = len(model.feature_names_in_)
        return model

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a fit."""
        return hasattr(self, "regressor_")

    def with_target(self, target: str | None) -> TableRegressor:
        """The same model with another name for its target; None leaves it as it is."""
        if target is None:
            return self
        other = copy.copy(self)
        other.target_ = target
        other._target_column = plain_target(target)
        return other

    def unfitted(self) -> TableRegressor:
        """A copy without a fit that knows the target, for :meth:`fit_rows` with other rows of the same table."""
        other: TableRegressor = clone(self)
        other.target_, other._target_column = self.target_, self._target_column
        return other

    # Rows that come later

    def update(self, X: TableLike, y: ArrayLike | None = None, report: TransformReport | None = None) -> TableRegressor:
        """Take up more rows: the exact posterior of all rows, with features, noise, scaling and encoding kept.

        Without ``y``, rows weigh what the column ``weight`` holds, if the model was fitted with one.
        """
        return self._change_rows(X, y, report, GPRegressor.partial_fit)

    def forget(self, X: TableLike, y: ArrayLike | None = None, report: TransformReport | None = None) -> TableRegressor:
        """The opposite of :meth:`update`: the exact posterior as if it had never seen these rows.

        Which must be among those that it has seen; nobody can check that. What was learned from them otherwise stays:
        features, noise, scaling, encoding and, with kernels on training rows, their inputs as landmarks. To remove
        every trace, fit anew without them.

        Raises:
            DataError: If a column is encoded by mean targets, because training rows were encoded by those of others.
        """
        check_is_fitted(self, "encoder_")
        if self.encoder_.learns_effects:
            raise DataError(
                "Rows cannot be forgotten where a column is encoded by the mean targets of its categories: each "
                "training row was seen with the means of other rows. Fit anew without the rows."
            )
        return self._change_rows(X, y, report, GPRegressor.forget)

    def _change_rows(
        self,
        X: TableLike,
        y: ArrayLike | None,
        report: TransformReport | None,
        change: Callable[..., GPRegressor],
    ) -> TableRegressor:
        if y is not None:
            known, values = self.rows_to_judge(X, y)
            inputs = self.encoder_.transform(known, TransformReport.on(known, report))
            change(self.regressor_, inputs, self._scaled(values))
            return self
        streamed = self.streamed(X)
        report = TransformReport.on(streamed, report)
        before = self.regressor_.fits_, self.regressor_.training_summary_
        try:
            for rows, values, weights in streamed:
                change(self.regressor_, self.encoder_.transform(rows, report), self._scaled(values), weights)
            self.check_streamed(streamed)
        except BaseException:  # all rows or none
            self.regressor_.fits_, self.regressor_.training_summary_ = before
            raise
        return self

    @property
    def decimal_sign(self) -> str:
        """The decimal sign of the target where it is written in text."""
        return self._target_column.decimal or self.decimal or "."

    def _scaled(self, values: Array) -> Array:
        """Targets on the scale of the model."""
        scaled = self.scale_.forward(values)
        if not np.isfinite(scaled).all():
            wrong = values[~np.isfinite(scaled)][0]
            raise DataError(f"A target of {wrong:g} is impossible on the scale {self.scale_.name!r}: correct the row.")
        return scaled

    def statistics(self, X: TableLike, report: TransformReport | None = None) -> SiteStatistics:
        """The sums of a table's rows for this model's features: what a site can give away that may not share rows.

        The table is read once, chunk by chunk, in memory that does not depend on the number of rows. Rows that the
        model has seen are not in the sums, unless they are in the table. With fewer rows than features there is a
        warning, because rows may then be computed from the sums.

        Example:
            >>> from finitegp.features import LinearFeatures
            >>> def make_table(rows, seed):
            ...     size = np.random.default_rng(seed).uniform(1, 5, size=rows)
            ...     return {"size": size, "price": 2 * size + 1}
            >>> regressor = GPRegressor(LinearFeatures(1), algorithm="exact", random_state=0)
            >>> model = TableRegressor(regressor=regressor).fit(make_table(20, seed=0), target="price")
            >>> sites = [model.statistics(make_table(rows, seed=rows)) for rows in (10, 30)]
            >>> model.merge(*sites).rows_
            60.0
        """
        streamed = self.streamed(X)
        report = TransformReport.on(streamed, report)

        def encoded() -> Iterator[EncodedChunk]:
            for rows, values, weights in streamed:
                yield EncodedChunk(self.encoder_.transform(rows, report), self._scaled(values), weights)
            self.check_streamed(streamed)

        return site_statistics(self.regressor_.fits_[0], self.encoder_, self.target_, encoded())

    def merge(
        self,
        *sites: SiteStatistics,
        keep_model_rows: bool = True,
        refit_noise: bool = False,
        allow_repeats: bool = False,
    ) -> TableRegressor:
        """A model with the exact posterior of the rows of all sites together; this one stays as it is.

        It is the posterior that one would have after :meth:`update` with all tables, to rounding.

        Args:
            sites: What :meth:`statistics` of this model, or of a copy of its file, gave for each table.
            keep_model_rows: Whether the rows that this model has seen stay in. If a site has these rows too, they
                count twice.
            refit_noise: Whether to set the noise variance to the optimum of the marginal likelihood of all rows
                together, for the features as they are. This replaces the calibration of an automatic fit, so intervals
                by counting (``"conformal"``) are no longer possible. Without it, the noise is that of this model.
            allow_repeats: Whether sums that are in already, or are given twice, may count again.

        Raises:
            DataError: If statistics were made for another model, or are given twice.
        """
        check_is_fitted(self)
        merged = copy.copy(self)
        how = {"keep_model_rows": keep_model_rows, "refit_noise": refit_noise, "allow_repeats": allow_repeats}
        merged.regressor_, merged.summary_ = merge_sites(self.regressor_, self.encoder_, self.summary_, sites, **how)
        return merged

    @property
    def rows_(self) -> float:
        """Rows in the posterior, weights counted."""
        check_is_fitted(self)
        return float(self.regressor_.fits_[0].fitted.posterior.statistics.num_data)

    # Files

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write everything into one file, without pickle; training rows are in it only if ``keep_rows`` allows it.

        Args:
            path: The file.
            overwrite: Whether to replace a file that is there; if not, that is a FileExistsError.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        parameters.pop("regressor")
        column = self._target_column
        description = {
            "target": self.target_,
            "summary": self.summary_,
            "target_scale": self.scale_.to_dict(),
            "target_style": {"decimal": column.decimal, "unit": column.unit},
        }
        save_table_model(path, self.regressor_, self.encoder_, description, parameters, overwrite=overwrite)

    def to_onnx(self, path: str | os.PathLike[str], *, double: bool = False, intervals: bool = True) -> OnnxExport:
        """Write the fitted model as an ONNX graph: :func:`finitegp.export.to_onnx`. Needs the extra ``onnx``."""
        from ..export import to_onnx

        return to_onnx(self, path, double=double, intervals=intervals)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, feature_map: nn.Module | None = None) -> TableRegressor:
        """Read a file that :meth:`save` or :meth:`GPRegressor.save` wrote.

        A regressor saved by itself takes tables whose columns of numbers have the names it was fitted with.

        Raises:
            ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether.
        """
        parts = load_table_model(Path(path), feature_map=feature_map)
        model = cls.from_parts(parts.regressor, parts.encoder, parts.target, parts.summary, parts.scale)
        known = {name: value for name, value in parts.parameters.items() if name in model.get_params(deep=False)}
        model.set_params(**known)
        model._target_column = plain_target(parts.target, decimal=parts.decimal, unit=parts.unit)
        return model

    def __sklearn_tags__(self) -> Tags:
        """Tables have text and gaps."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags
