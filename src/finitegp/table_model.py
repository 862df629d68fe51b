"""``TableModel``: a regressor with the encoding of its table, so that tables go in and columns come out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import nn

from .data.naming import locator_of
from .errors import DataError, ModelFileError
from .estimator import GPRegressor
from .persistence.container import read_container, write_container
from .persistence.plain_json import plain_json
from .persistence.regressors import decode_regressor, encode_regressor
from .sites import SiteStatistics, merge_sites, site_statistics
from .tables.columns import NumberColumn
from .tables.encoder import TableEncoder, TransformReport
from .tables.targets import target_values

Array = npt.NDArray[np.float64]


class PredictedChunk(NamedTuple):
    """Some rows of a table, and what is predicted for them."""

    rows: Any
    mean: Array
    std: Array


@dataclass(frozen=True, eq=False)
class TableModel:
    """A fitted regressor, the encoding of its table and the name of its target: what a model file holds.

    Attributes:
        regressor: Takes what ``encoder`` makes of a table.
        encoder: Of the columns.
        target: The column that is predicted; None if it is not known.
        summary: Of the fit: files, rows, scores on held-out rows; JSON.

    Example:
        >>> import tempfile
        >>> from finitegp import GPRegressor
        >>> table = {"size": [1.0, 2, 3, 4, 5, 6], "cut": ["a", "b", "a", "b", "a", "b"], "price": [2, 5, 4, 7, 6, 9]}
        >>> encoder = TableEncoder.fit(table, exclude="price")
        >>> regressor = GPRegressor(effort="low", random_state=0).fit(encoder.transform(table), table["price"])
        >>> model = TableModel(regressor, encoder, target="price")
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     model.save(f"{directory}/price.finitegp")
        ...     again = TableModel.load(f"{directory}/price.finitegp")
        >>> chunk = next(again.predict({"cut": ["b"], "size": [3]}))
        >>> bool(abs(chunk.mean[0] - 6) < 1)
        True
    """

    regressor: GPRegressor
    encoder: TableEncoder
    target: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)

    def predict(self, table: Any, report: TransformReport | None = None) -> Iterator[PredictedChunk]:
        """Mean and standard deviation of new observations, chunk by chunk, for what :class:`TableEncoder` takes.

        ``report`` counts what is unusual about the rows.
        """
        report = _report_on(table, report)
        for rows in _chunks(table):
            mean, std = self.regressor.predict(self.encoder.transform(rows, report), return_std=True)
            yield PredictedChunk(rows, mean, std)

    def deviations(self, coverage: float, method: str = "predictive") -> float:
        """How many standard deviations to each side of the mean make an interval of this coverage.

        ``method`` is that of :meth:`GPRegressor.predict_interval`: ``"predictive"``, ``"gaussian"`` or ``"conformal"``.
        """
        try:
            return self.regressor.fits_[0].deviations(coverage, method=method)
        except ValueError as error:
            raise DataError(str(error)) from None
        except (KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"What the model counted on rows kept aside makes no sense: {error}.") from None

    def targets(self, rows: Any, report: TransformReport, first_row: int = 0) -> Array:
        """The observed targets of a chunk."""
        if self.target is None:
            raise DataError(
                "The model does not know the name of its target:", "say which column it is.", code="unknown_target"
            )
        return target_values(rows, self.target, first_row=first_row, source=report.source, allow_constant=True)

    def update(self, table: Any, report: TransformReport | None = None) -> TableModel:
        """The same model with the posterior of more rows, chunk by chunk: exact, with the features kept.

        The regressor is changed in place and is that of the result.
        """
        report = _report_on(table, report)
        for rows in _chunks(table):
            targets = self.targets(rows, report, report.rows)
            self.regressor.partial_fit(self.encoder.transform(rows, report), targets)
        return self

    def statistics(self, table: Any, report: TransformReport | None = None) -> SiteStatistics:
        """The sums of a table's rows for this model's features: what a site can give away that may not share rows.

        The table is read once, chunk by chunk, in memory that does not depend on the number of rows. Rows that the
        model has seen are not in the sums, unless they are in the table.

        With fewer rows than features there is a warning, because rows may then be computed from the sums.

        Example:
            >>> from finitegp import GPRegressor
            >>> from finitegp.features import LinearFeatures
            >>> def make_table(rows, seed):
            ...     size = np.random.default_rng(seed).uniform(1, 5, size=rows)
            ...     return {"size": size, "price": 2 * size + 1}
            >>> table = make_table(20, seed=0)
            >>> encoder = TableEncoder.fit(table, exclude="price")
            >>> regressor = GPRegressor(LinearFeatures(1), algorithm="exact", random_state=0)
            >>> model = TableModel(regressor.fit(encoder.transform(table), table["price"]), encoder, target="price")
            >>> sites = [model.statistics(make_table(rows, seed=rows)) for rows in (10, 30)]
            >>> joint = model.merge(*sites)
            >>> joint.regressor.fits_[0].fitted.posterior.statistics.num_data
            60.0
        """
        return site_statistics(
            self.regressor.fits_[0], self.encoder, self.target, self.targets, table, _report_on(table, report)
        )

    def merge(
        self,
        *sites: SiteStatistics,
        keep_model_rows: bool = True,
        refit_noise: bool = False,
        allow_repeats: bool = False,
    ) -> TableModel:
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
        regressor, summary = merge_sites(
            self.regressor,
            self.encoder,
            self.summary,
            sites,
            keep_model_rows=keep_model_rows,
            refit_noise=refit_noise,
            allow_repeats=allow_repeats,
        )
        return replace(self, regressor=regressor, summary=summary)

    def with_target(self, target: str | None) -> TableModel:
        """The same model with another name for its target; None leaves it as it is."""
        return self if target is None else replace(self, target=target)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write everything into one file, without training rows and without pickle.

        Args:
            path: The file.
            overwrite: Whether to replace a file that is there; if not, that is a FileExistsError.
        """
        header, tensors = encode_regressor(self.regressor)
        header["table"] = {
            "encoder": self.encoder.to_dict(),
            "target": self.target,
            "summary": plain_json(self.summary),
        }
        write_container(path, {"kind": "table", **header}, tensors, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, feature_map: nn.Module | None = None) -> TableModel:
        """Read a file that :meth:`save` or :meth:`GPRegressor.save` wrote.

        A regressor saved by itself takes tables whose columns of numbers have the names it was fitted with.

        Raises:
            ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether.
        """
        header, tensors = read_container(path)
        kind = header.get("kind")
        if kind == "statistics":
            raise ModelFileError(
                f"{path} holds the statistics of a site, not a model: finitegp merge (TableModel.merge) makes a model "
                "of them and the model that they were made for."
            )
        if kind not in ("table", "regressor"):
            raise ModelFileError(f"{path} holds a {str(kind)[:60]!r}, not a model that takes tables.")
        regressor = decode_regressor(GPRegressor, path, header, tensors, feature_map=feature_map)
        if len(regressor.fits_) > 1:
            raise ModelFileError(
                f"{path} holds a model of {len(regressor.fits_)} targets: use GPRegressor.load in Python."
            )
        if kind == "regressor":
            return cls(regressor, _encoder_of_names(regressor, path))
        stored = header.get("table")
        if not isinstance(stored, Mapping) or not isinstance(stored.get("summary"), dict):
            raise ModelFileError(f"{path} cannot be used: its description of the table makes no sense.")
        target = stored.get("target")
        if target is not None and not isinstance(target, str):
            raise ModelFileError(f"{path} cannot be used: the name of its target is not text.")
        try:
            encoder = TableEncoder.from_dict(stored.get("encoder"))
        except DataError as error:
            raise ModelFileError(f"{path} cannot be used: {error}") from None
        if len(encoder.feature_names_out) != regressor.n_features_in_:
            raise ModelFileError(
                f"{path} cannot be used: its table gives {len(encoder.feature_names_out)} columns of numbers, but its "
                f"regressor takes {regressor.n_features_in_}."
            )
        return cls(regressor, encoder, target, stored["summary"])


def _report_on(table: Any, report: TransformReport | None) -> TransformReport:
    report = TransformReport() if report is None else report
    report.source = locator_of(table) if report.source is None else report.source
    return report


def _chunks(table: Any) -> Iterator[Any]:
    from .tables.arrow_values import record_batches

    yield from record_batches(table)


def _encoder_of_names(regressor: GPRegressor, path: str | os.PathLike[str]) -> TableEncoder:
    names = getattr(regressor, "feature_names_in_", None)
    if names is None:
        raise ModelFileError(
            f"{path} holds a regressor that was fitted to arrays without column names, so it cannot find its columns "
            "in a table: load it with GPRegressor.load in Python, or fit it to a data frame."
        )
    # From here on the encoder finds the columns, and the regressor gets arrays without names.
    del regressor.feature_names_in_
    return TableEncoder(
        [NumberColumn(str(name), "number", "number", False, "as in Python", 0.0, ()) for name in names],
    )
