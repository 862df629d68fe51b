"""Sites that may not share rows: each writes its row sums, which add up to the exact joint posterior."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import __version__
from .arguments import check_arguments
from .data import ArraySource
from .errors import DataError, ModelFileError, warn_caller
from .likelihood import optimal_noise
from .lite.program import LiteError
from .model import FittedGP
from .persistence.container import read_container, write_container
from .persistence.fits import RegressorT, encode_fit
from .persistence.gps import decode_statistics, encode_gp, encode_statistics
from .posterior import WeightPosterior
from .scaled import ScaledGP
from .statistics import FeatureStatistics, sum_statistics
from .tables.encoder import TableEncoder

Array = npt.NDArray[np.float64]

# Far above the rounding of sums in another order, far below what one other row changes.
_SAME_SUMS = 1e-9
# Squares of larger sums overflow.
_LARGEST_SUM = 1e150
# The same where a model's rows were rounded to float32 on disk, as fits of earlier versions were whose record has this
# path. Sums of other rows differ by one over the root of their number.
_ROUNDED_PATH, _SAME_ROUNDED_SUMS = "networks on disk", 1e-5
# What a fingerprint is made of besides the encoder.
_SCALERS = ("inputs_scaler", "target_scaler")
_MODULES = ("feature_map", "noise")
_UNSEEN = "unseen_scale"  # not in files of older releases
_TENSORS = ("model.", "inputs_scaler.", "target_scaler.")
# The noise variance that all rows share is not in the sums, so it may be optimised anew without making them useless.
_NOT_IN_THE_SUMS = "model.noise.log_variance"


@check_arguments
@dataclass(frozen=True, eq=False)
class SiteStatistics:
    """What a site gives away instead of its rows: their sums for the features of one model.

    Made by :meth:`TableRegressor.statistics`, taken by :meth:`TableRegressor.merge`. The sums are no rows, but they are
    not anonymous either: from the sums of few rows, rows can be computed.

    Attributes:
        statistics: The row sums, of scaled inputs and targets.
        fingerprint: Of features, row noise scales, scaling and encoding, which must be those of the model.
        target: The name of the column with the targets.
        name: What errors call these statistics, such as the name of their file; not saved.
        version: The release of finitegp that made them.
        columns: The columns of the table that the features are made of; empty in files of the first releases.
    """

    statistics: FeatureStatistics
    fingerprint: str
    target: str | None = None
    name: str = ""
    version: str = __version__
    columns: tuple[str, ...] = ()

    @property
    def rows(self) -> float:
        """How many rows the site has."""
        return self.statistics.num_data

    @property
    def digest(self) -> str:
        """A hash of the sums: the same statistics twice are known by it."""
        header = {"fingerprint": self.fingerprint, "num_data": self.statistics.num_data}
        return _content_hash(header, encode_statistics(self.statistics))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write the sums into one file of the kind that models are in: with a checksum, without rows, without pickle.

        Args:
            path: The file.
            overwrite: Whether to replace a file that is there; if not, that is a FileExistsError.

        Example:
            >>> import tempfile
            >>> sums = FeatureStatistics.from_batch(torch.ones(4, 2), torch.ones(4))
            >>> with tempfile.TemporaryDirectory() as directory:
            ...     SiteStatistics(sums, "0" * 64).save(f"{directory}/north.statistics")
            ...     SiteStatistics.load(f"{directory}/north.statistics").rows
            4.0
        """
        site = {
            "fingerprint": self.fingerprint,
            "target": self.target,
            "num_data": self.statistics.num_data,
            "columns": list(self.columns),
        }
        header = {"kind": "statistics", "versions": {"finitegp": self.version}, "site": site}
        write_container(path, header, encode_statistics(self.statistics), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SiteStatistics:
        """Read a file that :meth:`save` wrote.

        Raises:
            ModelFileError: If the file is damaged, truncated, of a newer version or something else altogether.
        """
        header, tensors = read_container(path, "a site's statistics")
        if header.get("kind") != "statistics":
            raise ModelFileError(
                f"{path} holds a {str(header.get('kind'))[:60]!r}, not a site's statistics: the model comes first, "
                "then files that finitegp statistics (TableRegressor.statistics) wrote for it."
            )
        try:
            site = header["site"]
            fingerprint, target, version = site["fingerprint"], site["target"], header["versions"]["finitegp"]
            columns = site.get("columns", [])
            if not isinstance(columns, list):
                raise ModelFileError("its columns are not a list")
            texts = (fingerprint, version, "" if target is None else target, *columns)
            if not all(isinstance(text, str) for text in texts):
                raise ModelFileError("fingerprint, target, version or the name of a column is not text")
            statistics = decode_statistics(site["num_data"], tensors)
            _check_sums(statistics)
        except (ModelFileError, LiteError, KeyError, TypeError) as error:
            odd = isinstance(error, KeyError | TypeError)
            what = "its description of the site makes no sense" if odd else error
            raise ModelFileError(f"{path} cannot be used: {what}.") from None
        return cls(statistics, fingerprint, target, Path(path).name, version, tuple(columns))


class EncodedChunk(NamedTuple):
    """Some rows as numbers, their targets on the scale of the model, and their counts; None for one each."""

    inputs: Array
    targets: Array
    counts: Array | None


@torch.no_grad()
def site_statistics(
    fit: ScaledGP, encoder: TableEncoder, target: str | None, chunks: Iterable[EncodedChunk]
) -> SiteStatistics:
    """The sums of a site's rows for the features of a model; see :meth:`~finitegp.TableRegressor.statistics`.

    Args:
        fit: The model's.
        encoder: Of the table.
        target: The name of the target.
        chunks: The rows of the table.
    """
    fingerprint = _fingerprint(fit, encoder)
    total = sum_statistics(_partial_statistics(fit, chunks))
    rows, features = total.num_data, total.num_features
    if rows < features:
        warn_caller(
            f"The site has {rows:g} rows, fewer than the {features} features of the model: rows may be computed from "
            "such sums. Do not give them to anyone who may not see the rows; use more rows, or a model with fewer "
            "features."
        )
    columns = tuple(line.column for line in encoder.summary() if line.outputs)
    return SiteStatistics(total, fingerprint, target, columns=columns)


def merge_sites(
    regressor: RegressorT,
    encoder: TableEncoder,
    summary: Mapping[str, object],
    sites: Sequence[SiteStatistics],
    *,
    keep_model_rows: bool = True,
    refit_noise: bool = False,
    allow_repeats: bool = False,
) -> tuple[RegressorT, dict[str, object]]:
    """A copy of a regressor with the exact joint posterior of all sites, and the summary of its model.

    See :meth:`~finitegp.TableRegressor.merge`.
    """
    fit = regressor.fits_[0]
    mine = fit.fitted.posterior.statistics
    labels = [_label(site, number) for number, site in enumerate(sites)]
    if not sites:
        raise DataError("There are no sites to merge: give the statistics of at least one.")
    _check_fingerprints(_fingerprint(fit, encoder), sites, labels)
    earlier = _merged_before(summary) if keep_model_rows else []
    if not allow_repeats:
        rounding = _SAME_ROUNDED_SUMS if fit.record.get("path") == _ROUNDED_PATH else _SAME_SUMS
        _check_repeats(sites, labels, mine if keep_model_rows else None, earlier, rounding)
    total = sum_statistics([*([mine] if keep_model_rows else []), *(site.statistics.to(mine.device) for site in sites)])
    merged = _condition(fit, total, refit_noise)
    merged_sites = earlier + [{"rows": site.rows, "digest": site.digest} for site in sites]
    return _with_fit(regressor, merged, sites, keep_model_rows), {**summary, "merged_sites": merged_sites}


def _partial_statistics(fit: ScaledGP, chunks: Iterable[EncodedChunk]) -> Iterator[FeatureStatistics]:
    for inputs, targets, counts in chunks:
        scaled = fit.inputs_scaler.transform(inputs), fit.target_scaler.transform(targets)
        data = ArraySource(*scaled, counts=counts, chunk_size=fit.fitted.chunk_size)
        yield from fit.fitted.model.partial_statistics(data)


def _condition(fit: ScaledGP, total: FeatureStatistics, refit_noise: bool) -> ScaledGP:
    gp, noise_variance = fit.fitted.model, fit.fitted.posterior.noise_variance
    if refit_noise:
        optimum = optimal_noise(total)
        if optimum.at_floor:
            warn_caller(
                "The features reproduce the targets of all rows, so that the noise is at its lower bound and error "
                "bars mean nothing: merge without refit_noise."
            )
        noise_variance = optimum.noise_variance
        gp = copy.deepcopy(gp)
        gp.noise.set_variance(noise_variance)
        # What was learned from left-out rows was about the standard deviations of the old noise.
        (component,) = fit.components
        plain = replace(component, factor=1.0, degrees_of_freedom=math.inf)
        fit = replace(fit, components=(plain,), conformal=None)
    posterior = WeightPosterior(total, noise_variance)
    return fit.with_fitted([FittedGP(gp, posterior, chunk_size=fit.fitted.chunk_size)])


def _with_fit(
    regressor: RegressorT, fit: ScaledGP, sites: Sequence[SiteStatistics], keep_model_rows: bool
) -> RegressorT:
    """A copy of the regressor with another fit and the counts of its rows brought up to date."""
    regressor = copy.copy(regressor)
    summary = dict(regressor.training_summary_)
    if not keep_model_rows:
        summary["rows_forgotten"] = summary["rows"] + summary["rows_added"]
    summary["rows_added"] += int(sum(site.rows for site in sites))
    regressor.fits_ = [fit]
    regressor.training_summary_ = summary | {"fits": [fit.record]}
    return regressor


def _fingerprint(fit: ScaledGP, encoder: TableEncoder) -> str:
    if len(fit.components) > 1 or fit.spread is not None or fit.keeps_rows:
        raise DataError(
            "This model of a small table holds its training rows, and one or several kernels on them: others cannot "
            "add row sums to it.",
            "Fit it with keep_rows=False.",
            code="model_keeps_rows",
        )
    return _fixed_part_fingerprint(fit, encoder.to_dict())


def _label(site: SiteStatistics, number: int) -> str:
    if not isinstance(site, SiteStatistics):
        raise TypeError(f"Sites must be SiteStatistics, but number {number} is a {type(site).__name__}.")
    return site.name or f"site {number}"


def _check_fingerprints(expected: str, sites: Sequence[SiteStatistics], labels: Sequence[str]) -> None:
    for site, label in zip(sites, labels, strict=True):
        if site.fingerprint == expected:
            continue
        releases = (
            "" if site.version == __version__ else f" by finitegp {site.version[:60]}, while this is {__version__}"
        )
        raise DataError(
            f"{label} was made for another model{releases}: its features, noise scales, scaling or encoding "
            f"(fingerprint {site.fingerprint[:12]}) are not those of this one ({expected[:12]}), and such sums "
            "cannot be added. Send this model's file to the site and make the statistics with it."
        )


def _check_repeats(
    sites: Sequence[SiteStatistics],
    labels: Sequence[str],
    model_rows: FeatureStatistics | None,
    earlier: Sequence[Mapping[str, object]],
    rounding: float,
) -> None:
    known = {each["digest"] for each in earlier}
    for number, (site, label) in enumerate(zip(sites, labels, strict=True)):
        if site.digest in known:
            raise DataError(
                f"{label} was merged into this model before, and its rows would count twice: leave it out,",
                "or set allow_repeats=True.",
                code="repeated_site",
            )
        if model_rows is not None and _same_sums(site.statistics, model_rows, rounding):
            raise DataError(
                f"{label} has the sums of the rows that the model has already, which would count twice: leave it out,",
                "or set keep_model_rows=False.",
                code="rows_of_model",
            )
        for other, before in zip(sites[:number], labels, strict=False):
            if _same_sums(site.statistics, other.statistics):
                raise DataError(
                    f"{label} and {before} hold the same sums, and their rows would count twice: leave one out,",
                    "or set allow_repeats=True.",
                    code="repeated_site",
                )


def _same_sums(one: FeatureStatistics, other: FeatureStatistics, rounding: float = _SAME_SUMS) -> bool:
    """Whether two sums are of the same rows: equal but for rounding, which depends on how a table is cut."""
    if one.num_data != other.num_data or one.num_features != other.num_features:
        return False
    mine, theirs = encode_statistics(one), encode_statistics(other)
    return all(
        float((mine[name] - theirs[name].to(mine[name].device)).abs().max()) <= rounding * float(mine[name].abs().max())
        for name in mine
    )


def _merged_before(summary: Mapping[str, object]) -> list[dict[str, Any]]:
    """What earlier merges noted down; a file may hold anything there."""
    noted = summary.get("merged_sites")
    found = noted if isinstance(noted, list) else []
    return [each for each in found if isinstance(each, dict) and isinstance(each.get("digest"), str)]


def _check_sums(statistics: FeatureStatistics) -> None:
    """Refuse what no rows can have as their sums."""
    gram, diagonal = statistics.gram, statistics.gram.diagonal()
    if statistics.num_targets != 1:
        raise ModelFileError(f"it has sums of {statistics.num_targets} targets instead of one")
    largest = max(float(part.abs().max()) if part.numel() else 0.0 for part in encode_statistics(statistics).values())
    if largest > _LARGEST_SUM:
        raise ModelFileError(f"it has sums of the size {largest:.0e}, whose squares are no numbers in floating point")
    slack = _SAME_SUMS * float(gram.abs().max()) if gram.numel() else 0.0
    squares = statistics.projected_targets[:, 0].square()
    possible = (
        bool((diagonal >= 0.0).all())
        and bool((statistics.target_sum_of_squares >= 0.0).all())
        and bool(((gram - gram.mT).abs() <= slack).all())
        # Cauchy and Schwarz: the square of a sum of products is at most the product of the sums of squares.
        and bool((gram.square() <= (1 + 1e-6) * diagonal[:, None] * diagonal + slack**2).all())
        and bool((squares <= (1 + 1e-6) * diagonal * statistics.target_sum_of_squares + slack**2).all())
    )
    if not possible:
        raise ModelFileError("its numbers cannot be sums over rows")


def _fixed_part_fingerprint(fit: ScaledGP, encoder: Mapping[str, object]) -> str:
    """The hash of features, row noise scales, scaling and encoding, to the last bit; 64 hexadecimal digits.

    It does not change when a posterior takes up rows, nor when a model is saved and loaded.

    Args:
        fit: Of which the posterior, the record and the common noise variance are left aside.
        encoder: Of the table, as JSON.
    """
    whole, tensors = encode_fit(fit)
    header, mine = encode_gp(fit.fitted, len(fit.inputs_scaler.scale))
    tensors |= mine
    chosen = {name: tensor for name, tensor in tensors.items() if name.startswith(_TENSORS)}
    chosen.pop(_NOT_IN_THE_SUMS, None)
    described = {name: header[name] for name in (*_MODULES, _UNSEEN) if name in header}
    return _content_hash({"encoder": encoder, **described, **{name: whole[name] for name in _SCALERS}}, chosen)


def _content_hash(header: Mapping[str, object], tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of JSON and tensors, in an order of its own; the same on every machine."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True, allow_nan=False).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"\n{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.numpy()
        digest.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()
