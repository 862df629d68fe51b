"""``resumable``: what automatic fits have finished is kept in a file, from which an interrupted fit goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import __version__
from .arguments import check_arguments
from .atomic import check_place
from .errors import ModelFileError, warn_caller
from .persistence.container import read_container, write_container

FORMAT = "finitegp-fit-checkpoint"
#: Of any number in a file: all are of standardised rows.
LARGEST = 1e30
_Result = TypeVar("_Result")


@contextmanager
@check_arguments
def resumable(path: str | Path, *, after: float = 0.0) -> Iterator[None]:
    """Automatic fits in this block keep what they have finished in a file, and begin with what is there.

    Kept are the densities that choose a target's scale, each kernel's hyperparameters and folds, and each group of
    trained networks. After a crash, Ctrl-C or a kill, the same block goes on from there, and ends with the same model
    to the bit. When the block ends well, the file is deleted: save the model inside.

    The file stands for one run of the block: fits to other rows, in another order or with other settings are refused,
    and so are those of another release of finitegp or PyTorch. ``random_state`` has to be a number. The file takes some
    hundred kilobytes per network; as much is kept in memory, beside any memory budget. Fits in other threads and
    processes, such as those of ``GridSearchCV(n_jobs=2)``, are not kept.

    Args:
        path: The file; without one there, the block begins at the beginning.
        after: Seconds from the beginning of the block before which nothing is written.

    Raises:
        ModelFileError: If the file is damaged, or of other rows or settings.

    Example:
        >>> import tempfile
        >>> from finitegp import GPRegressor
        >>> X = np.linspace(-1.0, 1.0, 40)[:, None]
        >>> with tempfile.TemporaryDirectory() as folder, resumable(Path(folder) / "fit.checkpoint"):
        ...     model = GPRegressor(effort="low", random_state=0).fit(X, np.sin(3.0 * X[:, 0]))
        ...     model.save(Path(folder) / "model.finitegp")
    """
    if not 0.0 <= after < float("inf"):
        raise ValueError(f"after must be a number of seconds, but is {after!r}.")
    kept = _Kept(check_place(path), time.monotonic() + after)
    token = _CURRENT.set(kept)
    try:
        yield
    except BaseException:
        kept.write()
        raise
    finally:
        _CURRENT.reset(token)
    if kept.is_on_disk:
        kept.path.unlink(missing_ok=True)


def is_resumable() -> bool:
    """Whether fits are kept at the moment."""
    return _CURRENT.get() is not None


def open_stages(work: str, setting: Mapping[str, Any], *rows: npt.NDArray[Any] | None) -> Stages:
    """The stages of the next piece of work, if it is the one that the file has in this place.

    Args:
        work: Its name.
        setting: All that the results depend on besides the rows, in types that JSON has.
        rows: Arrays, or None.

    Raises:
        ModelFileError: If the file has the stages of something else.
    """
    kept = _CURRENT.get()
    if kept is None:
        return Stages(None, 0)
    digest = hashlib.sha256()
    for array in rows:
        if array is not None:
            digest.update(f"{array.shape} {array.dtype}".encode())
            digest.update(np.ascontiguousarray(array).data)
        digest.update(b";")
    return kept.open({"work": work, **setting, "hash of the rows": digest.hexdigest()[:16]})


@dataclass(eq=False)
class _Kept:
    """The file of one block, and what it holds.

    Attributes:
        path: The file.
        begins: The moment before which nothing is written.
        works: What has been worked on, in order.
        tensors: Of finished stages, by number of the work, stage and name.
        opened: How many of the works this block has come to.
        is_on_disk: Whether there is a file of this block.
    """

    path: Path
    begins: float
    works: list[dict[str, Any]] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    opened: int = 0
    is_on_disk: bool = False
    _changed: bool = False

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        header, self.tensors = read_container(self.path, "the checkpoint of a fit", FORMAT)
        works = header.get("works")
        if not isinstance(works, list) or not all(isinstance(work, dict) for work in works):
            raise self.refusal("its list of works makes no sense")
        for name, version in _versions().items():
            if header.get(name) != version:
                raise self.refusal(f"it was written by {name} {str(header.get(name))[:60]}, and this is {version}")
        self.works, self.is_on_disk = works, True

    def open(self, work: Mapping[str, Any]) -> Stages:
        """The stages of the next work, which must be the one that was next before."""
        wanted = json.loads(json.dumps(work))
        if self.opened == len(self.works):
            self.works.append(wanted)
        for name, value in wanted.items():
            known = self.works[self.opened].get(name)
            if known != value:
                raise self.refusal(f"it belongs to another fit: {name} was {str(known)[:200]} and is now {value}")
        self.opened += 1
        return Stages(self, self.opened - 1)

    def find(self, place: str) -> dict[str, Tensor]:
        """The tensors of a stage; none if it is not finished."""
        return {name[len(place) :]: tensor for name, tensor in self.tensors.items() if name.startswith(place)}

    def keep(self, place: str, tensors: Mapping[str, Tensor]) -> None:
        """Take up a finished stage; one that went wrong is not worth it."""
        if all(bool((tensor.abs() <= LARGEST).all()) for tensor in tensors.values()):
            self.tensors |= {place + name: tensor.detach().clone() for name, tensor in tensors.items()}
            self._changed = True
            self.write()

    def write(self) -> None:
        """Write all that is finished; a full disk does not end the fit."""
        if not self._changed or time.monotonic() < self.begins:
            return
        self._changed = False
        try:
            write_container(self.path, {"format": FORMAT, "works": self.works, **_versions()}, self.tensors)
            self.is_on_disk = True
        except OSError as error:
            self.begins = float("inf")
            warn_caller(f"The checkpoint {self.path} cannot be written ({error.strerror}): this fit cannot be resumed.")

    def refusal(self, why: str) -> ModelFileError:
        """The error that names the file."""
        return ModelFileError(f"The checkpoint {self.path} cannot be used: {why}. Delete it to start anew.")


class Stages:
    """The stages of one piece of work: those that are finished are not computed again.

    Args:
        kept: What is kept of the block; None if nothing is.
        number: Of the work in the block.
    """

    def __init__(self, kept: _Kept | None, number: int) -> None:
        self._kept, self._number = kept, number

    def collect(
        self,
        names: Sequence[str],
        compute: Callable[[list[int]], Iterable[_Result]],
        encode: Callable[[_Result], Mapping[str, Tensor]],
        decode: Callable[[int, StoredTensors], _Result],
    ) -> Iterator[_Result]:
        """The result of each stage in order, from the file or computed.

        Args:
            names: Of the stages, all different.
            compute: From positions in ``names`` to the results in their order.
            encode: From a result to tensors.
            decode: From a position and its tensors to a result.
        """
        if self._kept is None:
            yield from compute(list(range(len(names))))
            return
        places = [f"{self._number}/{name}/" for name in names]
        known = [self._kept.find(place) for place in places]
        computed = iter(compute([number for number, found in enumerate(known) if not found]))
        for number, (place, found) in enumerate(zip(places, known, strict=True)):
            if found:
                yield decode(number, StoredTensors(self._kept, names[number], found))
                continue
            result = next(computed)
            self._kept.keep(place, encode(result))
            yield result

    def arrays(
        self,
        names: Sequence[str],
        compute: Callable[[list[int]], Iterable[npt.NDArray[np.float64]]],
        shapes: Sequence[tuple[int, ...]],
        lowest: float | npt.NDArray[np.float64] = -LARGEST,
        highest: float = LARGEST,
    ) -> Iterator[npt.NDArray[np.float64]]:
        """:meth:`collect` of one float64 array per stage, of a known shape and within limits."""

        def decode(number: int, stored: StoredTensors) -> npt.NDArray[np.float64]:
            like = torch.empty(shapes[number], dtype=torch.float64)
            return stored.take("array", like, torch.as_tensor(lowest), highest).numpy()

        return self.collect(
            names, compute, lambda array: {"array": torch.from_numpy(np.array(array, dtype=np.float64))}, decode
        )


@dataclass(frozen=True, eq=False)
class StoredTensors:
    """The tensors of a finished stage."""

    _kept: _Kept
    _stage: str
    _tensors: Mapping[str, Tensor]

    def take(self, name: str, like: Tensor, lowest: Tensor | float = -LARGEST, highest: float = LARGEST) -> Tensor:
        """A copy of the tensor of this name, which must have the shape and type of another and lie within limits."""
        found = self._tensors.get(name)
        if found is None or found.shape != like.shape or found.dtype != like.dtype:
            what = "missing" if found is None else f"{found.dtype} of shape {tuple(found.shape)}"
            raise self._kept.refusal(
                f"its tensor {name!r} of the stage {self._stage!r} is {what} instead of {like.dtype} of shape "
                f"{tuple(like.shape)}"
            )
        if not bool(((found >= lowest) & (found <= highest)).all()):
            raise self._kept.refusal(f"its tensor {name!r} of the stage {self._stage!r} has values that make no sense")
        return found.clone()


def _versions() -> dict[str, str]:
    """Of what results depend on to the last bit."""
    return {"finitegp": __version__, "torch": str(torch.__version__)}


# What is kept of the block that is running.
_CURRENT: ContextVar[_Kept | None] = ContextVar("resumable block", default=None)
