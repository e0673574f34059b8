"""How DuckDB says it: macros, lists and their inner products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from .dialects import DAY, INFINITE, NUMBER, Dialect, Functions, ListField, Term

__all__ = ["DuckDB"]


class DuckDB(Dialect):
    name = "duckdb"
    brackets = "[]"
    functions: ClassVar[Functions] = {
        "parsed": (
            *("text", "float8"),
            f"CASE WHEN v ~ {NUMBER} THEN CAST(v AS float8) {INFINITE} END",
        ),
        "exact": ("float8", "text", "CAST(v AS text)"),
        "number": (  # a number is taken as it is: the text of a real is another
            *("any", "float8"),
            "CASE WHEN CAST(v AS text) ~ '^-?[0-9]+([.][0-9]+)?$' THEN CAST(v AS float8) "
            "ELSE <meant>(<trimmed>(CAST(v AS text))) END",
        ),
        "weekday": (
            *("text", "text"),
            f"CASE WHEN v ~ {DAY} THEN CAST(isodow(TRY_CAST(v AS date)) AS text) END",
        ),
    }

    def same_name(self, name: str) -> str:
        return name.casefold()

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

    def score(self, output: int, terms: Sequence[Term], offset: str) -> str:
        o, item = output, self.named("item")  # a column of the user's may have any other name
        own = f"flatten({self.list_of([self._own(term, o) for term in terms])})"
        ranked = any(term.rank for term in terms)
        parts = [offset]
        for term in terms:
            row = item if term.is_list else term.row
            one = f"{row}.bias_{o}"
            if ranked:
                one = f"({one} + list_inner_product({row}.others_{o}, {own}))"
            if term.is_list:
                one = f"list_sum([{item}.value * {one} FOR {item} IN {term.row}.items])"
            parts.append(f"{term.value} * {one}" if term.value else one)
        return "\n  + ".join(parts)

    def _own(self, term: Term, o: int) -> str:
        item, k = self.named("item"), self.named("k")
        if term.is_list:
            each = f"list_sum([{item}.value * {item}.own_{o}[{k}] FOR {item} IN {term.row}.items])"
            found = f"[coalesce({each}, 0) FOR {k} IN range(1, {term.rank + 1})]"
            return f"CAST({found} AS real[])"
        if term.value and term.rank:
            return f"CAST([{item} * {term.value} FOR {item} IN {term.row}.own_{o}] AS real[])"
        return f"{term.row}.own_{o}"

    def z(self, output: int) -> str:
        return self.named(f"z_{output}")

    def select(self, kept: str, scores: Sequence[str], shown: Sequence[str], source: str) -> str:
        inner = [kept, *(f"{score} AS {self.z(o)}" for o, score in enumerate(scores, 1))]
        hidden = ", ".join(self.z(o) for o in range(1, len(scores) + 1))
        outer = ", ".join([f"* EXCLUDE ({hidden})", *shown])
        return f"SELECT {outer}\nFROM (SELECT {f',{chr(10)}  '.join(inner)}\n{source})"
