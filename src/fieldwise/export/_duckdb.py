"""The dialect of DuckDB: macros, lists and their inner products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from .dialects import (
    DAY,
    INFINITE,
    NUMBER,
    Dialect,
    Functions,
    ListField,
    Query,
    Term,
    identifier,
)

__all__ = ["DuckDB"]


class DuckDB(Dialect):
    name = "duckdb"
    brackets = ("[", "]")
    functions: ClassVar[Functions] = {
        "parsed": (
            *("text", "float8"),
            f"CASE WHEN v ~ {NUMBER} THEN CAST(v AS float8) {INFINITE} END",
        ),
        "exact": ("float8", "text", "CAST(v AS text)"),
        "number": (  # a number is used directly: the text of a real differs
            *("any", "float8"),
            f"CASE WHEN CAST(v AS text) ~ {NUMBER} THEN CAST(v AS float8) "
            "ELSE <meant>(<trimmed>(CAST(v AS text))) END",
        ),
        "weekday": (
            *("text", "text"),
            f"CASE WHEN v ~ {DAY} THEN CAST(isodow(TRY_CAST(v AS date)) AS text) END",
        ),
    }

    def same_name(self, name: str) -> str:
        return "".join(c.lower() if c.isascii() else c for c in name)

    def definitions(self, terms: Sequence[Term]) -> list[str]:
        return [
            f"CREATE OR REPLACE MACRO {self.named(name)}(v) AS {body};"
            for name, (_, _, body) in self.bodies().items()
        ]

    def list_of(self, items: Sequence[str]) -> str:
        return f"[{', '.join(items)}]"

    def size(self, items: str) -> str:
        return f"len({items})"

    def bin(self, number: str, edges: Sequence[str]) -> str:
        edge = self.named("edge")
        every = f"CAST({self.list_of(edges)} AS float8[])"
        return f"1 + len([{edge} FOR {edge} IN {every} IF {edge} <= {number}])"

    def list_join(self, lists: ListField, n_outputs: int) -> str:
        outputs = range(1, n_outputs + 1)
        names = [f"{part}_{o}" for o in outputs for part in ("own", "others", "bias")]
        row = ", ".join([f"'value': {lists.value}", *(f"'{name}': r.{name}" for name in names)])
        return (
            f"LEFT JOIN LATERAL (SELECT CASE WHEN count(*) = count(r.bias_1) "
            f"THEN list({{{row}}}) END AS items\n"
            f"  FROM (SELECT unnest({lists.items}) AS item,\n"
            f"    generate_subscripts({lists.items}, 1) AS place,\n"
            f"    {self.size(lists.items)} AS size, {lists.is_missing} AS is_missing) AS i\n"
            f"  {lists.found}) AS {lists.alias} ON true"
        )

    def step(
        self, source: str, number: int, joins: Sequence[str], columns: Mapping[str, str]
    ) -> str:
        made = [f"{expression} AS {self.named(name)}" for name, expression in columns.items()]
        inner = ",\n  ".join(["t.*", *made])
        return "\n".join([f"FROM (SELECT {inner}", source, *joins]) + ") AS t"

    def ref(self, name: str, number: int) -> str:
        return f"t.{self.named(name)}"

    def score(
        self, query: Query, joins: Sequence[str], terms: Sequence[Term], offsets: Sequence[str]
    ) -> list[str]:
        """The own entries first, so that they are assembled once per row."""
        outputs = range(1, len(offsets) + 1)
        ranked = any(term.rank for term in terms)
        columns: dict[str, str] = {}
        for j, term in enumerate(terms, 1):
            names = [f"{kind}_{o}" for o in outputs for kind in ("bias", "others")]
            columns |= {f"{name}_{j}": f"{term.row}.{name}" for name in names if not term.is_list}
            columns |= {f"items_{j}": f"{term.row}.items"} if term.is_list else {}
            columns |= {f"value_{j}": term.value} if term.value else {}
        for o in outputs:
            columns[f"own_{o}"] = f"flatten({self.list_of([self._own(term, o) for term in terms])})"
        query.step(joins, columns)
        found = {}
        for o, offset in zip(outputs, offsets, strict=True):
            own = query.ref(f"own_{o}") if ranked else None
            parts = [self._term(query, term, j, o, own) for j, term in enumerate(terms, 1)]
            found[f"z_{o}"] = "\n  + ".join([offset, *parts])
        query.step([], found)
        return [query.ref(name) for name in found]

    def _term(self, query: Query, term: Term, j: int, o: int, own: str | None) -> str:
        def sum_of(bias: str, others: str) -> str:
            return f"({bias} + list_inner_product({others}, {own}))" if own else bias

        if term.is_list:
            item = self.named("item")  # a name that no column of the user has
            one = sum_of(f"{item}.bias_{o}", f"{item}.others_{o}")
            return f"list_sum([{item}.value * {one} FOR {item} IN {query.ref(f'items_{j}')}])"
        one = sum_of(query.ref(f"bias_{o}_{j}"), query.ref(f"others_{o}_{j}"))
        return f"{query.ref(f'value_{j}')} * {one}" if term.value else one

    def _own(self, term: Term, o: int) -> str:
        item, k = self.named("item"), self.named("k")
        if term.is_list:
            each = f"list_sum([{item}.value * {item}.own_{o}[{k}] FOR {item} IN {term.row}.items])"
            found = f"[coalesce({each}, 0) FOR {k} IN range(1, {term.rank + 1})]"
            return f"CAST({found} AS real[])"
        if term.value and term.rank:
            return f"CAST([{item} * {term.value} FOR {item} IN {term.row}.own_{o}] AS real[])"
        return f"{term.row}.own_{o}"

    def select(self, query: Query, key: Sequence[str], shown: Sequence[str]) -> str:
        hidden = ", ".join(map(self.named, query.names))
        kept = [f"t.{identifier(name)}" for name in key] or [f"t.* EXCLUDE ({hidden})"]
        return f"SELECT {', '.join([*shown, *kept])}\n{query.source}"
