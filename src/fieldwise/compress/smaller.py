"""The model that a choice leaves of another, and the other's codes in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from .. import maths
from ..data.schema import Schema, slot_positions
from ..data.vocabulary import FieldVocabulary, Vocabulary
from ..layout import Layout
from ..model import FieldwiseModel
from ..packed import pack
from .choice import Choice
from .factors import Factors

__all__ = ["Coded", "kept_columns", "smaller", "unused"]


@dataclass(frozen=True)
class Coded:
    """Rows in the codes of the table's own fields: codes (n, S) and values (n, valued slots)"""

    codes: np.ndarray
    values: np.ndarray

    def seen_by(
        self, model: FieldwiseModel, before: Schema, choice: Choice
    ) -> tuple[np.ndarray, np.ndarray]:
        """The codes and values that a smaller model takes. `before` is the schema of the codes."""
        words: Any = model.vocabulary
        if words.evidence is not None:  # the fields that crosses are made of stay as they are
            return words.extended(self.codes, self.values, words.evidence.of(self.codes))
        places = slot_positions(before.slots)
        columns, slots = [np.empty((len(self.codes), 0), np.int32)], []
        for i, place in enumerate(places):
            if choice.fields[i]:
                known = np.append(choice.rows[i], -1).astype(np.int32)  # -1 is the last, too
                columns.append(known[self.codes[:, place.start : place.stop]])
                slots += list(place)
        codes = np.concatenate(columns, axis=1)
        return codes, self.values[:, [k for k, s in enumerate(before.valued) if s in slots]]


def smaller(model: FieldwiseModel, factors: Factors, choice: Choice) -> FieldwiseModel:
    """The model with what was chosen. Merged rows become their mean, weighted by counts; removed
    fields count with their average."""
    layout = model.layout
    kept = [i for i in range(layout.n_fields) if choice.fields[i]]
    new = Layout(
        tuple(int(choice.rows[i].max()) + 1 for i in kept),
        tuple(choice.ranks[i] for i in kept),
        layout.n_outputs,
        tuple(layout.slots[i] for i in kept),
    )
    columns = kept_columns(layout, choice, kept)
    left_out = unused(factors, choice)
    pairs = maths.pair_effects(layout, left_out[None], left_out[None])[0].sum(axis=(1, 2)) / 2
    offsets = factors.offsets + left_out[:, layout.n_columns :].sum(axis=0) + pairs
    table = np.empty((new.n_rows + new.n_fields, new.width), np.float32)
    for k, i in enumerate(kept):
        slopes = maths.main_slopes(layout, left_out, i)
        table[new.own(k)] = _merged(factors, i, choice.rows[i], slopes, columns)
        mean = factors.table[layout.n_rows + i, None].astype(np.float64)
        table[new.n_rows + k] = _with_slopes(mean, slopes, layout, columns)[0]
    packed: Any = pack(table, new.n_columns, choice.kind)
    return FieldwiseModel(
        _vocabulary(model, choice),
        new,
        packed,
        model.objective,
        offsets,
        dict(model.settings),
        dict(model.metrics),
        list(model.history),
        _moments(model, factors, choice, kept),
        model.boosted,
        list(model.lineage),
    )


def unused(factors: Factors, choice: Choice) -> np.ndarray:
    """(m, R + K) the average rows of removed fields; zero for those that stay"""
    layout = factors.layout
    out = np.zeros((layout.n_fields, layout.width))
    for i, stays in enumerate(choice.fields):
        if not stays:
            out[i] = factors.middle(i)
            if not factors.is_valued[i]:
                out[i, : layout.n_columns] = 0  # the mean was taken from its rows
    return out


def kept_columns(layout: Layout, choice: Choice, kept: Sequence[int]) -> np.ndarray:
    """The columns that stay, including the biases, in their new order."""
    blocks = [
        np.arange(layout.block(o, i).start, layout.block(o, i).start + choice.ranks[i])
        for o in range(layout.n_outputs)
        for i in kept
    ]
    return np.concatenate([*blocks, np.arange(layout.n_columns, layout.width)]).astype(int)


def _with_slopes(
    rows: np.ndarray, slopes: np.ndarray, layout: Layout, columns: np.ndarray
) -> np.ndarray:
    """Rows (n, R + K) in the columns that stay; their biases take in what removed fields bring"""
    bias = rows @ slopes
    out = rows[:, columns]
    out[:, -layout.n_outputs :] = bias
    return out


def _merged(
    factors: Factors, i: int, codes: np.ndarray, slopes: np.ndarray, columns: np.ndarray
) -> np.ndarray:
    """(new size, new width) the rows of a field, merged by new code into their means"""
    layout, own = factors.layout, factors.layout.own(i)
    count = factors.counts[own].astype(np.float64)
    total = np.bincount(codes, count)
    count[total[codes] == 0] = 1.0  # never seen: equal weights
    weight = count / np.bincount(codes, count)[codes]
    out = np.zeros((len(total), len(columns)))
    for part in maths.pieces(own):
        rows = factors.table[part].astype(np.float64)
        inside = slice(part.start - own.start, part.stop - own.start)
        found = _with_slopes(rows, slopes, layout, columns) * weight[inside, None]
        np.add.at(out, codes[inside], found)
    return out


def _vocabulary(model: FieldwiseModel, choice: Choice) -> Any:
    words: Any = model.vocabulary
    if words.evidence is not None:
        if not choice.crosses:
            return words
        return words.with_evidence(words.evidence.kept(choice.crosses))
    fields = []
    for words_of, codes, stays in zip(words.fields, choice.rows, choice.fields, strict=True):
        if stays:
            entries = words_of.entries
            code = pl.Series("code", codes[entries["code"].to_numpy()].astype(np.int32))
            entries = entries.with_columns(code)
            fields.append(FieldVocabulary(words_of.field, entries))
    left = {f.field.column for f in fields}
    gone = [c for c in model.schema.columns if c not in left]
    schema = replace(
        model.schema,
        fields=tuple(f.field for f in fields),
        dropped=(*model.schema.dropped, *gone),
    )
    return Vocabulary(schema, fields)


def _moments(
    model: FieldwiseModel, factors: Factors, choice: Choice, kept: Sequence[int]
) -> np.ndarray | None:
    """(d, 2) moments, summed where categories are merged, as if these occurred independently."""
    if model.moments is None:
        return None
    out = []
    for i in kept:
        codes, (weight, square) = choice.rows[i], model.moments[model.layout.own(i)].T
        sums = np.bincount(codes, weight)
        squares = np.bincount(codes, square)
        if factors.layout.slots[i] > 1:
            squares += sums**2 - np.bincount(codes, weight**2)
        out.append(np.stack([sums, squares], axis=1))
    return np.concatenate(out)
