"""The field-wise score in a graph of ONNX, and what every field adds to it.

With B_j what field j brings to every column, S = sum_j B_j and q the own entries,

    z = sum_t (S_t - q_t) q_t + sum of biases

The same holds for rows less their field's mean, A = B - mu, with main effects in place of biases
and the base in place of the offsets; and then the exact Shapley value of field i is

    main_i + 1/2 (sum_t A_it q_t + sum over its own t of (S_t - 2 q_t) q_t)

so the table is written that way wherever its means are known (`maths.py` derives it).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import maths
from ...layout import Layout
from ...model import FieldwiseModel
from .columns import Found, ListRows, Numbering
from .graph import Graph

__all__ = ["Brought", "Centred", "Summed", "brought", "centred", "contributions", "score", "summed"]


@dataclass(frozen=True)
class Centred:
    """table (d + m + 1, R + K) float32, whose last row is for refused values; less (m, R + K) what
    is still to be subtracted from a field's sum of values; base (K,)"""

    layout: Layout
    table: np.ndarray
    less: np.ndarray
    base: np.ndarray


def centred(model: FieldwiseModel, *, around_means: bool) -> Centred:
    """The model's table, around the means of its fields or around zero."""
    layout, rows = model.layout, model.rows
    R = layout.n_columns
    table = np.full((len(rows) + 1, layout.width), np.nan, np.float32)
    less, base = np.zeros((layout.n_fields, layout.width)), model.offsets
    if around_means:
        known = model.learned.explainer
        mean = np.concatenate([known.mean[:, :R], known.middle], axis=1)
        valued = {int(layout.slot_owner[s]) for s in model.schema.valued}
        for i in range(layout.n_fields):
            away = np.zeros(layout.width) if i in valued else mean[i]
            less[i] = mean[i] - away
            for part in _rows_of(layout, i):
                table[part, :R] = rows[part, :R] - away[:R]
                table[part, R:] = known.worth[part] - away[R:]
        base = known.base
    else:
        table[:-1] = rows[:, : layout.width]
    _balance(table, less, layout)
    return Centred(layout, table, less, base)


def _rows_of(layout: Layout, i: int) -> list[slice]:
    """Slices of a field's rows, and that of its unseen values."""
    unseen = layout.n_rows + i
    return [*maths.pieces(layout.own(i)), slice(unseen, unseen + 1)]


def _balance(table: np.ndarray, less: np.ndarray, layout: Layout) -> None:
    """Scale own entries and those of other fields to similar size, column by column, in place.

    Their products stay. S - q would lose digits of small entries beside large ones, as own entries
    are if the target is large (they carry its scale). Powers of two change no digit.
    """
    R, columns = layout.n_columns, np.arange(layout.n_columns)
    most = np.zeros((layout.n_fields, R))
    for i in range(layout.n_fields):
        for part in _rows_of(layout, i):
            np.maximum(most[i], np.abs(table[part, :R]).max(axis=0), out=most[i])
    own = most[layout.owner, columns]
    most[layout.owner, columns] = 0.0
    others = most.max(axis=0)
    both = (own > 0) & (others > 0)
    ratio = np.where(both, others, 1.0) / np.where(both, own, 1.0)
    factor = 2.0 ** np.round(np.log2(ratio) / 2)
    for i in range(layout.n_fields):
        mine = np.where(layout.owner == i, factor, 1 / factor)
        less[i, :R] *= mine
        for part in _rows_of(layout, i):
            table[part, :R] *= mine.astype(np.float32)


@dataclass(frozen=True)
class Brought:
    """What every field brings, (n, m, R + K), and the order of the fields."""

    rows: str
    fields: list[int]


def brought(graph: Graph, of: Centred, numbering: Numbering, found: Found) -> Brought:
    """What fields bring; `found` has rows of the table, numbered by `numbering`."""
    table = graph.constant(of.table, "table")
    parts, fields = [], [*found.fields, *found.linear]
    if found.rows:
        parts.append(graph("Gather", table, graph.joined(found.rows)))
    if found.numbers:
        values = graph.joined(found.numbers)
        first = np.array([numbering.of(i, 0) for i in found.linear])
        is_missing = graph("IsNaN", values)
        rows = graph("Where", is_missing, first + 1, first)
        x = graph("Where", is_missing, np.array(1, np.float32), values)
        taken = graph("Mul", graph("Gather", table, rows), graph("Unsqueeze", x, np.array([2])))
        parts.append(graph("Sub", taken, of.less[found.linear].astype(np.float32)))
    for each in found.lists:
        parts.append(_list_brought(graph, of, table, numbering, each))
        fields.append(each.part.number)
    return Brought(graph.joined(parts), fields)


def _list_brought(
    graph: Graph, of: Centred, table: str, numbering: Numbering, each: ListRows
) -> str:
    """(n, 1, R + K): the sum or the mean of its values' rows, or the row of missing"""
    i, one = each.part.number, np.array(1, np.float32)
    weight = graph("Cast", each.filled, to=1)
    count = graph("ReduceSum", weight, np.array([1]))  # (n, 1)
    if each.part.field.pooling == "mean":
        weight = graph("Div", weight, graph("Max", count, one))
    rows = graph("Gather", table, graph("Max", each.rows, np.array(0)))  # (n, P, R + K)
    values = graph("Mul", rows, graph("Unsqueeze", weight, np.array([2])))
    total = graph("ReduceSum", values, np.array([1]))
    is_none = graph("Unsqueeze", graph("Less", count, one), np.array([2]))
    code = each.part.missing if each.part.missing < each.part.size else 0
    whole = graph("Where", is_none, of.table[numbering.of(i, code)], total)
    return graph("Sub", whole, of.less[i].astype(np.float32))


@dataclass(frozen=True)
class Summed:
    """For every column, (n, R + K): own entries q, 0 for biases, and the same with 1 for biases;
    what the other fields bring, p = S - q."""

    own: str
    weight: str
    others: str


def summed(graph: Graph, of: Centred, found: Brought) -> Summed:
    layout = of.layout
    R, m = layout.n_columns, layout.n_fields
    place = np.empty(m, np.int64)
    place[found.fields] = np.arange(m)
    at = place[layout.owner] * layout.width + np.arange(R)
    flat = graph("Reshape", found.rows, np.array([-1, m * layout.width]))
    entries = graph("Gather", flat, at, axis=1)
    more = np.array([0, 0, 0, layout.n_outputs])
    own = graph("Pad", entries, more, np.array(0, np.float32))
    weight = graph("Pad", entries, more, np.array(1, np.float32))
    every = graph("ReduceSum", found.rows, np.array([1]), keepdims=0)
    return Summed(own, weight, graph("Sub", every, own))


def score(graph: Graph, of: Centred, parts: Summed, name: str) -> str:
    """z, (n,) of one output, else (n, K)"""
    terms = graph("Mul", parts.others, parts.weight)
    if of.layout.n_outputs == 1:
        total = graph("ReduceSum", terms, np.array([1]), keepdims=0)
    else:
        total = graph("MatMul", terms, _outputs(of.layout))
    return graph("Add", total, of.base.astype(np.float32), name=name)


def _outputs(layout: Layout) -> np.ndarray:
    """(R + K, K) 1 where a column, or a bias, belongs to the output"""
    of = np.append(layout.output, np.arange(layout.n_outputs))
    return (of[:, None] == np.arange(layout.n_outputs)).astype(np.float32)


def contributions(
    graph: Graph, of: Centred, found: Brought, parts: Summed, credit: np.ndarray, name: str
) -> str:
    """Shapley values, (n, c) for one output, else (n, K, c); credit (m, c) assigns those of the
    model's fields to the table's"""
    layout = of.layout
    R, K, m = layout.n_columns, layout.n_outputs, layout.n_fields
    place = np.array([found.fields.index(i) for i in range(m)])
    halves = _outputs(layout)
    halves[:R] /= 2
    weights = graph("Mul", graph("Unsqueeze", parts.weight, np.array([2])), halves)
    alone = graph("MatMul", found.rows, weights)  # (n, m, K): main effects, and half of pairs
    block = np.zeros((layout.width, m * K), np.float32)
    block[np.arange(R), place[layout.owner] * K + layout.output] = 0.5
    rest = graph("Mul", graph("Sub", parts.others, parts.own), parts.own)
    within = graph("Reshape", graph("MatMul", rest, block), np.array([-1, m, K]))
    values = graph("Add", alone, within)
    is_own = np.array_equal(credit[found.fields], np.eye(m))
    last = name if is_own else ""
    if K == 1:
        values = graph("Squeeze", values, np.array([2]), name=last)
    else:
        values = graph("Transpose", values, perm=[0, 2, 1], name=last)
    if is_own:
        return values
    return graph("MatMul", values, credit[found.fields].astype(np.float32), name=name)
