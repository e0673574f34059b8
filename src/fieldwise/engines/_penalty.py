"""The penalty's gradient for the CPU engine: with BLAS, a block of rows at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..layout import Layout

__all__ = ["PENALTY_ROWS", "Penalty"]

PENALTY_ROWS = 8192  # rows of a block: its slopes stay in the L2 cache


class Penalty:
    """The penalty's gradient for blocks of rows, from small matrices measured beforehand.

    dU = U (2 C^T C + 2 v^T v)      dV = V (2 G) + (2 / d_i - 2) v G
    db = 2 b + (2 / d_i - 2) mean(b)                                  all times the weight
    """

    def __init__(self, table: np.ndarray, layout: Layout, weight: float) -> None:
        self._table = table
        self._layout = layout
        self._weight = weight
        outputs, fields = range(layout.n_outputs), range(layout.n_fields)
        self._blocks = [(o, i, layout.block(o, i)) for o in outputs for i in fields]

    def _moments(self, rows: slice) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """X^T X of every block's columns over `rows`: of its field's own, and of the others."""
        own, others = [], []
        for _, i, columns in self._blocks:
            X = self._table[rows, columns]
            before, mine, after = (_square(X[part]) for part in self._layout.cut(i, rows))
            own.append(mine)
            others.append(before + after)
        return own, others

    def measure(self, n_threads: int) -> None:
        layout = self._layout
        edges = range(0, layout.n_rows, PENALTY_ROWS)
        spans = [slice(low, min(low + PENALTY_ROWS, layout.n_rows)) for low in edges]
        with ThreadPoolExecutor(n_threads) as pool:
            found = list(pool.map(self._moments, spans))
        self._u, self._v, self._constant, self._bias = [], [], [], []
        for k, (o, i, columns) in enumerate(self._blocks):
            mine = _ordered_sum([own[k] for own, _ in found])
            G = _ordered_sum([others[k] for _, others in found])
            own = self._table[layout.own(i)]
            d = len(own)
            v = own[:, columns].mean(axis=0, dtype=np.float64)
            self._u.append(self._small(2 * (mine - d * np.outer(v, v) + np.outer(v, v))))
            self._v.append(self._small(2 * G))
            self._constant.append(self._small((2 / d - 2) * (v @ G)))
            bias = own[:, layout.n_columns + o].mean(dtype=np.float64)
            self._bias.append(np.float32(self._weight * (2 / d - 2) * bias))

    def _small(self, matrix: np.ndarray) -> np.ndarray:
        return (self._weight * matrix).astype(np.float32)

    def __call__(self, low: int, high: int) -> np.ndarray:
        """The gradient of rows low .. high; rows for unseen values have none."""
        layout = self._layout
        rows = self._table[low:high]
        out = np.zeros_like(rows)
        inside = max(0, min(high, layout.n_rows) - low)
        for k, (o, i, columns) in enumerate(self._blocks):
            out[:inside, columns] = rows[:inside, columns] @ self._u[k]
            _, own, _ = layout.cut(i, slice(low, low + inside))
            if own.start < own.stop:
                b = layout.n_columns + o
                out[own, columns] = rows[own, columns] @ self._v[k] + self._constant[k]
                out[own, b] = np.float32(2 * self._weight) * rows[own, b] + self._bias[k]
        return out


def _square(X: np.ndarray) -> np.ndarray:
    """X^T X, quickly for no rows: most parts of a span are empty"""
    return (X.T @ X).astype(np.float64) if len(X) else np.zeros((X.shape[1],) * 2)


def _ordered_sum(parts: list[np.ndarray]) -> np.ndarray:
    """The sum of matrices in order: the same bits whichever thread was first."""
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    return total
