"""The manifest of a spool: what it holds, its checksum, and the state of the files that it was made from."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from ..atomic import complete_or_absent
from ..errors import DataError

FORMAT = "finitegp-spool-1"
MANIFEST = "manifest.json"
_READ_BYTES = 1 << 20
_MAX_COLUMNS = 1 << 20


def replace_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest in one piece, and remove the rows of the spool that it replaces."""
    with complete_or_absent(folder / MANIFEST) as temporary:
        temporary.write_text(json.dumps(manifest, indent=1), encoding="utf8")
    for path in folder.glob("rows-*.bin"):
        if path.name != manifest["file"]:
            path.unlink()  # of the spool that this one replaces


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest, with everything checked that is used of it."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}): delete the directory and spool the rows again.") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path} is not the manifest of a spool of this version ({FORMAT}): use another directory.")
    whole = {"num_data": int, "input_dim": int, "num_targets": int, "has_weights": bool, "file": str, "checksum": str}
    whole |= {"input_dtype": str, "target_mean_square": float, "has_counts": bool, "mean_count": float, "files": list}
    for name, kind in whole.items():
        if not isinstance(manifest.get(name), kind):
            raise DataError(f"{path} is damaged: {name!r} is not there; delete the directory and spool the rows again.")
    if not (
        manifest["num_data"] >= 1
        and all(1 <= manifest[name] <= _MAX_COLUMNS for name in ("input_dim", "num_targets"))
        and manifest["input_dtype"] in ("float32", "float64")
        and 0.0 < manifest["mean_count"] < math.inf
        and Path(manifest["file"]).name == manifest["file"]
    ):
        raise DataError(f"{path} is damaged; delete the directory and spool the rows again.")
    return manifest


def changed_file(states: list[dict[str, Any]], files: list[Path]) -> str:
    """Which file is not what it was when the spool was written, or nothing."""
    if len(states) != len(files):
        return f"There were {len(states)} files, and now there are {len(files)}."
    for state, path in zip(states, files, strict=True):
        status = path.stat()
        if status.st_size != state["size"]:
            return f"{path} had {state['size']} bytes and now has {status.st_size}."
        # A copy has another time and the same contents.
        if status.st_mtime_ns != state["modified"] and checksum_of(path) != state["checksum"]:
            return f"{path} has other contents than when it was spooled."
    return ""


def file_state(path: Path) -> dict[str, Any]:
    """Size, time and checksum of a file."""
    status = path.stat()
    return {
        "path": str(path),
        "size": status.st_size,
        "modified": status.st_mtime_ns,
        "checksum": checksum_of(path),
    }


def checksum_of(path: Path) -> str:
    """The SHA-256 of a file's contents."""
    digest = hashlib.sha256()
    with open(path, "rb") as opened:
        while block := opened.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
