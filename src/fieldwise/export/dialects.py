"""What is common to the SQL dialects, and the interface of what each does its own way.

Both know `text`, `real[]`, `float8`, `split_part`, `chr`, `trim(text, characters)`, and `~` with a
pattern anchored at both ends, so most of a script is the same for both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import ClassVar

from ..data.values import NO_NUMBER

__all__ = [
    "DAY",
    "INFINITE",
    "MISSING_WORDS",
    "NUMBER",
    "Dialect",
    "Functions",
    "ListField",
    "Query",
    "Term",
    "identifier",
    "literal",
]

# The characters that polars strips from both ends of a text.
WHITE = [*range(9, 14), 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
WHITE += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
MISSING_WORDS = ", ".join(f"'{word}'" for word in NO_NUMBER)

USED = re.compile("<([a-z_]+)>")
Functions = Mapping[str, tuple[str, str, str]]  # name: type of v, type returned, expression

# <name> is another function. Each is small, because its argument is expanded wherever it is used.
SHARED: Functions = {
    "trimmed": ("text", "text", "trim(v, " + " || ".join(f"chr({c})" for c in WHITE) + ")"),
    "digits": (  # of a whole number: -007.0 is -7
        *("text", "text"),
        "CASE WHEN v ~ '^[+-]?0+([.]0*)?$' THEN '0' WHEN v ~ '^-.*$' "
        "THEN '-' || ltrim(split_part(v, '.', 1), '-0') "
        "ELSE ltrim(split_part(v, '.', 1), '+0') END",
    ),
    "shown": (
        *("float8", "text"),
        "CASE WHEN v = floor(v) AND abs(v) < 9223372036854775808e0 "
        "THEN CAST(CAST(v AS bigint) AS text) ELSE <exact>(v) END",
    ),
    "named": (  # the canonical text of a number; other texts stay
        *("text", "text"),
        f"CASE WHEN v IN ({MISSING_WORDS}) THEN NULL "
        "WHEN v ~ '^[+-]?[0-9]+([.]0*)?$' THEN <digits>(v) "
        "ELSE coalesce(<shown>(<parsed>(v)), v) END",
    ),
    "key": (  # most whole numbers are canonical already
        *("text", "text"),
        "CASE WHEN v ~ '^(0|-?[1-9][0-9]*)$' THEN v ELSE <named>(<trimmed>(v)) END",
    ),
    "logged": (
        *("float8", "float8"),
        "CASE WHEN v > 2 THEN floor(ln(v) * ln(v)) ELSE floor(v) - 2 END",
    ),
    "log_key": ("text", "text", "<shown>(<logged>(<parsed>(<trimmed>(v))))"),
    "truth": (
        *("text", "text"),
        "CASE lower(<trimmed>(v)) WHEN '1' THEN 'true' WHEN '1.0' THEN 'true' WHEN '0' THEN "
        "'false' WHEN '0.0' THEN 'false' ELSE lower(<trimmed>(v)) END",
    ),
    "meant": (  # null for a missing value, NaN for what is not a number
        *("text", "float8"),
        f"CASE WHEN v IS NULL OR v IN ({MISSING_WORDS}) THEN NULL "
        "WHEN lower(v) = 'true' THEN 1e0 WHEN lower(v) = 'false' THEN 0e0 "
        "ELSE coalesce(<parsed>(v), CAST('NaN' AS float8)) END",
    ),
}
NUMBER = "'^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?$'"
INFINITE = (
    "WHEN lower(v) ~ '^[+]?inf(inity)?$' THEN CAST('Infinity' AS float8) "
    "WHEN lower(v) ~ '^-inf(inity)?$' THEN CAST('-Infinity' AS float8)"
)
DAY = "'^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}$'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Term:
    """What a field brings, as SQL: `row` names its row of the table (for a list all its rows), and
    `value` is the factor of the row, if any."""

    row: str
    rank: int
    value: str | None = None
    is_list: bool = False


@dataclass(frozen=True)
class ListField:
    """How to join a field of lists, as SQL. `items` is the array of its texts, `is_missing` is true
    if it means no value; `found` joins item, place, size and is_missing of `i` with the rows `r` of
    the table, and `value` is the factor of each."""

    alias: str
    items: str
    is_missing: str
    found: str
    value: str


class Dialect:
    """The common part of both. `prefix` begins the names of everything that a script creates."""

    name: ClassVar[str]
    brackets: ClassVar[tuple[str, str]]  # around the text of an array
    functions: ClassVar[Functions]

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def named(self, name: str) -> str:
        return identifier(self.prefix + name)

    def call(self, name: str, argument: str) -> str:
        return f"{self.named(name)}({argument})"

    def bodies(self) -> Functions:
        """All functions, each after those it uses, with names filled in."""

        def filled(body: str) -> str:
            return USED.sub(lambda found: self.named(found[1]), body)

        every = {**SHARED, **self.functions}
        uses = {name: USED.findall(body) for name, (_, _, body) in every.items()}
        order = TopologicalSorter(uses).static_order()
        return {name: (*every[name][:2], filled(every[name][2])) for name in order}

    def same_name(self, name: str) -> str:
        """A name's form in the database, to which names of equal form are the same."""
        raise NotImplementedError

    def definitions(self, terms: Sequence[Term]) -> list[str]:
        """Statements that create the functions."""
        raise NotImplementedError

    def tuning(self, table: str, arrays: Sequence[str], width: int) -> list[str]:
        """Statements that tune a table of arrays of so many numbers, before it is filled."""
        return []

    def indexes(self, n_codes: int) -> list[str]:
        """Statements that make lookups of few rows fast, once tables are filled."""
        return []

    def list_of(self, items: Sequence[str]) -> str:
        raise NotImplementedError

    def size(self, items: str) -> str:
        raise NotImplementedError

    def bin(self, number: str, edges: Sequence[str]) -> str:
        """The code of a number's bin, of which the first is 1."""
        raise NotImplementedError

    def list_join(self, lists: ListField, n_outputs: int) -> str:
        raise NotImplementedError

    def step(
        self, source: str, number: int, joins: Sequence[str], columns: Mapping[str, str]
    ) -> str:
        """The text after FROM: `source` with these joins and computed columns added."""
        raise NotImplementedError

    def ref(self, name: str, number: int) -> str:
        """A reference to a column that a step computed, for later steps."""
        raise NotImplementedError

    def score(
        self, query: Query, joins: Sequence[str], terms: Sequence[Term], offsets: Sequence[str]
    ) -> list[str]:
        """Extend the query to the score of every output: the sum over fields j of
        x_j (bias_j + others_j . own), where own are all fields' own entries, concatenated, each
        times its x; plus the offset."""
        raise NotImplementedError

    def select(self, query: Query, key: Sequence[str], shown: Sequence[str]) -> str:
        """The query that selects these named expressions, and then the key columns of the user's
        table, or all."""
        raise NotImplementedError


class Query:
    """A query under construction, from `t`, the user's table."""

    def __init__(self, dialect: Dialect, table: str) -> None:
        self.dialect = dialect
        self.source = f"FROM {table} AS t"
        self._made: dict[str, int] = {}  # columns, and the step that computed each
        self._steps = 0

    def step(self, joins: Sequence[str], columns: Mapping[str, str]) -> None:
        self._steps += 1
        self.source = self.dialect.step(self.source, self._steps, joins, columns)
        self._made |= dict.fromkeys(columns, self._steps)

    def ref(self, name: str) -> str:
        return self.dialect.ref(name, self._made[name])

    @property
    def names(self) -> list[str]:
        return list(self._made)
