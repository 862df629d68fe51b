"""The peers."""

from collections.abc import Callable

from ..outcome import Outcome

PEERS: dict[str, Callable[..., Outcome]] = {}
