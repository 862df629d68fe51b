"""``check_arguments``: a call that fails because of an argument's type raises an error that names it.

What a program passes in by mistake would otherwise fail far inside, with an error that names nothing it knows. The
check comes after the failure: calls that go well cost nothing more, and errors that name the argument themselves stay.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from .errors import ArgumentError, FiniteGPError

Public = TypeVar("Public")
Check = Callable[[Any], bool]
#: The check of an argument, if its type has one, and the value that was given.
Given = tuple[tuple[str, str, Check] | None, object]
# Whose classes are compared.
_OURS = ("finitegp", "torch", "numpy.random", "rich")
#: The largest seed that scikit-learn takes.
MOST_SEED = 2**32 - 1
# Longer values are shown by their type.
_SHOWN = 80


def check_arguments(public: Public) -> Public:
    """Let a function, or the public methods of a class, name the argument of a wrong type that made them fail.

    Only plain annotations are compared: numbers, text, paths, flags, functions, sequences, mappings and
    classes of this library and of torch. Estimators take anything when they are made, as scikit-learn wants it; ``fit``
    compares their parameters.

    Example:
        >>> @check_arguments
        ... def repeat(text: str, times: int = 2) -> str:
        ...     return text * times
        >>> repeat("ab", 3)
        'ababab'
        >>> repeat("ab", 2.5)
        Traceback (most recent call last):
        ...
        finitegp.errors.ArgumentError: times must be a whole number (of at most 64 bits), but is 2.5.
    """
    if not inspect.isclass(public):
        return _checked(public)  # type: ignore[return-value, arg-type]
    is_estimator = hasattr(public, "get_params")
    # What only stores its arguments does not fail because of their types.
    only_stores = is_estimator or (dataclasses.is_dataclass(public) and not hasattr(public, "__post_init__"))
    for name, member in list(vars(public).items()):
        if name.startswith("_") and (name != "__init__" or only_stores):
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(public, name, type(member)(_checked(member.__func__)))
        elif inspect.isfunction(member) and _takes_arguments(member):
            setattr(public, name, _checked(member, parameters=public if is_estimator and name == "fit" else None))
    return public


def check_at_least_one(**values: float) -> None:
    """An error that names the first argument below one."""
    for name, value in values.items():
        if not value >= 1:
            raise ValueError(f"{name} must be at least 1, but is {value}.")


def check_chunk_size(chunk_size: int) -> int:
    """The chunk size; an error if it is below one."""
    check_at_least_one(chunk_size=chunk_size)
    return chunk_size


def check_positive(**values: float) -> None:
    """An error that names the first argument that is not positive."""
    for name, value in values.items():
        if not value > 0.0:
            raise ValueError(f"{name} must be positive, but is {value}.")


def check_noise_variance(noise_variance: float) -> float:
    """The noise variance as a float, if it is positive and finite."""
    value = float(noise_variance)
    if not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"noise_variance must be positive and finite, but is {value}.")
    return value


def _takes_arguments(method: types.FunctionType) -> bool:
    """Whether there is an argument besides the object itself."""
    code = method.__code__
    any_number = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    return bool(any_number) or code.co_argcount + code.co_kwonlyargcount > 1


def _checked(function: Callable[..., Any], parameters: type[object] | None = None) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _explain(error, _given(function, args, kwargs, parameters))
            raise

    @functools.wraps(function)
    def generator(*args: object, **kwargs: object) -> Generator[object, object, object]:
        try:
            return (yield from function(*args, **kwargs))
        except Exception as error:
            _explain(error, _given(function, args, kwargs, parameters))
            raise

    return generator if inspect.isgeneratorfunction(function) else wrapper


def _explain(error: Exception, given: Iterable[Given]) -> None:
    """Raise a better error if an argument is of a wrong type, unless this one names it already."""
    if isinstance(error, FiniteGPError):
        return
    for check, value in given:
        if check is not None and not check[2](value) and not re.search(rf"\b{check[0]}\b", str(error)):
            raise _wrong(check, value) from error


def _given(
    function: Callable[..., Any],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    parameters: type[object] | None,
) -> Iterator[Given]:
    """The checks of all arguments with their values; and of the parameters of an estimator."""
    checks = _checks_of(function)
    places = inspect.signature(inspect.unwrap(function)).parameters.values()
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    yield from zip(checks[: sum(each.kind in by_place for each in places)], args, strict=False)
    by_name = {check[0]: check for check in checks if check is not None}
    for name, value in kwargs.items():
        yield by_name.get(name), value
    if parameters is not None:
        for check in _checks_of(parameters.__init__):
            if check is not None:
                yield check, getattr(args[0], check[0], None)


def _wrong(check: tuple[str, str, Check], value: object) -> ArgumentError:
    name, words, _ = check
    try:
        shown = repr(value)
    except Exception:
        shown = f"a {type(value).__name__}"
    shown = shown if len(shown) <= _SHOWN else f"a {type(value).__name__}"
    return ArgumentError(f"{name} must be {words}, but is {shown}.")


def _checks_of(function: Callable[..., Any]) -> list[tuple[str, str, Check] | None]:
    """One entry per positional parameter, in order, and then those that are given by name."""
    inner = inspect.unwrap(function)
    found: list[tuple[str, str, Check] | None] = []
    for parameter in inspect.signature(inner).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL or parameter.kind is parameter.VAR_KEYWORD:
            found.append(None)  # and what follows is given by name
            continue
        check = None
        if parameter.annotation is not parameter.empty:
            check = _check_of(_evaluated(parameter.annotation, inner))
        if check is not None and parameter.default is None and not check[1](None):
            check = f"{check[0]} or None", functools.partial(_either, (check[1], _is_none))
        found.append(None if check is None else (parameter.name, *check))
    return found


def _evaluated(annotation: object, function: Callable[..., Any]) -> object:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__)
    except (NameError, TypeError, AttributeError):
        return Any  # imported for type checkers alone


def _check_of(annotation: object) -> tuple[str, Check] | None:
    """The name of a type and the check of it; None if any value will do."""
    simple: dict[Any, tuple[str, Check]] = {
        None: ("None", _is_none),
        type(None): ("None", _is_none),
        bool: ("True or False", _is_flag),
        int: ("a whole number (of at most 64 bits)", _is_whole),
        float: ("a number", _is_number),
        str: ("text", lambda value: isinstance(value, str)),
    }
    if isinstance(annotation, typing.Hashable) and annotation in simple:
        return simple[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        checks = [_check_of(each) for each in inner]
        known = [each for each in checks if each is not None]
        if len(known) < len(checks):
            return None
        words = list(dict.fromkeys(word for word, _ in known))
        return _listed(words), functools.partial(_either, tuple(check for _, check in known))
    if origin is typing.Literal:
        return f"one of {list(inner)}", lambda value: isinstance(value, typing.Hashable) and value in inner
    if origin is Callable or annotation is Callable:
        return "a function", callable
    if origin in (list, tuple, Sequence, Iterable) or annotation in (list, tuple):
        return _sequence_check(origin, inner)
    if origin in (dict, Mapping) or annotation is dict:
        return "a mapping", lambda value: isinstance(value, Mapping)
    if origin is os.PathLike:
        return _class_check(os.PathLike)
    if inspect.isclass(annotation):
        return _class_check(annotation)
    return None


def _sequence_check(origin: object, inner: Sequence[object]) -> tuple[str, Check]:
    fixed = origin is tuple and bool(inner) and inner[1:] != (...,)
    element = _check_of(inner[0]) if inner and not fixed else None

    def check(value: object) -> bool:
        if not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0 or isinstance(value, bytes | Mapping):
            return False
        if isinstance(value, str) and origin in (list, tuple):
            return False
        if fixed and not (isinstance(value, Sequence) and len(value) == len(inner)):
            return False
        if element is None:
            return True
        if getattr(value, "ndim", 1) > 1 or (isinstance(value, str) and not element[1](value)):
            return False
        # What can be read only once must not be read here.
        return not (isinstance(value, Sequence) or hasattr(value, "ndim")) or all(map(element[1], value))

    words = "a sequence" if element is None else f"a sequence, each {element[0]}"
    return words, check


def _class_check(annotation: type[object]) -> tuple[str, Check] | None:
    module = annotation.__module__
    if issubclass(annotation, os.PathLike):
        return "a path", lambda value: isinstance(value, str | os.PathLike)
    if module.startswith("torch.optim"):  # also what has its methods and is none of torch's
        return f"a torch {annotation.__name__}", lambda value: hasattr(value, "state_dict")
    if getattr(annotation, "_is_protocol", False) or not module.startswith(_OURS):
        return None
    article = "an" if annotation.__name__[0] in "AEIOU" else "a"
    return f"{article} {annotation.__name__}", lambda value: isinstance(value, annotation)


def _is_none(value: object) -> bool:
    return value is None


def _is_flag(value: object) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_")


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and abs(int(value)) < 2**63


def _is_number(value: Any) -> bool:
    if isinstance(value, numbers.Real):
        return not isinstance(value, bool)
    # Scalars of NumPy and torch in arrays without dimensions.
    return getattr(value, "ndim", 1) == 0 and not isinstance(value, str) and "complex" not in str(value.dtype)


def _either(checks: Sequence[Check], value: object) -> bool:
    return any(check(value) for check in checks)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
