"""Write ``docs/api.md`` from the docstrings of the public names: ``python docs/make_api.py``.

With ``--check`` nothing is written, and the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ForwardRef

PAGE = Path(__file__).parent / "api.md"

#: Section, then modules with the names that are shown of them; ``"*"`` stands for all of ``__all__`` not yet shown.
CONTENTS: dict[str, dict[str, list[str]]] = {
    "Estimator": {
        "finitegp": ["GPRegressor"],
        "finitegp.stages": ["resumable"],
        "finitegp.automatic": ["fit_auto", "fit_source", "fit_within_memory", "AutoSettings"],
        "finitegp.scaled": ["ScaledGP"],
        "finitegp.lite.hashing": ["row_hashes"],
        "finitegp.component": ["Component", "student_component", "SpreadModel"],
        "finitegp.extrapolation": ["ExcessVariance"],
        "finitegp.conformal": ["ConformalScores"],
        "finitegp.estimator": ["as_regressor"],
    },
    "Tables": {
        "finitegp.tables.model": ["TableRegressor"],
        "finitegp.tables.predictions": ["PredictedChunk"],
        "finitegp.tables.judging": ["fit_and_judge", "JudgedFit"],
        "finitegp.tables.hold_out": ["Judging"],
        "finitegp": ["nlpd_scorer", "crps_scorer", "coverage_scorer"],
        "finitegp.sites": ["SiteStatistics"],
        "finitegp.tables.reader": ["TableReader"],
        "finitegp.tables.encoder": ["TableEncoder"],
        "finitegp.tables.summaries": ["ColumnSummary", "TransformReport"],
        "finitegp.tables.targets": ["target_values", "TargetScale"],
    },
    "Files and reports": {"finitegp.persistence": ["*"], "finitegp.report": ["*"]},
    "Export": {"finitegp.lite": ["*"], "finitegp.export": ["*"]},
    "Models": {
        "finitegp": [
            "FeatureGP",
            "FittedGP",
            "Prediction",
            "ConstantNoise",
            "InputNoise",
            "fit_full_batch",
            "FullBatchResult",
        ],
        "finitegp.predictive": ["StudentMixture"],
    },
    "Feature maps": {"finitegp.features": ["*"]},
    "Training": {
        "finitegp": ["train", "TrainingRun"],
        "finitegp.algorithms": ["*"],
        "finitegp.schedules": ["make_optimizer", "cosine_decay", "theory_decay"],
        "finitegp.callbacks": ["*"],
        "finitegp.compiled": ["*"],
    },
    "Several processes": {
        "finitegp.torchrun": ["join_ranks"],
        "finitegp.distributed": ["Ranks"],
        "finitegp.errors": ["LostRankError"],
    },
    "Sources of rows": {"finitegp.tables.source": ["TableSource"], "finitegp.data": ["*"]},
    "Memory": {"finitegp.memory": ["*"]},
    "Mathematics": {
        "finitegp": [
            "FeatureStatistics",
            "negative_log_marginal_likelihood",
            "MarginalLikelihood",
            "optimal_noise",
            "NoiseOptimum",
            "WeightPosterior",
        ]
    },
    "Judging": {
        "finitegp.metrics": ["score", "Scores"],
        "finitegp.error_shape": ["ErrorShape"],
        "finitegp.diagnostics": ["measure_bias", "GradientBias", "certify", "Certificate"],
    },
    "Errors": {
        "finitegp.errors": [
            "FiniteGPError",
            "DataError",
            "FeatureMapError",
            "ModelFileError",
            "OutputExistsError",
            "NumericalError",
        ],
        "finitegp.training": ["TrainingDivergedWarning"],
    },
}

#: Bases whose methods are shown as those of the class that inherits them.
_SHOWN_BASES = {"TablePredictions"}
_LISTS = ("Args", "Attributes", "Raises")
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Yields|Example|Examples):$")
_ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \w+)*): (.*)$")
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`[~.]*([^`]+)`")
_MATH = re.compile(r":math:`([^`]+)`")


class _Bare:
    """Shown in a signature without quotes."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def make_page() -> str:
    """The whole page."""
    lines = [
        "# API reference",
        "",
        "Written by `docs/make_api.py` from the docstrings; do not edit. The examples are executed in the tests.",
        "",
        "Types that many signatures share: `ArrayLike` is NumPy's, with torch's tensors and data frames of numbers;",
        "`Data` is a source, arrays `(inputs, targets[, weights[, counts]])`, or an iterable of such chunks;",
        "`TableLike` is a data frame, an Arrow table, an array, columns by name, names of files, or chunks of these;",
        "`RandomState` is a whole number, NumPy's `RandomState` or None; `Exportable` is a fitted model or its file.",
        "",
    ]
    body: list[str] = []
    for section, names in _resolved().items():
        links = " · ".join(f"[`{name.rsplit('.', 1)[1]}`](#{_anchor(name)})" for name, _ in names)
        lines += [f"- **{section}**: {links}"]
        body += ["", f"## {section}"]
        for name, thing in names:
            body += ["", f"### {name}", "", *_describe(name, thing)]
    return "\n".join([*lines, *body]) + "\n"


def _resolved() -> dict[str, list[tuple[str, Any]]]:
    """The things of each section with their full names; each thing once, even if it has several names."""
    resolved: dict[str, list[tuple[str, Any]]] = {}
    named = {
        id(getattr(importlib.import_module(module), name))
        for modules in CONTENTS.values()
        for module, names in modules.items()
        for name in names
        if name != "*"
    }
    for section, modules in CONTENTS.items():
        found = resolved.setdefault(section, [])
        for path, names in modules.items():
            module = importlib.import_module(path)
            for name in names:
                if name != "*":
                    found.append((f"{path}.{name}", getattr(module, name)))
                    continue
                for each in module.__all__:
                    thing = getattr(module, each)
                    if id(thing) not in named:
                        named.add(id(thing))
                        found.append((f"{path}.{each}", thing))
    return resolved


def _describe(name: str, thing: Any) -> Iterator[str]:
    short = name.rsplit(".", 1)[1]
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        yield from ("```text", _signature(short, thing, width=100), "```", "")
    yield from markdown(inspect.getdoc(thing) or "")
    if not inspect.isclass(thing):
        return
    shown = [each for each in thing.__mro__ if each is thing or each.__name__ in _SHOWN_BASES]
    for method, member in (member for each in shown for member in vars(each).items()):
        if method.startswith("_"):
            continue
        if isinstance(member, property):
            title = method
        elif isinstance(member, classmethod | staticmethod) or inspect.isfunction(member):
            title = _signature(method, getattr(thing, method), width=10_000, drop_self=inspect.isfunction(member))
        else:
            continue
        described = list(markdown(inspect.getdoc(getattr(thing, method)) or ""))
        yield from ("", f"**`{title}`**", "")
        yield from described


def _signature(name: str, thing: Any, *, width: int, drop_self: bool = False) -> str:
    signature = inspect.signature(thing)
    parameters = [
        each.replace(
            annotation=_annotation(each.annotation),
            default=each.default if each.default is each.empty else _Bare(_default(name, each)),
        )
        for each in signature.parameters.values()
    ][1 if drop_self else 0 :]
    returned = inspect.Signature.empty if inspect.isclass(thing) else _annotation(signature.return_annotation)
    text = f"{name}{inspect.Signature(parameters, return_annotation=returned)}"
    if len(text) <= width or not parameters:
        return text
    shown = [f"    {part}," for part in _parts(parameters)]
    ending = "" if returned is inspect.Signature.empty else f" -> {returned!r}"
    return "\n".join([f"{name}(", *shown, f"){ending}"])


def _parts(parameters: list[inspect.Parameter]) -> Iterator[str]:
    starred = False
    for each in parameters:
        if each.kind is each.VAR_POSITIONAL:
            starred = True
        elif each.kind is each.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield str(each)


def _annotation(annotation: Any) -> Any:
    if annotation is inspect.Parameter.empty:
        return annotation
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _Bare(text.replace("collections.abc.", "").replace("typing.", ""))


def _default(name: str, parameter: inspect.Parameter) -> str:
    text = "..." if "factory" in type(parameter.default).__name__.lower() else repr(parameter.default)
    if " at 0x" in text:
        raise ValueError(f"The default of {parameter.name} of {name} has no stable text: {text}.")
    return text


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def markdown(docstring: str) -> Iterator[str]:
    """The lines of a docstring, its sections of arguments as lists and its examples as code."""
    lines = docstring.splitlines()
    position = 0
    while position < len(lines):
        if lines[position].startswith(".. math::"):
            start, position = position, position + 1
            while position < len(lines) and lines[position].startswith("    "):
                position += 1
            formula = [lines[start].removeprefix(".. math::"), *lines[start + 1 : position]]
            yield from ("```math", *(line.strip() for line in formula if line.strip()), "```")
            continue
        match = _SECTION.match(lines[position])
        if match is None:
            yield _inline(lines[position])
            position += 1
            continue
        start = position = position + 1
        while position < len(lines) and (not lines[position].strip() or lines[position].startswith("    ")):
            position += 1
        block = inspect.cleandoc("\n" + "\n".join(lines[start:position])).splitlines()
        title = match.group(1)
        if title.startswith("Example"):
            yield from ("```pycon", *block, "```")
        elif title in _LISTS:
            yield from (f"{'Arguments' if title == 'Args' else title}:", "")
            yield from _entries(block)
        else:
            yield f"{title}: {_inline(' '.join(line.strip() for line in block))}"
        if position < len(lines):
            yield ""


def _entries(block: list[str]) -> Iterator[str]:
    for line in block:
        entry = _ENTRY.match(line)
        if entry is not None:
            yield f"- `{entry.group(1)}`: {_inline(entry.group(2))}"
        else:
            yield f"  {_inline(line.strip())}".rstrip()


def _inline(line: str) -> str:
    """References and literals of reStructuredText as Markdown."""
    line = _MATH.sub(r"$`\1`$", line)
    line = _ROLE.sub(lambda found: f"`{found.group(1).rsplit('.', 1)[-1]}`", line)
    return line.replace("``", "`")


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    page = make_page()
    if "--check" in arguments:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page:
            return 0
        print("docs/api.md is out of date: run python docs/make_api.py", file=sys.stderr)
        return 1
    PAGE.write_text(page, encoding="utf-8")
    print(f"{PAGE.name}: {len(page.splitlines())} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
