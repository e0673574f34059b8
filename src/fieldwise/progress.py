"""Reports of progress: a bar on a terminal, nothing elsewhere; or lines of text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Progress", "Say", "progress"]

Say = Callable[[str], None]  # called now and then with a line for people to read


class Progress(Protocol):
    """Called with the amount done so far, in the unit of the total."""

    def __call__(self, done: float, note: str = "") -> None: ...


@contextmanager
def progress(title: str, total: float | None, *, show: bool | None = None) -> Iterator[Progress]:
    """Yield a function to call with the amount done so far.

    `show=None` shows the bar where standard error is a terminal and rich is installed.
    """
    if show is None:
        show = sys.stderr.isatty()
    if show:
        try:
            from rich import progress as bars
            from rich.console import Console
        except ImportError:
            show = False
    if not show:
        yield lambda done, note="": None
        return
    columns = [
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TaskProgressColumn(),
        bars.TextColumn("{task.fields[note]}"),
        bars.TimeRemainingColumn(),
    ]
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
