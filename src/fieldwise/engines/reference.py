"""The slow twin: maths.py, a batch at a time. Float64 unless told otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import maths
from ..layout import Layout
from ..losses import LOSSES
from . import StepSettings

__all__ = ["ReferenceEngine", "make"]


class ReferenceEngine:
    """See `Engine`."""

    def __init__(
        self, layout: Layout, settings: StepSettings, intercept: float, dtype: Any = np.float64
    ) -> None:
        self.layout = layout
        self.settings = settings
        self.intercept = intercept
        self.n_steps = 0
        shape = (layout.n_rows + layout.n_fields, layout.n_columns + 1)
        self._table = np.zeros(shape, dtype)  # the last rows stand for unseen values
        self._state = np.zeros(shape, dtype)
        self.table = self._table[: layout.n_rows]
        self.state = self._state[: layout.n_rows]

    def rows(self, codes: np.ndarray) -> np.ndarray:
        unseen = self.layout.n_rows + np.arange(self.layout.n_fields)
        return np.where(codes < 0, unseen, self.layout.rows(codes))

    def run(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> tuple[float, float]:
        weight = np.ones(len(codes)) if weight is None else weight
        loss, size = 0.0, self.settings.batch_size
        for first in range(0, len(codes), size):
            batch = slice(first, first + size)
            x = None if values is None else values[batch]
            loss += self._step(self.rows(codes[batch]), x, target[batch], weight[batch])
        return loss, float(weight.sum())

    def _step(
        self, rows: np.ndarray, values: np.ndarray | None, y: np.ndarray, w: np.ndarray
    ) -> float:
        """One step; the penalty's gradient joins the batch's before Adagrad squares it."""
        layout, settings = self.layout, self.settings
        z = maths.scores(self._table, layout, rows, values) + self.intercept
        loss = LOSSES["logistic"]
        total = w.sum()
        dz = w * loss.derivative(z, y) / total if total > 0 else 0 * z
        slope = maths.gradient(self._table, layout, rows, dz, values)
        touched = np.unique(rows)
        slope[touched] += settings.weight_decay * self._table[touched]
        self.n_steps += 1
        if settings.penalty and self.n_steps % settings.reg_every == 0:
            everything = np.arange(layout.n_rows)
            pull = maths.penalty_gradient(self.table, layout)
            slope[: layout.n_rows] += settings.penalty * pull
            touched = np.union1d(touched, everything)
        maths.adagrad(self._table, self._state, slope, touched, settings.learning_rate, 0.0)
        return float(np.sum(w * loss.value(z, y)))

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        return maths.scores(self._table, self.layout, self.rows(codes), values) + self.intercept

    def set_means(self, counts: np.ndarray) -> None:
        self._table[self.layout.n_rows :] = maths.mean_rows(self.table, self.layout, counts)


def make(layout: Layout, settings: StepSettings, **options: Any) -> ReferenceEngine:
    return ReferenceEngine(layout, settings, **options)
