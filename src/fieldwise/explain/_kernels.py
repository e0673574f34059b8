"""Numba kernel of row explanations. Letters as in maths.py."""

from __future__ import annotations

import numpy as np

from ..engines._numba import njit, prange


@njit(cache=True, nogil=True)
def _explain_row(n, table, mean, rows, x, has_values, starts, slot_starts, n_outputs, worth,
                 middle, main, halves, pairs, wants_pairs):  # fmt: skip
    """One sample; `away` (m, R) holds the differences of its rows from the mean, by field."""
    m, n_columns = len(slot_starts) - 1, starts[-1]
    away = np.empty((m, n_columns), np.float32)
    for j in range(m):
        for t in range(n_columns):
            away[j, t] = -mean[j, t]
        for o in range(n_outputs):
            main[n, o, j] = -middle[j, o]
            halves[n, o, j] = 0.0
        for s in range(slot_starts[j], slot_starts[j + 1]):
            row, value = rows[n, s], x[n, s] if has_values else np.float32(1.0)
            for t in range(n_columns):
                away[j, t] += value * table[row, t]
            for o in range(n_outputs):
                main[n, o, j] += value * worth[row, o]
    for o in range(n_outputs):
        for i in range(m):
            low, high = starts[o * m + i], starts[o * m + i + 1]
            for j in range(m):
                if j == i:
                    continue
                total = np.float32(0.0)
                for t in range(low, high):
                    total += away[i, t] * away[j, t]
                halves[n, o, i] += np.float32(0.5) * total
                halves[n, o, j] += np.float32(0.5) * total
                if wants_pairs:
                    pairs[n, o, i, j] += total
                    pairs[n, o, j, i] += total


@njit(cache=True, nogil=True, parallel=True)
def explain(table, mean, rows, x, has_values, starts, slot_starts, n_outputs, worth, middle,
            main, halves, pairs, wants_pairs, alone):  # fmt: skip
    """Main effects and half the sums of pair effects, (n, K, m); if wanted the pair effects too.

    table (d + m, at least R + K), mean (m, R + K) mu, rows (n, S), worth (d + m, K) what a row adds
    to its field's main effect, and middle (m, K) the mean of that. `alone` uses no other thread.
    """
    if alone:
        for n in range(len(rows)):
            _explain_row(n, table, mean, rows, x, has_values, starts, slot_starts, n_outputs,
                         worth, middle, main, halves, pairs, wants_pairs)  # fmt: skip
    else:
        for n in prange(len(rows)):
            _explain_row(n, table, mean, rows, x, has_values, starts, slot_starts, n_outputs,
                         worth, middle, main, halves, pairs, wants_pairs)  # fmt: skip
