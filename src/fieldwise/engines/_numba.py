"""Configures Numba for our kernels: where compiled code is cached, and access to its threads.

The thread pool is Numba's own, not OpenMP's: its threads do not spin while they wait, which beside
another busy process made a step twelve times slower, and a forked child can keep using it. Two
threads that enter it at once kill the process, so every parallel kernel is called only within
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
    """Set a temporary cache folder if Numba can write neither beside the source nor to the user's
    cache, as in a container without a home: it would refuse to compile."""
    try:
        njit(cache=True)(lambda: None)
    except RuntimeError:
        numba.config.CACHE_DIR = tempfile.mkdtemp(prefix="fieldwise-numba-")
        atexit.register(shutil.rmtree, numba.config.CACHE_DIR, ignore_errors=True)
        warnings.warn(
            "compiled code can be cached neither beside the package nor in the user's cache, so "
            "each process compiles it again, for half a minute. Set NUMBA_CACHE_DIR to a folder "
            "that you can write to",
            stacklevel=2,
        )


if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER = "workqueue"
_somewhere_to_keep()
_POOL = threading.Lock()


def threads(asked: int | None) -> int:
    """The number of threads to use: as many as asked for, if there are; all for None and -1."""
    most = int(numba.config.NUMBA_NUM_THREADS)
    return min(asked, most) if asked and asked > 0 else most


@contextmanager
def pool(asked: int | None = None, *, wanted: bool = True, wait: bool = False) -> Iterator[int]:
    """Enter the thread pool; gives the number of threads, or 0 to work without it: it is not
    `wanted`, or busy and the caller does not `wait`."""
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
