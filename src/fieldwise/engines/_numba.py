"""Numba as our kernels take it: where compiled code is kept, and who may enter its threads.

The pool is Numba's own, instead of OpenMP: no thread spins while it waits, which beside another
busy process made a step twelve times slower, and a forked child may go on using it. Two threads
that enter it at once end the process, so a parallel kernel, wherever it is, is called only within
`pool`.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numba
from numba import njit, prange

__all__ = ["njit", "pool", "prange", "threads"]


def _somewhere_to_keep() -> None:
    """Numba refuses to compile what it is to keep where it can write neither beside the source nor
    to the user's cache, as in a container without a home."""
    try:
        njit(cache=True)(lambda: None)
    except RuntimeError:
        numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="fieldwise-numba-")
        atexit.register(shutil.rmtree, numba.config.CACHE_DIR, ignore_errors=True)
        warnings.warn(
            "compiled code can be kept neither beside the package nor in the user's cache, so each "
            "process compiles anew, half a minute. Set NUMBA_CACHE_DIR to a folder of your own",
            stacklevel=2,
        )


if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER = "workqueue"
_somewhere_to_keep()
_POOL = threading.Lock()


def threads(asked: int | None) -> int:
    """As many as were asked for and there are; all for None and, as in scikit-learn, -1."""
    most = int(numba.config.NUMBA_NUM_THREADS)
    return min(asked, most) if asked and asked > 0 else most


@contextmanager
def pool(asked: int | None = None, *, wanted: bool = True, wait: bool = False) -> Iterator[int]:
    """The number of threads for parallel kernels; 0 where the work is to be done without them, as
    they are not wanted, or busy and one does not `wait`."""
    if not wanted or not _POOL.acquire(blocking=wait):
        yield 0
        return
    before = numba.get_num_threads()  # the caller's own kernels may have had fewer
    try:
        numba.set_num_threads(threads(asked))
        yield threads(asked)
    finally:
        numba.set_num_threads(before)
        _POOL.release()
