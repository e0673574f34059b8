"""The paper in plain NumPy. What stands here is what "correct" means.

Letters: m fields, field i has d_i categories and rank r_i, d and R their sums. The table T is
(d, R + 1); its entry in row k and column t is V where both belong to one field, else U; the last
column is b. A sample is a row number of T a field, rows (n, m), each with a value, values (n, m),
which is 1 for a category (None: all are).
"""

from __future__ import annotations

import numpy as np

from .layout import Layout

__all__ = [
    "adagrad",
    "bound",
    "field_scores",
    "gradient",
    "importance",
    "mean_rows",
    "penalty",
    "penalty_gradient",
    "scores",
]

EPSILON = 1e-10


def _parts(
    table: np.ndarray, layout: Layout, rows: np.ndarray, values: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p (n, R), q (n, R) and x_j b[x_j] (n, m)

    S_t = sum_j x_j T[f_j, t]    q_t = x_owner T[f_owner, t]    p_t = S_t - q_t
    """
    taken = table[rows]  # (n, m, R + 1)
    if values is not None:
        taken = taken * values[:, :, None]
    q = taken[:, layout.owner, np.arange(layout.n_columns)]
    p = taken[:, :, :-1].sum(axis=1) - q
    return p, q, taken[:, :, -1]


def field_scores(
    table: np.ndarray, layout: Layout, rows: np.ndarray, values: np.ndarray | None = None
) -> np.ndarray:
    """f_i(x) = V_i[x_i] . sum_{j != i} U_i[x_j] + b[x_i], for every field i

    table (d, R + 1), rows (n, m) -> (n, m)
    """
    p, q, bias = _parts(table, layout, rows, values)
    out = np.array(bias)
    for i in range(layout.n_fields):
        columns = slice(layout.starts[i], layout.starts[i + 1])
        out[:, i] += (p[:, columns] * q[:, columns]).sum(axis=1)
    return out


def scores(
    table: np.ndarray, layout: Layout, rows: np.ndarray, values: np.ndarray | None = None
) -> np.ndarray:
    """z(x) = sum_i f_i(x); rows (n, m) -> (n,)"""
    total: np.ndarray = field_scores(table, layout, rows, values).sum(axis=1)
    return total


def gradient(
    table: np.ndarray,
    layout: Layout,
    rows: np.ndarray,
    dz: np.ndarray,
    values: np.ndarray | None = None,
) -> np.ndarray:
    """d loss / dT, given dz = d loss / dz of every sample. (d, R + 1)

    dz/dT[f_j, t] = x_j (p_t if j owns t else q_t)    dz/db[f_j] = x_j
    """
    p, q, _ = _parts(table, layout, rows, values)
    out = np.zeros_like(table)
    for j in range(layout.n_fields):
        own = layout.owner == j
        x = dz if values is None else dz * values[:, j]
        by_column = np.where(own, p, q) * x[:, None]
        # Repeated rows add up.
        np.add.at(out, rows[:, j], np.concatenate([by_column, x[:, None]], axis=1))
    return out


def _field(table: np.ndarray, layout: Layout, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All rows of field i's columns X (d, r), its own among them V (d_i, r), and b (d_i,)"""
    X = table[:, layout.starts[i] : layout.starts[i + 1]]
    own = slice(layout.offsets[i], layout.offsets[i + 1])
    return X, X[own], table[own, -1]


def penalty(table: np.ndarray, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """||W_b - mean||_F^2 and ||mean||_F^2 of every field, without forming W = U^T V. (m,), (m,)

    With G = U^T U over the other fields' rows, C = V - mean(V) and v = mean(V):
    variance = tr(C G C^T) + ||b - mean(b)||^2        mean = v G v^T + mean(b)^2
    """
    variance, mean = np.zeros(layout.n_fields), np.zeros(layout.n_fields)
    for i in range(layout.n_fields):
        X, V, b = _field(table.astype(np.float64, copy=False), layout, i)
        G = X.T @ X - V.T @ V
        v = V.mean(axis=0)
        C = V - v
        variance[i] = np.sum((C @ G) * C) + np.sum((b - b.mean()) ** 2)
        mean[i] = v @ G @ v + b.mean() ** 2
    return variance, mean


def penalty_gradient(table: np.ndarray, layout: Layout) -> np.ndarray:
    """d/dT of the sum over fields of variance and mean. (d, R + 1)

    d/dV = 2 C G + (2 / d_i) 1 v G      d/dU = 2 U (C^T C + v^T v)
    d/db = 2 (b - mean(b)) + 2 mean(b) / d_i
    """
    out = np.zeros_like(table)
    for i in range(layout.n_fields):
        X, V, b = _field(table, layout, i)
        own = slice(layout.offsets[i], layout.offsets[i + 1])
        columns = slice(layout.starts[i], layout.starts[i + 1])
        G = X.T @ X - V.T @ V
        v = V.mean(axis=0)
        C = V - v
        out[:, columns] = 2 * X @ (C.T @ C + np.outer(v, v))
        out[own, columns] = 2 * C @ G + 2 / len(V) * (v @ G)
        out[own, -1] = 2 * (b - b.mean()) + 2 * b.mean() / len(b)
    return out


def mean_rows(table: np.ndarray, layout: Layout, counts: np.ndarray) -> np.ndarray:
    """The mean row of every field, weighted by how often each category was seen. (m, R + 1)

    A field seen nowhere gets the plain mean.
    """
    out = np.empty((layout.n_fields, table.shape[1]), dtype=table.dtype)
    for i in range(layout.n_fields):
        own = slice(layout.offsets[i], layout.offsets[i + 1])
        weight = counts[own].astype(np.float64)
        weight = (
            weight / weight.sum() if weight.sum() > 0 else np.full(len(weight), 1 / len(weight))
        )
        out[i] = weight @ table[own]
    return out


def adagrad(
    table: np.ndarray,
    state: np.ndarray,
    slope: np.ndarray,
    rows: np.ndarray,
    lr: float,
    decay: float,
) -> None:
    """One step in place on the rows named; decay joins the gradient before it is squared.

    g = slope + decay T      state += g^2      T -= lr g / (sqrt(state) + 1e-10)
    """
    g = slope[rows] + decay * table[rows]
    state[rows] += g * g
    table[rows] -= lr * g / (np.sqrt(state[rows]) + EPSILON)


def importance(table: np.ndarray, layout: Layout) -> np.ndarray:
    """||W_b - mean||_F / d_i, for every field i: how much its models differ on average. (m,)"""
    variance, _ = penalty(table, layout)
    out: np.ndarray = np.sqrt(variance) / np.array(layout.sizes)
    return out


def bound(table: np.ndarray, layout: Layout, n_samples: int) -> float:
    """sqrt(m / n) sum_i (N1_i + N2_i): bounds the empirical Rademacher complexity of the models

    N1_i = ||W_b - mean||_F      N2_i = ||mean||_F
    """
    variance, mean = penalty(table, layout)
    return float(np.sqrt(layout.n_fields / n_samples) * np.sum(np.sqrt(variance) + np.sqrt(mean)))
