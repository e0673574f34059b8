"""Numba kernels that score rows of a packed table, as `_kernels` does for a float32 one.

A row's scale is multiplied into its value, and entries become floats in registers (`_vectors`): no
float32 copy of the table is made.
"""

# mypy: ignore-errors
# Numba infers the types.

from __future__ import annotations

import numpy as np

from ._kernels import _sum_rows
from ._numba import njit, prange
from ._vectors import own_products, prefetch

LINE_BYTES, AHEAD = 64, 2  # lines of the next sample's rows to prefetch


@njit(cache=True, inline="always")
def _prefetch_rows(table, rows):
    step = LINE_BYTES // table.itemsize
    for j in range(len(rows)):
        for t in range(0, min(AHEAD * step, table.shape[1]), step):
            prefetch(table, rows[j], t)


@njit(cache=True, inline="always")
def _list_block(table, rows, x, low, high, sums, own):
    """sum of p q over the columns of a block whose field has several slots, with these rows"""
    _sum_rows(table, rows, x, own, low, high, True)
    z = np.float32(0.0)
    for t in range(low, high):
        z += (sums[t] - own[t]) * own[t]
    return z


@njit(cache=True, inline="always")
def _block(table, rows, x, starts, b, first, last, sums, own):
    if last - first == 1:
        part = starts[b : b + 2]
        return own_products(table, rows[first:last], x[first:last], part, sums, sums, True)
    return _list_block(table, rows[first:last], x[first:last], starts[b], starts[b + 1], sums, own)


@njit(cache=True)
def _sample(packed, rows, values, starts, slot_starts, offsets, scratch, out, by_field, valued):
    """The scores of one sample: z, or f of every field."""
    table, scale, bias = packed
    sums, own, x = scratch
    m = len(slot_starts) - 1
    for k in range(len(rows)):
        x[k] = scale[rows[k]] * (values[k] if valued else np.float32(1.0))
    _sum_rows(table, rows, x, sums, 0, table.shape[1], True)
    for o in range(len(offsets)):
        if by_field:
            for i in range(m):
                first, last = slot_starts[i], slot_starts[i + 1]
                f = _block(table, rows, x, starts, o * m + i, first, last, sums, own)
                for k in range(first, last):
                    f += (values[k] if valued else np.float32(1.0)) * bias[rows[k], o]
                out[o * m + i] = f
            continue
        if len(rows) == m:
            part = starts[o * m : (o + 1) * m + 1]
            z = own_products(table, rows, x, part, sums, sums, True)
        else:
            z = np.float32(0.0)
            for i in range(m):
                first, last = slot_starts[i], slot_starts[i + 1]
                z += _block(table, rows, x, starts, o * m + i, first, last, sums, own)
        constant = np.float32(0.0)
        for k in range(len(rows)):
            constant += (values[k] if valued else np.float32(1.0)) * bias[rows[k], o]
        out[o] = z + constant + offsets[o]


@njit(cache=True, nogil=True)
def score_serial(packed, rows, values, starts, slot_starts, offsets, out, by_field, valued):
    """out[s] = the scores of sample s; packed is entries, scale and bias"""
    width = packed[0].shape[1]
    scratch = (
        np.empty(width, np.float32),
        np.empty(width, np.float32),
        np.empty(rows.shape[1], np.float32),
    )
    for s in range(len(rows)):
        if s + 1 < len(rows):
            _prefetch_rows(packed[0], rows[s + 1])
        x = values[s] if valued else values[0]
        _sample(
            *(packed, rows[s], x, starts, slot_starts, offsets, scratch, out[s], by_field, valued)
        )


@njit(cache=True, parallel=True)
def score(packed, rows, values, starts, slot_starts, offsets, out, n_threads, by_field, valued):
    """`score_serial` on several threads."""
    n = len(rows)
    for k in prange(n_threads):
        low, high = n * k // n_threads, n * (k + 1) // n_threads
        some = values[low:high] if valued else values
        score_serial(
            packed, rows[low:high], some, starts, slot_starts, offsets, out[low:high], by_field,
            valued,
        )  # fmt: skip
