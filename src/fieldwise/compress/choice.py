"""What to leave out of a model at a price per byte: everything that adds less to the mean square of
scores than its bytes cost. Ranks, fields, rows and crossed categories have the same price, so that
whatever is worth least for its bytes goes first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..data.numbers import bin_of
from ..model import FieldwiseModel
from .factors import Factors

__all__ = ["STEPS", "Choice", "Prices"]

STEPS = ("ranks", "fields", "rows", "crosses")
ROUNDS = 2  # fewer rows make columns cheaper, and fewer columns rows


@dataclass(frozen=True)
class Choice:
    """What is kept: ranks of each field, fields, for every field the new code of each code, and for
    every cross which crossed categories."""

    kind: str  # of the entries
    ranks: tuple[int, ...]
    fields: tuple[bool, ...]
    rows: tuple[np.ndarray, ...]
    crosses: tuple[np.ndarray, ...]

    def up_to(self, step: str, whole: Choice) -> Choice:
        """This choice's steps up to and including `step`, the others as in `whole`."""
        later = STEPS[STEPS.index(step) + 1 :] if step in STEPS else STEPS
        return replace(self, **{name: getattr(whole, name) for name in later})


class Prices:
    """What each part of a model adds to its scores, and what it costs in bytes."""

    def __init__(self, model: FieldwiseModel, factors: Factors) -> None:
        self.model, self.factors = model, factors
        words: Any = model.vocabulary
        self._crossed = words.evidence is not None

    def whole(self, kind: str) -> Choice:
        """The choice that keeps everything."""
        layout = self.factors.layout
        rows = tuple(np.arange(d) for d in layout.sizes)
        crosses = tuple(np.ones(len(effect), bool) for effect in self._crosses)
        return Choice(kind, layout.ranks, (True,) * layout.n_fields, rows, crosses)

    def limits(self, kind: str) -> tuple[float, float]:
        """The prices at which next to nothing, and everything possible, is left out."""
        n_columns, n_rows = self.factors.layout.n_columns, len(self.factors.table)
        columns = np.concatenate(self.factors.column_effects())
        rows = self.factors.row_effects(np.ones(n_columns, bool))
        found = []
        for height, width in ((n_rows, n_columns), (1, 0)):  # of columns, of rows
            column, row = self._column_bytes(kind, height), self._row_bytes(kind, width)
            every = np.concatenate([columns / column, rows / row, *self._crosses])
            found.append(every[every > 0])
        if not len(found[0]):
            return 1e-12, 1.0
        return float(found[0].min()) / 2, float(found[1].max()) * 2

    def _column_bytes(self, kind: str, n_rows: int) -> float:
        """The bytes of a rank of a field: a column for every output."""
        return float(self.factors.layout.n_outputs * np.dtype(kind).itemsize * n_rows)

    def _row_bytes(self, kind: str, n_columns: int) -> float:
        """The bytes of a row: entries, scale and biases."""
        return float(np.dtype(kind).itemsize * n_columns + 4 + 4 * self.factors.layout.n_outputs)

    def chosen(self, price: float, kind: str) -> Choice:
        """The choice of what is worth a price, in mean square of the score per byte."""
        layout, factors = self.factors.layout, self.factors
        out = self.whole(kind)
        n_rows = layout.n_rows + layout.n_fields
        for _ in range(ROUNDS):
            column = self._column_bytes(kind, n_rows)
            ranks = tuple(
                int(np.count_nonzero(effect > price * column))
                for effect in factors.column_effects()
            )
            kept = _columns(layout.ranks, ranks, layout.n_outputs)
            row = self._row_bytes(kind, int(np.count_nonzero(kept)))
            effects = factors.row_effects(kept)
            fields = self._fields(effects, price, row, [column * r for r in ranks])
            rows = self._rows(effects, price * row)
            ranks = tuple(r if mine else 0 for r, mine in zip(ranks, fields, strict=True))
            out = replace(out, ranks=ranks, fields=fields, rows=rows)
            sizes = [codes.max() + 2 for codes, mine in zip(rows, fields, strict=True) if mine]
            n_rows = int(sum(sizes))
        return replace(out, crosses=tuple(effect > price for effect in self._crosses))

    def _fields(
        self, effects: np.ndarray, price: float, row: float, blocks: list[float]
    ) -> tuple[bool, ...]:
        """True for fields that are worth their rows and their block of columns, and for the best
        field. All stay if there are crosses, which are made of them."""
        layout = self.factors.layout
        if self._crossed:
            return (True,) * layout.n_fields
        worth = np.array([effects[layout.own(i)].sum() for i in range(layout.n_fields)])
        cost = np.array([(d + 1) * row for d in layout.sizes]) + blocks
        kept = worth > price * cost
        kept[np.argmax(worth)] = True
        return tuple(bool(k) for k in kept)

    def _rows(self, effects: np.ndarray, least: float) -> tuple[np.ndarray, ...]:
        """New codes: categories not worth a row join the rare ones, the others move up."""
        layout = self.factors.layout
        out = []
        for i, field in enumerate(self.model.schema.fields):
            stays = np.ones(layout.sizes[i], bool)
            if field.is_counted and not self._crossed:
                stays[1:] = effects[layout.own(i)][1:] > least
            out.append(np.where(stays, np.cumsum(stays) - 1, 0))
        return tuple(out)

    @cached_property
    def _crosses(self) -> list[np.ndarray]:
        """For every cross (g,): what its crossed categories add to scores per byte, by having
        evidence instead of none"""
        words: Any = self.model.vocabulary
        if not self._crossed or not words.own:
            return []  # none, or trees read them
        evidence, n_targets = words.evidence, words.evidence.n_targets
        n_flat = len(evidence) * n_targets
        n_known = sum(map(len, evidence.counts))
        size = len(evidence.to_bytes()) / max(n_known, 1)
        out = []
        for k, count in enumerate(evidence.counts):
            found = evidence.said(k).astype(np.float64)
            change = np.zeros((len(count), self.factors.layout.n_outputs))
            for t in range(n_targets):
                for number in (k * n_targets + t, n_flat + k * n_targets + t):
                    change += self._moved(number, found[:, t])
            out.append(count / count.sum() * (change**2).sum(axis=1) / size)
        return out

    def _moved(self, number: int, evidence: np.ndarray) -> np.ndarray:
        """(g, K) how much a field of evidence moves scores, compared with no evidence"""
        words: Any = self.model.vocabulary
        layout, R = self.factors.layout, self.factors.layout.n_columns
        i = len(words.base.fields) + number
        bias = self.factors.table[layout.own(i), R:].astype(np.float64)
        own = words.own[number]
        if own.field.is_linear:
            none = own.scaled(np.zeros(1))
            return np.outer(own.scaled(evidence) - none, bias[0])
        edges = own.field.edges or ()
        moved: np.ndarray = bias[1 + bin_of(evidence, edges)] - bias[1 + bin_of(np.zeros(1), edges)]
        return moved


def _columns(before: tuple[int, ...], after: tuple[int, ...], n_outputs: int) -> np.ndarray:
    """(R,) true for the first columns of every block, as many as are kept"""
    one = [np.arange(r) < k for r, k in zip(before, after, strict=True)]
    return np.tile(np.concatenate(one), n_outputs)
