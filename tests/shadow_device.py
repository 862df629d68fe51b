"""A device that is none: its tensors are labelled, and what a real device would refuse is refused.

Tensors of the shadow have their values on the CPU, so that results can be compared. An operation on tensors of both
kinds is an error, as it is on a real device (but for copies and tensors of one number), and so is ``numpy()``.
"""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

SHADOW = torch.device("meta")  # the only one that every build of torch can name and nobody fits on
_MAY_MIX = ("aten::copy_", "aten::_to_copy")


class ShadowTensor(torch.Tensor):
    """A tensor that claims to be on the shadow device."""

    @staticmethod
    def __new__(cls, values):
        shape = {"strides": values.stride(), "storage_offset": values.storage_offset()}
        made = torch.Tensor._make_wrapper_subclass(cls, values.size(), **shape, dtype=values.dtype, device=SHADOW)
        made.values = values
        return made

    @property
    def data(self):
        return ShadowTensor(self.values)

    @data.setter
    def data(self, other):
        self.values = other.values

    def tolist(self):
        return self.values.tolist()

    def numpy(self):
        raise TypeError("a tensor of the shadow device has no numpy()")

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {}, has_float64=True)


@contextmanager
def shadow_device(*, has_float64=True):
    """Inside, the device "meta" can be used, with or without float64; gives what counts its tensors."""
    with _Made(has_float64) as made, _Copied():
        yield made


class _Made(TorchDispatchMode):
    """Also what is made from nothing is on the device that was asked for."""

    def __init__(self, has_float64):
        super().__init__()
        self.has_float64, self.tensors = has_float64, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = _run(function, args, kwargs or {}, has_float64=self.has_float64)
        self.tensors += any(isinstance(each, ShadowTensor) for each in tree_flatten(found)[0])
        return found


class _Copied(TorchFunctionMode):
    """``torch.tensor`` copies numbers to a device out of sight of the other mode."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.pop("device", None) if function in (torch.tensor, torch.as_tensor) else None
        found = function(*args, **kwargs)
        return found if device is None else found.to(device)


def _run(function, args, kwargs, *, has_float64):
    name = function._schema.name
    tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
    shadows = [isinstance(each, ShadowTensor) for each in tensors]
    if name not in _MAY_MIX and any(shadows):
        left = [each for each, shadow in zip(tensors, shadows, strict=True) if not shadow and each.ndim > 0]
        if left:
            raise RuntimeError(f"{name} mixes devices: {tuple(left[0].shape)} is on the CPU")
    asked = kwargs.get("device")
    on_shadow = any(shadows) if asked is None else torch.device(asked).type == SHADOW.type
    if name == "aten::copy_":
        on_shadow = shadows[0]
    plain = {key: value for key, value in kwargs.items() if key != "device"}
    if asked is not None:
        plain["device"] = "cpu" if on_shadow else asked
    args, plain = tree_map(lambda each: each.values if isinstance(each, ShadowTensor) else each, (args, plain))
    found = function(*args, **plain)
    if not on_shadow:
        return found
    if not has_float64 and any(
        isinstance(each, torch.Tensor) and each.dtype == torch.float64 for each in tree_flatten(found)[0]
    ):
        raise TypeError(f"{name} makes float64 on a device that has none")
    return tree_map(lambda each: ShadowTensor(each) if isinstance(each, torch.Tensor) else each, found)
