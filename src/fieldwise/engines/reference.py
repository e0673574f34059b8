"""The slow reference engine: maths.py and objective.py, batch by batch, by default in float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import maths
from ..errors import SettingError
from ..layout import Layout
from ..objective import Objective
from . import StepSettings

__all__ = ["ReferenceEngine", "by_pieces", "make"]

PIECE = 2048  # rows scored at a time


class ReferenceEngine:
    """See `Engine`."""

    def __init__(
        self,
        layout: Layout,
        settings: StepSettings,
        objective: Objective,
        offsets: np.ndarray,
        dtype: Any = np.float64,
        n_jobs: int | None = None,  # ignored
        *,
        half: bool = False,
    ) -> None:
        if half:
            raise SettingError("half=True keeps the table in bfloat16 on a GPU; set device='cuda'")
        self.layout = layout
        self.settings = settings
        self.objective = objective
        self.offsets = offsets
        self.n_steps = 0
        self.totals = np.zeros(2)
        shape = (layout.n_rows + layout.n_fields, layout.width)
        self._table = np.zeros(shape, dtype)  # the last rows stand for unseen values
        self._state = np.zeros(shape, dtype)
        self.table = self._table[: layout.n_rows]
        self.state = self._state[: layout.n_rows]
        self.decay = np.full(len(self._table), settings.weight_decay)
        self.field_weights = np.ones(layout.n_fields)
        self.field_state = np.full(layout.n_fields, 1e-6)

    def run(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> None:
        weight = np.ones((len(codes), 1)) if weight is None else weight
        loss, size = 0.0, self.settings.batch_size
        for first in range(0, len(codes), size):
            batch = slice(first, first + size)
            x = None if values is None else values[batch]
            rows = self.layout.rows_or_unseen(codes[batch])
            loss += self._step(rows, x, target[batch], weight[batch])
        self.totals += (loss, weight.sum(axis=0).mean())

    def _step(
        self, rows: np.ndarray, values: np.ndarray | None, y: np.ndarray, w: np.ndarray
    ) -> float:
        """One step; the penalty's gradient is added to the batch's before Adagrad squares it."""
        layout, settings = self.layout, self.settings
        f = maths.field_scores(self._table, layout, rows, values)
        losses, df, du = self.objective.slopes(f, self.offsets, y, w, self.field_weights)
        slope = maths.gradient(self._table, layout, rows, df, values)
        present = rows if layout.n_slots == layout.n_fields or values is None else rows[values != 0]
        touched = np.unique(present)
        slope[touched] += self.decay[touched, None] * self._table[touched]
        self.n_steps += 1
        due = settings.is_due(self.n_steps)
        if due:
            pull = maths.penalty_gradient(self.table, layout)
            slope[: layout.n_rows] += settings.penalty * pull
            touched = np.union1d(touched, np.arange(layout.n_rows))
        maths.adagrad(self._table, self._state, slope, touched, settings.learning_rate, 0.0)
        if due:
            maths.constrain(self.table, layout, settings.max_variance, settings.max_mean)
        if self.objective.combine == "weighted":
            self.field_state += du**2
            step = settings.learning_rate * du / (np.sqrt(self.field_state) + maths.EPSILON)
            self.field_weights[:] = np.maximum(self.field_weights - step, 0)
        return float(np.sum(losses))

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        f = by_pieces(self._table, self.layout, self.layout.rows_or_unseen(codes), values)
        if self.objective.is_vote:
            return f + self.offsets[:, None]
        if self.objective.combine == "weighted":
            return f @ self.field_weights + self.offsets
        out: np.ndarray = f.sum(axis=2) + self.offsets
        return out

    def set_means(self, counts: np.ndarray) -> None:
        self._table[self.layout.n_rows :] = maths.mean_rows(self.table, self.layout, counts)


def by_pieces(
    table: np.ndarray, layout: Layout, rows: np.ndarray, values: np.ndarray | None
) -> np.ndarray:
    """`maths.field_scores` in bounded memory."""
    parts = []
    for at in range(0, max(len(rows), 1), PIECE):
        piece = slice(at, at + PIECE)
        x = None if values is None else values[piece]
        parts.append(maths.field_scores(table, layout, rows[piece], x))
    return np.concatenate(parts)


make = ReferenceEngine
