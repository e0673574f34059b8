"""Numba's own pool of threads, and who may enter it.

Instead of OpenMP: no thread spins while it waits, which beside another busy process made a step
twelve times slower, and a forked child may go on using it. Two threads that enter it at once end
the process, so a parallel kernel, wherever it is, is called only while POOL is held.
"""

from __future__ import annotations

import threading

import numba

__all__ = ["POOL"]

if numba.config.THREADING_LAYER == "default":
    numba.config.THREADING_LAYER = "workqueue"
POOL = threading.Lock()
