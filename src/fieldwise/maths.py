"""The paper in plain NumPy. What stands here is what "correct" means.

Letters: m fields, field i has d_i categories and rank r_i, d and R their sums. The table T is
(d, R + 1); its entry in row k and column t is V where both belong to one field, else U; the last
column is b. A sample is a row number of T a field: rows (n, m).
"""

from __future__ import annotations

import numpy as np

from .layout import Layout

__all__ = ["field_scores", "importance", "scores", "spread"]


def field_scores(table: np.ndarray, layout: Layout, rows: np.ndarray) -> np.ndarray:
    """f_i(x) = V_i[x_i] . sum_{j != i} U_i[x_j] + b[x_i], for every field i

    table (d, R + 1), rows (n, m) -> (n, m)
    """
    taken = table[rows]  # (n, m, R + 1)
    own = taken[:, layout.owner, np.arange(layout.n_columns)]  # (n, R)  q
    rest = taken.sum(axis=1)[:, :-1] - own  # (n, R)  p
    out: np.ndarray = taken[:, :, -1].copy()  # (n, m)  b
    product = own * rest
    for i in range(layout.n_fields):
        out[:, i] += product[:, layout.starts[i] : layout.starts[i + 1]].sum(axis=1)
    return out


def scores(table: np.ndarray, layout: Layout, rows: np.ndarray) -> np.ndarray:
    """z(x) = sum_i f_i(x); rows (n, m) -> (n,)"""
    total: np.ndarray = field_scores(table, layout, rows).sum(axis=1)
    return total


def spread(table: np.ndarray, layout: Layout, field: int) -> float:
    """||W_b - mean||_F^2 of one field, without forming W = U^T V

    With G = U^T U over the other fields' rows and C = V - mean(V):
    tr(C G C^T) + ||b - mean(b)||^2
    """
    first, last = layout.offsets[field], layout.offsets[field + 1]
    columns = slice(layout.starts[field], layout.starts[field + 1])
    block = table[:, columns].astype(np.float64)
    own = block[first:last]
    gram = block.T @ block - own.T @ own
    centred = own - own.mean(axis=0)
    bias = table[first:last, -1].astype(np.float64)
    return float(np.sum((centred @ gram) * centred) + np.sum((bias - bias.mean()) ** 2))


def importance(table: np.ndarray, layout: Layout) -> np.ndarray:
    """||W_b - mean||_F / d_i, for every field i: how much its models differ on average. (m,)"""
    return np.array([np.sqrt(spread(table, layout, i)) / d for i, d in enumerate(layout.sizes)])
