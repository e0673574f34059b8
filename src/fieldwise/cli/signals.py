"""Ctrl-C and SIGTERM as exceptions, raised where they are heard and leave nothing locked for ever.

Python raises them between any two steps of the main thread: also where one of its own classes has
just taken a lock and is about to note that it has. A thread that waits for that lock then waits for
ever, and the process for the thread. Or in what is called when an object goes, where exceptions
are ignored.
"""

from __future__ import annotations

import _weakrefset
import concurrent.futures._base
import concurrent.futures.thread
import os
import queue
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["UNDONE", "signals_heard"]

UNDONE = "what was not finished is gone, or goes on with --resume where there is that option"

LOCKING = (threading, concurrent.futures._base, concurrent.futures.thread, queue)
FILES = {module.__file__ for module in (*LOCKING, weakref, _weakrefset)}
JOINING = {"join", "_wait_for_tstate_lock"}  # these may be left at any time, and last long
LATER = 0.001  # seconds

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def signals_heard() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does. Who ignores Ctrl-C, as a shell's background jobs
    do, goes on ignoring it."""
    raised: dict[int, Handler] = {signal.SIGTERM: _terminated}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raised[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, _safely(act)) for number, act in raised.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _safely(act: Handler) -> Handler:
    """The same, but where that is no place for it a moment later."""

    def heard(number: int, frame: FrameType | None) -> None:
        if _is_no_place(frame) and hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, lambda _, later: heard(number, later))
            signal.setitimer(signal.ITIMER_REAL, LATER)
        else:
            act(number, frame)

    return heard


def _is_no_place(frame: FrameType | None) -> bool:
    """Whether an exception here could leave one of Python's own locks taken, or be ignored."""
    if frame is None or frame.f_code.co_filename not in FILES:
        return False
    # A condition's `wait` says by this name that it will take back the lock that it gave away.
    return frame.f_code.co_name not in JOINING and "gotit" not in frame.f_locals


def _terminated(*_: object) -> None:
    """As Ctrl-C does: what is half done is tidied away. A second signal ends it at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(2, f"terminated; {UNDONE}\n".encode())
    sys.exit(128 + signal.SIGTERM)
