"""Raw columns to numbers for what fields hold: texts and numbers in, whole numbers out.

Every value of every field has its own number (`Numbering`); a linear field has its value too. A
column's input is text, unless all its fields read numbers; numbers are float64, so that edges of
bins are exactly the model's, and whole numbers are exact up to 2^53.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from ...data.values import NO_NUMBER, number_text
from ...errors import ModelError
from ..parts import REFUSED_CODE, Part
from .graph import Graph
from .times import time_rows

__all__ = ["Found", "ListRows", "Numbering", "read_columns"]

EMPTY = -9  # the code and the number of an empty place in a list
TRUTHS = {"true": ("1", "1.0"), "false": ("0", "0.0")}  # other spellings


class Numbering:
    """A number for every code of every field: field i's codes from starts[i] on, then one per field
    for unseen values, then one for what the model refuses."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.unseen = int(self.starts[-1])
        self.refused = self.unseen + len(sizes)

    def of(self, i: int, codes: Any) -> np.ndarray:
        """The numbers (int64) of field i's codes of any shape, -1 for unseen"""
        codes = np.asarray(codes, np.int64)
        other = np.where(codes == REFUSED_CODE, self.refused, self.unseen + i)
        return np.where(codes < 0, other, self.starts[i] + codes)


@dataclass(frozen=True)
class ListRows:
    """The values of a list: their numbers (n, P), and which places are `filled`."""

    part: Part
    rows: str
    filled: str


@dataclass
class Found:
    """What was read. The columns of `rows` (each (n, k) int64), concatenated, are those of the
    fields `fields`; those of `numbers` ((n, k) float32, NaN where missing) of `linear`."""

    fields: list[int] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    linear: list[int] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    lists: list[ListRows] = field(default_factory=list)

    def add(self, parts: Sequence[Part], rows: str) -> None:
        self.fields += [part.number for part in parts]
        self.rows.append(rows)


def read_columns(graph: Graph, parts: Sequence[Part], numbering: Numbering, missing: str) -> Found:
    """The fields of the table, from one input a column; the text `missing` means no value."""
    kinds = _inputs(graph, parts, missing)
    found = Found()
    for part in parts:
        of = part.field
        number = kinds[of.column] == "number"
        if of.is_list:
            found.lists.append(_list_rows(graph, part, numbering, missing, number=number))
        elif of.is_counted and of.part is None and of.binning is None:
            keys, codes = _number_keys(part) if number else _text_keys(part, missing)
            found.add([part], _rows(graph, of.column, part, numbering, keys, codes))
    times = [part for part in parts if part.field.part is not None]
    for column in dict.fromkeys(part.field.column for part in times):
        own = [part for part in times if part.field.column == column]
        for part, rows in zip(own, time_rows(graph, column, own, numbering), strict=True):
            found.add([part], rows)
    _logged(graph, [part for part in parts if part.field.binning == "log2"], numbering, found)
    _binned(graph, [part for part in parts if part.field.is_binned], numbering, found)
    _linear(graph, [part for part in parts if part.field.is_linear], found)
    return found


def _inputs(graph: Graph, parts: Sequence[Part], missing: str) -> dict[str, str]:
    """Add an input for every column; returns whether each is "text" or "number"."""
    kinds = {}
    for column in dict.fromkeys(part.field.column for part in parts):
        own = [part for part in parts if part.field.column == column]
        numeric = [part for part in own if part.field.kind == "numeric"]
        texts = [part for part in own if part not in numeric and not _is_number(part)]
        if numeric and texts:
            raise ModelError(
                f"column {column!r} is a number to the field {numeric[0].field.name!r} and a text "
                f"to {texts[0].field.name!r}, but an ONNX input has one type; leave one field out"
            )
        lists = [part for part in own if part.field.is_list]
        if lists and len(own) > 1:
            raise ModelError(f"column {column!r} is a list to one field and more to another")
        cut = bool(lists) and lists[0].field.separator is not None
        shape: list[str | int] = ["N", f"{column}_values" if lists and not cut else 1]
        kinds[column] = "text" if texts or cut else "number"
        if kinds[column] == "text":
            graph.input(column, str, shape, f"text; {missing!r} where there is no value")
        else:
            graph.input(column, np.float64, shape, "number; NaN where there is no value")
    return kinds


def _is_number(part: Part) -> bool:
    """Whether every category is a number that a float64 holds, written as we write it."""
    of = part.field
    if of.part is not None or of.dtype not in ("integer", "float"):
        return False
    words = part.words["category"]
    number = words.cast(pl.Float64, strict=False)
    is_held = (number_text(number) == words) & ((of.dtype == "float") | (number.abs() < 2.0**53))
    return bool(is_held.fill_null(False).all())


def _rows(
    graph: Graph, x: str, part: Part, numbering: Numbering, keys: Any, codes: np.ndarray
) -> str:
    """The numbers of x among these keys; for other x that of unseen values."""
    unseen = int(numbering.of(part.number, part.unseen))
    return graph.lookup(x, keys, numbering.of(part.number, codes), unseen)


def _number_keys(part: Part) -> tuple[np.ndarray, np.ndarray]:
    numbers = part.words["category"].cast(pl.Float64).to_numpy()
    return np.append(numbers, np.nan), np.append(part.words["code"].to_numpy(), part.missing)


def _text_keys(part: Part, missing: str) -> tuple[list[str], np.ndarray]:
    """All texts that are categories or mean no value, and their codes."""
    pairs = list(zip(part.words["category"].to_list(), part.words["code"].to_list(), strict=True))
    if part.field.dtype == "boolean":
        pairs = [(spelt, code) for word, code in pairs for spelt in _spellings(word)]
    if part.field.dtype in ("integer", "float"):
        pairs += [(word, part.missing) for word in NO_NUMBER if word != missing]
    if missing not in {word for word, _ in pairs}:
        pairs.append((missing, part.missing))
    elif part.missing != part.unseen:
        raise ModelError(
            f"field {part.field.name!r} knows both the category {missing!r} and values that are "
            "missing, and ONNX has one text for them; name another text for what is missing with "
            "missing='...'"
        )
    return [word for word, _ in pairs], np.array([code for _, code in pairs])


def _spellings(word: str) -> list[str]:
    """All spellings of a truth value."""
    if word not in TRUTHS:
        return [word]
    letters = ((letter, letter.upper()) for letter in word)
    return [*map("".join, product(*letters)), *TRUTHS[word]]


def _logged(graph: Graph, parts: Sequence[Part], numbering: Numbering, found: Found) -> None:
    """v > 2 -> floor(log(v)^2), else floor(v) - 2, and the number of that category"""
    if not parts:
        return
    x, two = graph.joined([part.field.column for part in parts]), np.array(2.0)
    log = graph("Log", x)
    high = graph("Floor", graph("Mul", log, log))
    low = graph("Sub", graph("Floor", x), two)
    keys = graph("Where", graph("Greater", x, two), high, low)
    sizes = np.ones(len(parts), np.int64)
    for part, key in zip(
        parts, graph.several("Split", keys, sizes, n=len(parts), axis=1), strict=True
    ):
        found.add([part], _rows(graph, key, part, numbering, *_number_keys(part)))


def _binned(graph: Graph, parts: Sequence[Part], numbering: Numbering, found: Found) -> None:
    """The code of a bin: 1 plus the number of edges that a value has reached."""
    if not parts:
        return
    x = graph.joined([part.field.column for part in parts])
    widest = max(1, *(len(part.field.edges or ()) for part in parts))
    edges = np.full((len(parts), widest), np.nan)  # which nothing reaches
    for part, own in zip(parts, edges, strict=True):
        own[: len(part.field.edges or ())] = part.field.edges or ()
    first = np.array([numbering.of(part.number, 1) for part in parts])
    none = np.array([numbering.of(part.number, part.missing) for part in parts])
    apart = graph("Unsqueeze", x, np.array([2]))
    reached = graph("Cast", graph("GreaterOrEqual", apart, edges), to=7)  # int64
    bins = graph("Add", graph("ReduceSum", reached, np.array([2]), keepdims=0), first)
    found.add(parts, graph("Where", graph("IsNaN", x), none, bins))


def _linear(graph: Graph, parts: Sequence[Part], found: Found) -> None:
    """(v - center) / scale"""
    if not parts:
        return
    x = graph.joined([part.field.column for part in parts])
    center = np.array([part.field.center or 0.0 for part in parts])
    scale = np.array([part.field.scale or 1.0 for part in parts])
    scaled = graph("Div", graph("Sub", x, center), scale)
    found.linear += [part.number for part in parts]
    found.numbers.append(graph("Cast", scaled, to=1))  # float32


def _list_rows(
    graph: Graph, part: Part, numbering: Numbering, missing: str, *, number: bool
) -> ListRows:
    """The values of a list, or of text cut into one, as many as the model takes, or one more if it
    refuses longer lists."""
    of, x, is_strict = part.field, part.field.column, part.unseen == REFUSED_CODE
    if of.separator is not None:
        pieces = graph.several("StringSplit", x, n=2, delimiter=of.separator)[0]  # (n, 1, P)
        x = graph("Squeeze", pieces, np.array([1]))
    x = graph("Slice", x, np.array([0]), np.array([of.n_slots + is_strict]), np.array([1]))
    keys: Any
    if number:
        keys, codes = _number_keys(part)
        codes[-1] = EMPTY
    else:
        keys, codes = _item_keys(part, missing)
    known = np.where(codes == EMPTY, EMPTY, numbering.of(part.number, codes))
    rows = graph.lookup(x, keys, known, int(numbering.of(part.number, part.unseen)))
    filled = graph("GreaterOrEqual", rows, np.array(0))
    if is_strict:
        place = graph("CumSum", graph("Cast", filled, to=7), np.array(1))  # int64
        is_beyond = graph("Greater", place, np.array(of.n_slots))
        rows = graph("Where", is_beyond, np.array(numbering.refused), rows)
    return ListRows(part, rows, filled)


def _item_keys(part: Part, missing: str) -> tuple[list[str], np.ndarray]:
    """All texts that are values of a list or mean no value, and their codes."""
    words, codes = part.words["category"].to_list(), part.words["code"].to_list()
    empty = list(dict.fromkeys(("", missing)))
    for word in empty:
        if word in words:
            raise ModelError(
                f"field {part.field.name!r} knows {word!r} as a value of a list, which in ONNX is "
                "no value; leave it out of the lists and train again"
            )
    # Text is cut at the separator alone, but a space may follow it.
    room = ("", " ") if part.field.separator is not None else ("",)
    ways = list(product(room, room))
    keys = [f"{before}{word}{after}" for before, after in ways for word in words]
    return keys + empty, np.array(codes * len(ways) + [EMPTY] * len(empty))
