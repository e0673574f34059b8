"""The encoder: single rows beside tables of one row, values that come back, tables of all kinds."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import polars as pl

from fieldwise import FieldEncoder
from fieldwise.data.chunks import Chunk
from fieldwise.data.frames import to_frame
from fieldwise.data.single import RowCoder
from fieldwise.data.vocabulary import Vocabulary
from fieldwise.errors import FieldwiseError
from serving import clicks

from .draws import Draw

__all__ = ["SEEDS", "TARGETS"]


@cache
def vocabularies() -> list[Vocabulary]:
    """Of every kind of field, by every policy for what was never seen."""
    frame = clicks(1, 300).drop("click", "level", "amount")
    frame = frame.with_columns(
        number=pl.col("hour").cast(pl.Float64) / 2,
        big=pl.col("hour").cast(pl.Int64) * 10**15,
        words=pl.col("tags").list.join("|"),
    )
    kinds = {"age": "linear", "big": "category", "number": "category", "words": "list:|"}
    found = []
    for unseen in ("mean", "rare", "error"):
        encoder = FieldEncoder(kinds=kinds, unseen=unseen, min_count=3)
        found.append(encoder.fit(frame).vocabulary_)
    found.append(FieldEncoder(kinds={"hour": "log2", "age": "quantile"}).fit(frame).vocabulary_)
    return found


@cache
def coders() -> list[tuple[str, Any, Vocabulary]]:
    """Of every field alone its column, the coder of one row, and what codes a table."""
    out = []
    for whole in vocabularies():
        for words in whole.fields:
            from fieldwise.data.schema import Schema

            alone = Vocabulary(Schema(fields=(words.field,)), [words])
            out.append((words.field.column, RowCoder(alone), alone))
    return out


def one_value(data: bytes) -> None:
    """A value alone gets the code that it gets in a table, or neither takes it."""
    draw = Draw(data)
    column, coder, words = draw.pick(coders())
    value = draw.value()
    by_row: Any
    try:
        by_row = coder({column: value})
    except FieldwiseError as error:
        by_row = error
    try:
        frame = to_frame({column: [value]})
        by_table: Any = words.encode(Chunk(frame))
    except FieldwiseError as error:
        by_table = error
    told = (column, words.fields[0].field, value, by_row, by_table)
    assert isinstance(by_row, Exception) == isinstance(by_table, Exception), told
    if not isinstance(by_row, Exception):
        assert np.array_equal(by_row[0], by_table[0]), told
        assert np.array_equal(by_row[1], by_table[1]), told
    if isinstance(by_row, Exception):
        raise by_row


def table(data: bytes) -> None:
    """Any small table: its rows alone have the codes they have together, and categories that have
    codes of their own come back from them."""
    draw = Draw(data)
    n = 2 + draw.below(6)
    columns = {f"c{j}": column(draw, n) for j in range(1 + draw.below(3))}
    encoder = FieldEncoder(min_count=1 + draw.below(2), resolutions=draw.coin())
    codes = encoder.fit_transform(columns)
    assert len(codes) == n
    again = encoder.transform(columns)
    assert np.array_equal(codes, again, equal_nan=True), (codes, again)
    for k in range(n):
        row = encoder.transform({name: [values[k]] for name, values in columns.items()})
        assert np.array_equal(row[0], codes[k], equal_nan=True), (k, columns, row, codes)
    decoded = encoder.inverse_transform(codes)
    assert decoded.height == n
    for field in encoder.schema_.fields:
        if field.kind != "category" or field.part is not None or field.dtype != "string":
            continue
        place = encoder.schema_.names.index(field.name)
        texts = to_frame(columns)[field.column]
        if texts.dtype != pl.String or set(encoder.schema_.slots) != {1}:
            continue
        for text, back, code in zip(
            texts, decoded[field.name], codes[:, place].tolist(), strict=True
        ):
            assert back == text or (code == 0 and back is None), (field, text, back)


def column(draw: Draw, n: int) -> list[Any]:
    """Values of one kind, or of several."""
    kind, seed = draw.below(7), draw.below(4)
    makers = (
        draw.text,
        draw.number,
        lambda: draw.pick((True, False, None)),
        lambda: draw.times()[seed],
        lambda: draw.some(("t1", "t2", "t3"), 3) or None,
        lambda: draw.pick((None, 0, 1, 2, 0.5)),
        lambda: draw.pick((None, draw.text())),
    )
    return [makers[kind]() for _ in range(n)]


def quiet(target: Any) -> Any:
    def run(data: bytes) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            target(data)

    return run


TARGETS = {"value": one_value, "table": quiet(table)}
SEEDS: dict[str, list[bytes]] = {}
