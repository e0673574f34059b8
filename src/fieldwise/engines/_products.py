"""Numba kernels that multiply many rows of a table by one vector, to rank a field's categories."""

# mypy: ignore-errors
# Numba infers the types.

from __future__ import annotations

import numpy as np

from ._numba import njit, prange
from ._vectors import row_product


@njit(cache=True, nogil=True)
def products_serial(table, first, weights, edges, out):
    """out[k, o] = table[first + k] . weights over the columns edges[o] to edges[o + 1]"""
    for k in range(len(out)):
        for o in range(len(edges) - 1):
            out[k, o] = row_product(table, first + k, weights, edges[o], edges[o + 1])


@njit(cache=True, parallel=True)
def products(table, first, weights, edges, out, n_threads):
    """`products_serial` on several threads."""
    n = np.int64(len(out))
    for thread in prange(n_threads):
        low, high = n * thread // n_threads, n * (thread + 1) // n_threads
        products_serial(table, first + low, weights, edges, out[low:high])
