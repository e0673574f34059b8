"""The penalty's gradient for the CPU engine: through BLAS, a block of rows at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from ..layout import Layout

__all__ = ["PENALTY_ROWS", "Penalty"]

PENALTY_ROWS = 8192  # rows of a block: its slopes stay in the second cache


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

    def _moments(self, low: int, high: int) -> list[np.ndarray]:
        """X^T X of every block's columns over some rows."""
        rows = self._table[low:high]
        out = []
        for _, _, columns in self._blocks:
            X = rows[:, columns]
            out.append((X.T @ X).astype(np.float64))
        return out

    def measure(self, n_threads: int) -> None:
        layout = self._layout
        cuts = sorted({*range(0, layout.n_rows, PENALTY_ROWS), *layout.offsets.tolist()})
        spans = list(pairwise(cuts))  # no span crosses two fields
        with ThreadPoolExecutor(n_threads) as pool:
            found = list(pool.map(lambda span: self._moments(*span), spans))
        fields = np.searchsorted(layout.offsets, [low for low, _ in spans], side="right") - 1
        self._u, self._v, self._constant, self._bias = [], [], [], []
        for k, (o, i, columns) in enumerate(self._blocks):
            everything = _ordered_sum([f[k] for f in found])
            owned = [f[k] for f, owner in zip(found, fields, strict=True) if owner == i]
            mine = _ordered_sum(owned)
            own = self._table[layout.own(i)]
            d = len(own)
            v = own[:, columns].mean(axis=0, dtype=np.float64)
            G = everything - mine
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
            first = max(int(layout.offsets[i]) - low, 0)
            last = min(int(layout.offsets[i + 1]) - low, inside)
            if first < last:
                own, b = slice(first, last), layout.n_columns + o
                out[own, columns] = rows[own, columns] @ self._v[k] + self._constant[k]
                out[own, b] = np.float32(2 * self._weight) * rows[own, b] + self._bias[k]
        return out


def _ordered_sum(parts: list[np.ndarray]) -> np.ndarray:
    total = np.zeros_like(parts[0])
    for part in parts:
        total += part
    return total
