"""BLAS adds up in an order that hangs on the number of its threads, and so do the last bits. What
a seed must give again is computed by one of them, or by sums of our own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread", "weighted_sum"]

# BLAS has one number of threads for the whole process: the first that enters sets it, and the last
# that leaves gives it back.
_LOCK, _LIMIT, _INSIDE = threading.Lock(), ExitStack(), set[object]()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside BLAS takes one thread. A context, and a decorator."""
    me = object()
    with _LOCK:
        if not _INSIDE:
            _LIMIT.enter_context(ThreadpoolController().limit(limits=1, user_api="blas"))
        _INSIDE.add(me)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.discard(me)
            if not _INSIDE:
                _LIMIT.close()


def weighted_sum(w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """sum_n w_n y_n, for w (n,) and y (n, ...)"""
    found: np.ndarray = np.einsum("n,n...->...", w, y)
    return found
