"""Sums that do not depend on the number of threads. BLAS adds up in an order that does, and so do
the last bits; what a seed must reproduce runs on one BLAS thread, or uses sums of our own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread", "weighted_sum"]

# The number of BLAS threads is global to the process: the first to enter limits it, the last to
# leave restores it.
_LOCK, _LIMIT, _INSIDE = threading.Lock(), ExitStack(), set[object]()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread inside. A context manager, and a decorator."""
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
