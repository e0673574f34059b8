"""A model as an SQL script: tables of what it learned, and a view that scores your rows.

    fieldwise_fields      the fields: number, name, column
    fieldwise_categories  field, category -> code
    fieldwise_rows        field, code -> own entries, entries for the other fields, bias
    fieldwise_crosses     cross and codes -> evidence
    fieldwise_scores      the view: `score`, `probability`, and the columns of your table

A score is the sum over fields of bias + others . own, where own are the own entries of all fields,
concatenated, and others has zeros in place of the field's own entries. Code -1 is a value never
seen, -2 one that the model refuses: its bias is null, and so is the row's score.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from .. import __version__
from ..data.vocabulary import UNSEEN_CODE
from ..errors import SchemaError, SettingError, not_one_of
from ..files import write_atomically
from ..model import FieldwiseModel
from ._duckdb import DuckDB
from ._postgres import Postgres
from .dialects import Dialect, Query, identifier, literal
from .parts import REFUSED_CODE, Part, crosses_of, identity, outputs_of, parts_of, require_sum
from .view import predictions, scored, terms_of

__all__ = ["DIALECTS", "write"]

DIALECTS: dict[str, type[Dialect]] = {"duckdb": DuckDB, "postgres": Postgres}
LINES = "FROM (SELECT unnest(string_to_array(%s, chr(10))) AS line) AS lines;"
BATCH = 1 << 20  # letters per statement, about
ODD_BATCH = 500  # categories per statement that spells them out


def write(
    model: FieldwiseModel,
    path: Path,
    *,
    dialect: str = "duckdb",
    table: str = "input",
    prefix: str = "fieldwise_",
    key: Sequence[str] = (),
    model_id: str | None = None,
) -> None:
    """Write the script for `dialect`, "duckdb" or "postgres".

    `table` is what the view reads, a name or "schema.name"; `key` are its columns that the view
    shows, by default all; `prefix` begins the names of everything the script creates.
    """
    if dialect not in DIALECTS:
        raise not_one_of(f"dialect={dialect!r}", dialect, DIALECTS)
    require_sum(model, "SQL")
    speaks = DIALECTS[dialect](prefix)
    _check_names(model, speaks, [*table.split("."), *key])
    about = [
        f"-- A model of fieldwise {__version__}, {model_id or identity(model)}, for {dialect}.",
        f"-- It predicts {json.dumps([t.column for t in model.schema.targets])} for every row of "
        f"{json.dumps(table)}, which has to be there:",
        f"-- SELECT * FROM {json.dumps(prefix + 'scores')};",
    ]
    script = _Script(model, speaks)
    statements = [script.tables(), script.data(), script.view(table, key)]
    write_atomically(
        path,
        (
            f"{line}\n".encode()
            for part in (about, ["BEGIN;"], *statements, ["COMMIT;"])
            for line in part
        ),
    )


def _check_names(model: FieldwiseModel, dialect: Dialect, more: Sequence[str]) -> None:
    """Raise if the database cannot hold a name, or cannot tell two names apart."""
    shown = [name for o in outputs_of(model) for name in (o.score, o.prediction)]
    columns = model.schema.columns
    for name in (dialect.prefix, *columns, *more, *shown):
        if not name or "\0" in name:
            raise SchemaError(f"{name!r} cannot be a name in SQL; rename it")
    for names in (columns, shown):
        seen: dict[str, str] = {}
        for name in names:
            other = seen.setdefault(dialect.same_name(name), name)
            if other != name:
                raise SchemaError(
                    f"{other!r} and {name!r} are the same name in {dialect.name}; rename one and "
                    "train again"
                )
    if len(dialect.prefix.encode()) > 40:
        raise SettingError(f"prefix={dialect.prefix!r} is longer than 40 bytes; choose a shorter")


class _Script:
    """The statements of a model's script in a dialect."""

    def __init__(self, model: FieldwiseModel, dialect: Dialect) -> None:
        self._model, self._dialect = model, dialect
        self._parts, self._crosses = parts_of(model), crosses_of(model)
        self._outputs = range(1, model.layout.n_outputs + 1)

    def tables(self) -> Iterator[str]:
        named = self._dialect.named
        yield f"DROP VIEW IF EXISTS {named('scores')};"
        columns = {
            "fields": ["field integer", "name text", '"column" text'],
            "categories": ["field integer", "category text", "code integer"],
            "rows": ["field integer", "code integer"],
            "crosses": ["number integer"],
        }
        for o in self._outputs:
            columns["rows"] += [f"own_{o} real[]", f"others_{o} real[]", f"bias_{o} real"]
        columns["crosses"] += [f"code_{k} integer" for k in range(1, self._longest + 1)]
        n_targets = self._crosses[0].evidence.shape[1] if self._crosses else 0
        columns["crosses"] += [f"evidence_{t} real" for t in range(1, n_targets + 1)]
        for name, parts in columns.items():
            yield f"DROP TABLE IF EXISTS {named(name)};"
            yield f"CREATE TABLE {named(name)} ({', '.join(parts)});"
        arrays = [f"{kind}_{o}" for o in self._outputs for kind in ("own", "others")]
        yield from self._dialect.tuning(named("rows"), arrays, 2 * self._model.layout.width)
        yield from self._dialect.definitions(terms_of(None, self._parts, self._model.layout.ranks))

    @property
    def _longest(self) -> int:
        """The most fields of a cross."""
        return max((len(cross.fields) for cross in self._crosses), default=0)

    def data(self) -> Iterator[str]:
        for part in self._parts:
            field = part.field
            values = f"{part.number + 1}, {_spelt(field.name)}, {_spelt(field.column)}"
            yield f"INSERT INTO {self._dialect.named('fields')} VALUES ({values});"
            yield from self._categories(part)
            yield from self._rows(part)
        yield from self._evidence()
        yield from self._dialect.indexes(self._longest)

    def _categories(self, part: Part) -> Iterator[str]:
        """A line for each category; those with text that a client may change are spelt out."""
        table = self._dialect.named("categories")
        words = part.words.rows()
        plain = [f"{code}:{word}" for word, code in words if _is_plain(word)]
        category = "substr(line, strpos(line, ':') + 1)"
        if part.field.part is None and part.field.dtype in ("integer", "float"):
            category = self._dialect.call("key", category)  # as the database writes numbers
        code = "CAST(split_part(line, ':', 1) AS integer)"
        head = f"INSERT INTO {table} SELECT {part.number + 1}, {category}, {code}"
        yield from _inserts(head, plain)
        odd = [
            f"({part.number + 1}, {_spelt(word)}, {code})"
            for word, code in words
            if not _is_plain(word) and not ("\0" in word and self._dialect.name == "postgres")
        ]
        for start in range(0, len(odd), ODD_BATCH):
            values = ",\n".join(odd[start : start + ODD_BATCH])
            yield f"INSERT INTO {table} VALUES\n{values};"

    def _rows(self, part: Part) -> Iterator[str]:
        """code;own;others;bias and so on for every output, a line for each row of the table."""
        layout, i = self._model.layout, part.number
        own = layout.own(i)
        step = max(1, BATCH // (10 * layout.width))
        columns = ["CAST(split_part(line, ';', 1) AS integer)"]
        for k in range(len(self._outputs)):
            columns += [f"CAST(split_part(line, ';', {3 * k + j}) AS real[])" for j in (2, 3)]
            columns.append(f"CAST(nullif(split_part(line, ';', {3 * k + 4}), '') AS real)")
        head = f"INSERT INTO {self._dialect.named('rows')} SELECT {i + 1}, {', '.join(columns)}"
        unseen = self._model.rows[layout.n_rows + i][None]
        yield from _inserts(head, self._lines(i, np.array([UNSEEN_CODE]), unseen))
        refused = self._lines(i, np.array([REFUSED_CODE]), np.zeros_like(unseen), biased=False)
        yield from _inserts(head, refused)
        for start in range(own.start, own.stop, step):
            rows = self._model.rows[start : min(start + step, own.stop)]
            codes = np.arange(len(rows)) + start - own.start
            yield from _inserts(head, self._lines(i, codes, rows))

    def _lines(
        self, field: int, codes: np.ndarray, rows: np.ndarray, *, biased: bool = True
    ) -> list[str]:
        layout = self._model.layout
        rows = np.asarray(rows, np.float32)
        columns = [pl.Series(codes).cast(pl.String)]
        for o in range(len(self._outputs)):
            own, whole = layout.block(o, field), layout.columns(o)
            others = rows[:, whole].copy()
            others[:, own.start - whole.start : own.stop - whole.start] = 0
            bias = pl.Series(rows[:, layout.n_columns + o]).cast(pl.String)
            columns += [self._arrays(rows[:, own]), self._arrays(others)]
            columns.append(bias if biased else pl.Series([""] * len(rows)))
        return _between(";", columns).to_list()

    def _arrays(self, rows: np.ndarray) -> pl.Series:
        opens, closes = self._dialect.brackets
        columns = [pl.Series(column).cast(pl.String) for column in rows.T]
        inside = _between(",", columns) if columns else pl.Series([""] * len(rows))
        return opens + inside + closes

    def _evidence(self) -> Iterator[str]:
        table = self._dialect.named("crosses")
        for k, cross in enumerate(self._crosses, 1):
            shape = (len(cross.codes), self._longest - len(cross.fields))
            codes = np.concatenate([cross.codes, np.zeros(shape, np.int32)], axis=1)
            kinds = ["integer"] * self._longest + ["real"] * cross.evidence.shape[1]
            columns = [f"CAST(split_part(line, ';', {j}) AS {k})" for j, k in enumerate(kinds, 1)]
            head = f"INSERT INTO {table} SELECT {k}, {', '.join(columns)}"
            numbers = [pl.Series(c).cast(pl.String) for c in (*codes.T, *cross.evidence.T)]
            yield from _inserts(head, _between(";", numbers).to_list())

    def view(self, table: str, key: Sequence[str]) -> Iterator[str]:
        model = self._model
        query = Query(self._dialect, ".".join(map(identifier, table.split("."))))
        ranks, offsets = model.layout.ranks, model.offsets.tolist()
        scores = scored(query, self._parts, self._crosses, ranks, offsets)
        meanings = predictions(model.objective.heads, scores)
        shown = []
        for o, z, meaning in zip(outputs_of(model), scores, meanings, strict=True):
            shown += [f"{z} AS {identifier(o.score)}", f"{meaning} AS {identifier(o.prediction)}"]
        yield f"CREATE VIEW {self._dialect.named('scores')} AS"
        yield self._dialect.select(query, key, shown) + ";"


def _between(separator: str, columns: Sequence[pl.Series]) -> pl.Series:
    """Texts of several columns, joined row by row with a separator."""
    frame = pl.DataFrame([c.alias(str(k)) for k, c in enumerate(columns)])
    return frame.select(pl.concat_str(pl.all(), separator=separator)).to_series()


def _inserts(head: str, lines: Sequence[str]) -> Iterator[str]:
    """INSERT statements with all lines in one text, which is parsed much faster than VALUES."""
    start = size = 0
    for k, line in enumerate(lines):
        size += len(line) + 1
        if size > BATCH or k + 1 == len(lines):
            text = "\n".join(lines[start : k + 1])
            yield f"{head}\n{LINES % literal(text)}"
            start, size = k + 1, 0


def _is_plain(text: str) -> bool:
    """Whether no client or editor changes a character of this text."""
    return text.isprintable() and text == text.strip()


def _spelt(text: str) -> str:
    """A text as an SQL expression in which no client changes anything."""
    parts, run = [], ""
    for letter in text:
        if letter.isprintable():
            run += letter
            continue
        parts += [literal(run)] if run else []
        parts.append(f"chr({ord(letter)})")
        run = ""
    parts += [literal(run)] if run or not parts else []
    return " || ".join(parts)
