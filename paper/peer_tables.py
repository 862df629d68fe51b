"""The default and every peer on every table: scores, coverage, cost, and differences to the default row by row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from .cells import AUTO
from .contenders import Contender, find_contenders, find_default
from .markdown import MISSING, bold, number, table
from .peers import TREATED
from .predictions import PAIRED_METRICS, PairedDifference
from .selection import Row

_HEADER = ["table", "method", "RMSE", "NLPD", "CRPS", "90 % covers", "largest residual", "s", "MB", "splits"]


def peer_section(rows: Sequence[Row], results: Path) -> list[str]:
    """The part of the appendix on peers; empty if neither the default nor a peer was run."""
    lines = peer_table(rows, results)
    if not lines:
        return []
    paired = ""
    if len(lines[0].split("|")) > len(_HEADER) + 2:
        paired = (
            "Last columns: mean difference to `auto` ± standard error over test rows, where predictions of both were "
            "stored; the error is that of drawing test rows, not of training again. "
        )
    return [
        "## Peers",
        "",
        "Test rows in raw units, means over splits. The ten splits of a table are a ten-fold partition: test rows of "
        "different splits are different rows, but each is a training row of all other splits. Bold: lowest RMSE, NLPD "
        "and CRPS of the table, and coverage nearest to 90 %. NLPD in brackets: a Gaussian with the same mean and "
        "standard deviation, where the prediction is Student's t. The largest residual is in predicted standard "
        "deviations. Seconds are of the processor, to fit, one thread, rough, over all fits of a method; * marks runs "
        "with fewer epochs or trees than asked for, chosen before by pace or ended by a cap. MB is what the fit added "
        f"to interpreter, libraries and data. {paired}`{TREATED}`: the peer after the treatment that is the same for "
        "all: five fits without a fold each, their mean, error bars and Student's t from the left-out rows "
        "(`paper/peers/posthoc.py`). Peers have their own defaults or searches, and at most 120 processor seconds "
        "where that is named (in older lines, vbll's among them, seconds of the clock). Learning rates of svgp-rbf, "
        "svgp-network, the ensemble and vbll were retuned on held-out training rows after test scores on bike and pol "
        "had been seen. `auto` is the fourth version that saw these test rows ([what it "
        "does](default.md#what-each-piece-contributes)).",
        "",
        *lines,
        "",
    ]


def peer_table(rows: Sequence[Row], results: Path) -> list[str]:
    """Markdown of all contenders; differences to the default are left out where no predictions were stored."""
    body = []
    for dataset, contenders in find_contenders(rows).items():
        own = find_default(contenders)
        best = {name: min(values, default=None) for name, values in _scores(contenders).items()}
        for contender in contenders:
            found: list[PairedDifference | None] = [None] * len(PAIRED_METRICS)
            if own is not None and contender is not own:
                found = [contender.minus(own, results, metric) for metric in PAIRED_METRICS]
            differences = [MISSING if d is None else f"{number(d[0], 4)} ± {number(d[1], 4)}" for d in found]
            body.append([dataset, *_line(contender, best), *differences])
    header = _HEADER + [f"{metric.upper()} − auto's" for metric in PAIRED_METRICS]
    if all(line[-1] == MISSING for line in body):
        header, body = _HEADER, [line[: len(_HEADER)] for line in body]
    return table(header, body, words=2) if body else []


def name_splits(splits: Sequence[int]) -> str:
    """Splits in few words.

    Example:
        >>> name_splits([0]), name_splits([0, 1, 2]), name_splits([0, 2])
        ('0', '0 to 2', '0, 2')
    """
    if len(splits) > 1 and list(splits) == list(range(splits[0], splits[-1] + 1)):
        return f"{splits[0]} to {splits[-1]}"
    return ", ".join(map(str, splits))


def _scores(contenders: Iterable[Contender]) -> dict[str, list[float]]:
    found = defaultdict(list)
    for contender in contenders:
        for metric in ("rmse", "nlpd", "crps"):
            if (value := contender.mean(metric)) is not None:
                found[metric].append(round(value, 3))
        if (share := contender.coverage("0.9")) is not None:
            found["coverage"].append(round(abs(share - 0.9), 3))
    return found


def _line(contender: Contender, best: Mapping[str, float | None]) -> list[str]:
    cells = []
    for metric in ("rmse", "nlpd", "crps"):
        value = contender.mean(metric)
        cells.append(bold(number(value), value is not None and round(value, 3) == best[metric]))
    if (gaussian := contender.gaussian_nlpd()) is not None:
        cells[1] += f" ({number(gaussian)})"
    share = contender.coverage("0.9")
    covers = MISSING if share is None else f"{100 * share:.1f} %"
    cells.append(bold(covers, share is not None and round(abs(share - 0.9), 3) == best["coverage"]))
    name = f"*{contender.name}*" if contender.method == AUTO else contender.name
    residual = number(max(contender.values("largest_standardized_residual"), default=None), 1)
    seconds = number(contender.mean("seconds"), 1) + "*" * contender.is_shortened
    return [name, *cells, residual, seconds, _memory(contender), name_splits(contender.splits)]


def _memory(contender: Contender) -> str:
    peaks, before = contender.values("peak_memory_bytes"), contender.values("memory_before_bytes")
    added = [peak - start for peak, start in zip(peaks, before, strict=False)]
    return f"{max(added) / 1e6:.0f}" if added else MISSING
