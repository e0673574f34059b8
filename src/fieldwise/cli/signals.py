"""Ctrl-C and SIGTERM as exceptions, raised where they are heard and leave nothing locked for ever.

Python raises them between any two steps of the main thread: also where one of its own classes has
just taken a lock and is about to note that it has. A thread that waits for that lock then waits for
ever, and the process for the thread. Or in what is called when an object goes, where exceptions
are ignored. Such a signal is raised a moment later.

And Python does not hear a signal at all while the main thread waits for a lock, if another thread
got it or it came just before the wait began: only when the wait is over, which may be long. (Never,
in Python 3.11 under a tracer: the thread that is waited for spins until the signal is heard.) A
thread of its own learns of every signal from the C library and wakes the main thread.
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

UNDONE = "what was not finished is gone, or goes on with --resume where there is that option"

LOCKING = (threading, concurrent.futures._base, concurrent.futures.thread, queue)
FILES = {module.__file__ for module in (*LOCKING, weakref, _weakrefset)}
JOINING = {"join", "_wait_for_tstate_lock"}  # these may be left at any time, and last long
LATER = 0.001  # seconds
SELDOM = 0.5  # while compiled code that hears no signal is at work

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def signals_heard() -> Iterator[None]:
    """SIGTERM ends what is inside as Ctrl-C does. Who ignores Ctrl-C, as a shell's background jobs
    do, goes on ignoring it."""
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
    """Handles signals where there is a place for it, and wakes the main thread to hear them."""

    def __init__(self, acts: Mapping[int, Handler]) -> None:
        self._acts = acts
        self._late: list[int] = []  # came where there was no place for them
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
        """All handlers of signals that have come are run by now, or are next."""
        self._is_awake = True
        if self._late:
            self.hear(self._late.pop(), frame)

    def _wake(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while came := self._reader.recv(64):
            if {*came} == {signal.SIGALRM} and not self._late:  # this is what we sent
                continue
            self._is_awake, pause = False, LATER
            while not self._is_awake:
                signal.pthread_kill(main, signal.SIGALRM)
                time.sleep(pause)
                pause = min(2 * pause, SELDOM)


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
