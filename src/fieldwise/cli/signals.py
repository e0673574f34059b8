"""Ctrl-C and SIGTERM as exceptions, raised only where they take effect and leave no lock held.

Python raises them between any two steps of the main thread, even where one of its own classes has
just taken a lock and not yet recorded it: a thread that waits for that lock then waits for ever,
and the process for the thread. Or they are raised in a finaliser, where exceptions are ignored. In
such places the signal is raised a moment later.

And while the main thread waits for a lock, Python does not handle a signal that another thread
received, or that came just before the wait began, until the wait is over, which may be long.
(Never, in Python 3.11 under a tracer: the thread that is waited for spins until the signal is
handled.) A separate thread learns of every signal from the C library and wakes the main thread.
"""

from __future__ import annotations

import _weakrefset
import concurrent.futures._base
import concurrent.futures.thread
import os
import queue
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

__all__ = ["UNDONE", "signals_heard"]

UNDONE = "unfinished work is lost, or continues with --resume if the command has that option"

LOCKING = (threading, concurrent.futures._base, concurrent.futures.thread, queue)
FILES = {module.__file__ for module in (*LOCKING, weakref, _weakrefset)}
JOINING = {"join", "_wait_for_tstate_lock"}  # long waits, safe to interrupt at any time
LATER = 0.001  # seconds
SELDOM = 0.5  # seconds, while compiled code that handles no signals is running

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def signals_heard() -> Iterator[None]:
    """Let SIGTERM end the enclosed work as Ctrl-C does. A process that ignores Ctrl-C, such as a
    shell's background job, continues to ignore it."""
    raised: dict[int, Handler] = {signal.SIGTERM: _terminated}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raised[signal.SIGINT] = signal.default_int_handler
    with _Ears(raised) if hasattr(signal, "setitimer") else nullcontext() as ears:
        hear = raised if ears is None else dict.fromkeys(raised, ears.hear)
        before = {number: signal.signal(number, handler) for number, handler in hear.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Ears:
    """Handles signals where that is safe, and wakes the main thread to handle them."""

    def __init__(self, acts: Mapping[int, Handler]) -> None:
        self._acts = acts
        self._late: list[int] = []  # signals that came where raising was not safe
        self._is_awake = True
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._waker = threading.Thread(target=self._wake, daemon=True)

    def __enter__(self) -> _Ears:
        self._alarm = signal.signal(signal.SIGALRM, self._woken)
        self._fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._waker.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._fd)
        self._writer.close()
        self._is_awake = True
        self._waker.join()
        self._reader.close()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._alarm)
        for number in self._late:
            self._acts[number](number, None)

    def hear(self, number: int, frame: FrameType | None) -> None:
        if _is_no_place(frame):
            self._late.append(number)
            signal.setitimer(signal.ITIMER_REAL, LATER)
        else:
            self._acts[number](number, frame)

    def _woken(self, _: int, frame: FrameType | None) -> None:
        """SIGALRM: all handlers of earlier signals have run by now, or are next."""
        self._is_awake = True
        if self._late:
            self.hear(self._late.pop(), frame)

    def _wake(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while came := self._reader.recv(64):
            if {*came} == {signal.SIGALRM} and not self._late:  # our own signal
                continue
            self._is_awake, pause = False, LATER
            while not self._is_awake:
                signal.pthread_kill(main, signal.SIGALRM)
                time.sleep(pause)
                pause = min(2 * pause, SELDOM)


def _is_no_place(frame: FrameType | None) -> bool:
    """Whether an exception here could leave one of Python's own locks held, or be ignored."""
    if frame is None or frame.f_code.co_filename not in FILES:
        return False
    # A local `gotit` marks a condition's `wait`, which takes back the lock that it released.
    return frame.f_code.co_name not in JOINING and "gotit" not in frame.f_locals


def _terminated(*_: object) -> None:
    """Exit as after Ctrl-C, cleaning up unfinished work. A second signal ends it at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.write(2, f"terminated; {UNDONE}\n".encode())
    sys.exit(128 + signal.SIGTERM)
