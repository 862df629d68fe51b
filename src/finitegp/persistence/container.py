"""Files of the library: tensors, and a JSON header that is checked where it is read; laid out by ``lite.container``."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..atomic import can_be_name, complete_or_absent
from ..errors import ModelFileError
from ..lite.container import FORMAT, FORMAT_VERSION, MAX_HEADER_BYTES, NO_DIGEST, Header, read_layout, sealed
from ..lite.program import LiteError
from ..memory.plan import parse_bytes

# What tensors may be.
_TYPES = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}
Kind = Callable[[Any], bool]


class Contents(NamedTuple):
    """The contents of a file: our JSON header, and the tensors by name."""

    header: Header
    tensors: dict[str, Tensor]


def write_container(
    path: str | os.PathLike[str], header: Mapping[str, object], tensors: Mapping[str, Tensor], *, overwrite: bool = True
) -> None:
    """Write header and tensors into one file; an old file stays whole until the new one is complete, or for good."""
    stamped = {"format": FORMAT, "format_version": FORMAT_VERSION, **header}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in _TYPES:
            what = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ModelFileError(f"The model cannot be saved: {name!r} is {what}, which a file cannot hold.")
    # Tensors that share memory would be refused.
    copies = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(stamped, allow_nan=False, ensure_ascii=True)
    data = save(copies, {"finitegp": text, "sha256": NO_DIGEST})
    length = 8 + int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(
            f"The model cannot be saved: its description takes {length} bytes of at most {MAX_HEADER_BYTES}, because "
            "of columns with very many categories. Leave these columns out."
        )
    body = memoryview(data)[length:]
    head = sealed(data[:length], body)
    with complete_or_absent(path, overwrite=overwrite) as temporary, open(temporary, "wb") as opened:
        opened.write(head)
        opened.write(body)


def read_container(path: str | os.PathLike[str], expected: str = "a model", form: str = FORMAT) -> Contents:
    """Read a file that :func:`write_container` wrote; anything else is a ModelFileError that names what it is.

    Nothing is allocated that is larger than the file. ``expected`` is what errors call the file that should be there,
    and ``form`` the format that its header must name.
    """
    place = Path(path)
    if not can_be_name(place):
        raise ModelFileError(f"{str(place)!r} cannot be the name of a file.")
    try:
        header, _, head, body = read_layout(place, expected, form)
        return Contents(header, load(head + body))
    except LiteError as error:
        raise ModelFileError(str(error)) from None
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ModelFileError(f"{place} is damaged ({error}). Copy or write it again.") from None


def plain_json(value: object) -> Any:
    """The value in types that JSON has; numbers that are not finite become None, which JSON calls null.

    Example:
        >>> plain_json({"rows": np.int64(3), "scores": (0.5, float("nan"))})
        {'rows': 3, 'scores': [0.5, None]}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): plain_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(each) for each in value]
    if isinstance(value, np.ndarray | Tensor):
        return plain_json(value.tolist())
    raise TypeError(f"A {type(value).__name__} cannot be stored as JSON.")


def _text(value: object) -> bool:
    return isinstance(value, str)


def _number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _count(value: object) -> bool:
    return _number(value) and value >= 0 and float(value).is_integer()


def _share(value: object) -> bool:
    return _number(value) and 0.0 <= value <= 1.0


def _size(value: Any) -> bool:
    try:
        return parse_bytes(value) > 0
    except (TypeError, ValueError):
        return False


def _versions(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _history(value: object) -> bool:
    """Of one run, or of several by name: measurements of epochs."""
    runs = value.values() if isinstance(value, dict) else [value]
    return all(
        isinstance(run, list)
        and all(isinstance(row, dict) and all(each is None or _number(each) for each in row.values()) for row in run)
        for run in runs
    )


def _level(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def _scores(value: object) -> bool:
    """One entry per model, all with the same intervals."""
    if not isinstance(value, list):
        return False
    for each in value:
        if not isinstance(each, dict) or not _text(each.get("name")) or not isinstance(each.get("coverage"), dict):
            return False
        inside = each["coverage"]
        if inside.keys() != value[0]["coverage"].keys() or not all(_level(name) for name in inside):
            return False
        if not all(_share(share) for share in inside.values()) or not _number(each.get("rmse")):
            return False
        if not all(each[name] is None or _number(each[name]) for name in each.keys() - {"name", "coverage"}):
            return False
    return True


def _settings(value: object) -> bool:
    """Whole numbers, where the doctor computes with them; anything else as it is."""
    if not isinstance(value, dict):
        return False
    sizes = [value[name] for name in ("batch_size", "epochs", "min_steps", "window") if name in value]
    hidden = value.get("hidden", [1])
    return (
        all(_number(size) and size >= 1 for size in sizes)
        and isinstance(hidden, list)
        and len(hidden) > 0
        and all(_number(width) and width >= 1 for width in hidden)
    )


#: Of a fit.
RECORD: dict[str, Kind] = {
    **dict.fromkeys(("path", "why", "effort", "feature_map", "algorithm", "stop_reason"), _text),
    **dict.fromkeys(("seconds", "log_marginal_likelihood", "out_of_fold_rmse"), _number),
    "rows": lambda value: _count(value) and value >= 1,
    "settings": _settings,
    "history": _history,
}
#: Of an estimator.
TRAINING_SUMMARY: dict[str, Kind] = {
    **dict.fromkeys(("rows", "rows_added", "rows_forgotten", "columns", "targets"), _count),
    **dict.fromkeys(("seconds", "total_weight"), _number),
    "versions": _versions,
}
#: Parameters that are read before they are checked.
PARAMETERS: dict[str, Kind] = {"memory_budget": _size, "effort": _text}
#: Of a model of a table.
TABLE_SUMMARY: dict[str, Kind] = {
    **dict.fromkeys(("rows", "held_out_rows", "rows_without_target"), _count),
    **dict.fromkeys(("target_mean", "target_std", "seconds", "interval_width"), _number),
    "judged_by": _text,
    "scores": _scores,
}


def check_kinds(what: str, entries: object, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The entries, if each that is there and not null is of its kind; others may be anything.

    Example:
        >>> check_kinds("record", {"path": "kernel", "seconds": None, "of a later release": [1]}, RECORD)["path"]
        'kernel'
        >>> check_kinds("record", {"path": ["kernel"]}, RECORD)
        Traceback (most recent call last):
        ...
        finitegp.errors.ModelFileError: the entry 'path' of its record is "['kernel']", which makes no sense
    """
    if not isinstance(entries, dict):
        raise ModelFileError(f"its {what} is not a table of names and values")
    for name, kind in kinds.items():
        value = entries.get(name)
        if value is not None and not kind(value):
            raise ModelFileError(f"the entry {name!r} of its {what} is {str(value)[:60]!r}, which makes no sense")
    return entries
