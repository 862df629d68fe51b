"""What a user sees while the automatic fit works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def stage_progress(label: str, *, shown: bool, console: Console | None = None) -> Iterator[Callable[[str], None]]:
    """A bar on standard error that names the part that was finished last; yields what to call with each part."""
    if not shown:
        yield lambda part: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[part]}"), TimeElapsedColumn())
    with Progress(*columns, console=console or Console(stderr=True)) as progress:
        task = progress.add_task(label, total=None, part="")
        yield lambda part: progress.update(task, part=f"{part}: done")
        progress.update(task, total=1, completed=1, part="done")
