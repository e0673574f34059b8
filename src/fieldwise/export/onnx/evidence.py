"""The evidence of crosses in a graph of ONNX: one lookup for all crosses of a row.

A crossed category has a key of 64 bits, a weighted sum of the numbers of its fields' values, and an
entry among those of all crosses. What a model derives from evidence (its bin, its scaled value) is
stored instead of the evidence itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...data.numbers import bin_of
from ...data.vocabulary import UNSEEN_CODE, FieldVocabulary
from ...model import FieldwiseModel
from ..parts import Cross, Part, crosses_of
from .columns import Found, Numbering
from .graph import Graph

__all__ = ["crossed"]


@dataclass(frozen=True)
class _Entries:
    """The entries of all crosses: first one per cross for unseen combinations, then the known ones.

    keys (G,) of the latter; cross (C + G,), evidence (C + G, T), seen (C + G,); factors (m, C) and
    shift (C,) make the keys of rows.
    """

    keys: np.ndarray
    cross: np.ndarray
    evidence: np.ndarray
    seen: np.ndarray
    factors: np.ndarray
    shift: np.ndarray


def _entries_of(
    crosses: Sequence[Cross], counts: Sequence[np.ndarray], numbering: Numbering, n_fields: int
) -> _Entries:
    """The entries; counts (g,) are those of every cross's categories. Factors are random, drawn
    until all keys differ: the key of an unseen combination collides with probability G / 2^64."""
    n_crosses = len(crosses)
    seed = 0
    while True:
        random = np.random.default_rng(seed)
        factors = np.zeros((n_fields, n_crosses), np.uint64)
        shift = random.integers(0, 2**64, n_crosses, np.uint64)
        keys = []
        for k, cross in enumerate(crosses):
            key = np.full(len(cross.codes), shift[k])
            for i, codes in zip(cross.fields, cross.codes.T, strict=True):
                factors[i, k] = random.integers(0, 2**64, dtype=np.uint64) | np.uint64(1)
                key += numbering.of(i, codes).astype(np.uint64) * factors[i, k]
            keys.append(key)
        every = np.concatenate(keys)
        if len(np.unique(every)) == len(every):
            break
        seed += 1
    nothing = np.arange(n_crosses)
    n_targets = crosses[0].evidence.shape[1]
    known = np.repeat(nothing, [len(key) for key in keys])
    found = [np.zeros((n_crosses, n_targets), np.float32), *(c.evidence for c in crosses)]
    seen = [np.zeros(n_crosses, np.float32), *(count.astype(np.float32) for count in counts)]
    return _Entries(
        every.view(np.int64),
        np.concatenate([nothing, known]),
        np.concatenate(found),
        np.concatenate(seen),
        factors.view(np.int64),
        shift.view(np.int64),
    )


def _entry_rows(graph: Graph, rows: str, fields: Sequence[int], entries: _Entries) -> str:
    """(n, C) the entries of rows (n, k), whose columns are these fields."""
    n_crosses = len(entries.shift)
    factors = np.ascontiguousarray(entries.factors[list(fields)])
    keys = graph("Add", graph("MatMul", rows, factors), entries.shift)
    places = np.arange(n_crosses, n_crosses + len(entries.keys))
    found = graph.lookup(keys, entries.keys, places, -1)
    is_new = graph("Less", found, np.array(0))
    return graph("Where", is_new, np.arange(n_crosses), found)


def _made_of(
    entries: _Entries, own: Sequence[tuple[Part, FieldVocabulary]], numbering: Numbering
) -> tuple[np.ndarray, np.ndarray]:
    """The values of fields made of evidence, for every entry: the scaled value (C + G, T) of linear
    ones, and the row of the table (C + G, T) of binned ones."""
    n_targets = entries.evidence.shape[1]
    scaled = np.zeros(entries.evidence.shape, np.float32)
    rows = np.zeros(entries.evidence.shape, np.int64)
    for part, words in own:
        assert part.evidence is not None
        k, t = divmod(part.evidence, n_targets)
        mine = entries.cross == k
        number = entries.evidence[mine, t].astype(np.float64)
        if part.field.is_linear:
            scaled[mine, t] = words.scaled(number)
        else:
            rows[mine, t] = numbering.of(part.number, 1 + bin_of(number, part.field.edges or ()))
    return scaled, rows


def crossed(
    graph: Graph,
    model: FieldwiseModel,
    parts: Sequence[Part],
    found: Found,
    held: Numbering,
    numbering: Numbering,
) -> tuple[Found, list[str]]:
    """What the model's fields hold, including those made of evidence, numbered as its table; and
    what boosted trees read beside the score. `found` is numbered by `held`, before rare categories
    of the table's fields are merged."""
    words: Any = model.vocabulary
    n_own = len(words.base.sizes)
    rows = graph.joined(found.rows)
    counts = words.evidence.counts
    entries = _entries_of(crosses_of(model), counts, held, n_own)
    at = _entry_rows(graph, rows, found.fields, entries)

    def of_entries(values: np.ndarray) -> str:
        """(C + G, T) -> (n, C T)"""
        flat = np.array([-1, values.shape[1] * len(entries.shift)])
        return graph("Reshape", graph("Gather", values, at), flat)

    to_row = graph.constant(_rows_of(parts[:n_own], held, numbering), "rows")
    lists = [
        replace(each, rows=graph("Gather", to_row, graph("Max", each.rows, np.array(0))))
        for each in found.lists
    ]
    out = Found(found.fields, [graph("Gather", to_row, rows)], found.linear, found.numbers, lists)
    own = list(zip(parts[n_own:], words.fields[n_own:], strict=True))
    if own:
        scaled, bins = _made_of(entries, own, numbering)
        linear = [part.number for part, _ in own if part.field.is_linear]
        binned = [part.number for part, _ in own if not part.field.is_linear]
        out = replace(
            out,
            fields=[*out.fields, *binned],
            rows=[*out.rows, of_entries(bins)],
            linear=[*out.linear, *linear],
            numbers=[*out.numbers, of_entries(scaled)],
        )
    if not words.with_extras:
        return out, []
    seen = np.log1p(entries.seen)[:, None]
    return out, [
        of_entries(entries.evidence),
        of_entries(seen),
        *_numbers(graph, words, found, held, rows),
    ]


def _rows_of(parts: Sequence[Part], held: Numbering, numbering: Numbering) -> np.ndarray:
    """From numbers of `held` to those of `numbering`; codes past a field's size share row 0."""
    sizes = np.diff(held.starts)
    codes = [np.arange(size) for size in sizes]
    known = [
        numbering.of(part.number, np.where(code < part.size, code, 0))
        for part, code in zip(parts, codes, strict=True)
    ]
    unseen = [numbering.of(part.number, UNSEEN_CODE) for part in parts]
    return np.concatenate([*known, unseen, [numbering.refused]])


def _numbers(graph: Graph, words: Any, found: Found, held: Numbering, rows: str) -> list[str]:
    """(n, k) the numeric values of categories, for the fields that have some."""
    if not words.numbers:
        return []
    names = words.base.schema.names
    every = np.full(held.refused + 1, np.nan, np.float32)
    columns = []
    for name, (_, known) in words.numbers.items():
        i = names.index(name)
        every[held.starts[i] : held.starts[i + 1]] = known[:-1]  # the last is of unseen values
        columns.append(found.fields.index(i))
    numbers = graph("Gather", every, rows)
    return [graph("Gather", numbers, np.array(columns), axis=1)]
