"""BLAS adds up in an order that hangs on the number of its threads, and so do the last bits. What
a seed must give again is computed by one of them, or by sums of our own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread", "weighted_sum"]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Also a decorator."""
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        yield


def weighted_sum(w: np.ndarray, y: np.ndarray) -> np.ndarray:
    """sum_n w_n y_n, for w (n,) and y (n, ...)"""
    found: np.ndarray = np.einsum("n,n...->...", w, y)
    return found
