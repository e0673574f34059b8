"""How work tells how far it is: a bar on a terminal, silence everywhere else; or lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Progress", "Say", "progress"]

Say = Callable[[str], None]  # is given a line for people, now and then


class Progress(Protocol):
    """Told how far the work is, in the unit of its total."""

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
