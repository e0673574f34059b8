"""The dialect of PostgreSQL: functions, arrays, and a loop for their products."""

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
    literal,
)

__all__ = ["Postgres"]

PAGE = 7000  # bytes of numbers that surely fit on a page
GROUP = 90  # fields per function, which takes at most 100 arguments


def _groups(terms: Sequence[Term]) -> list[Sequence[Term]]:
    return [terms[k : k + GROUP] for k in range(0, len(terms), GROUP)]


class Postgres(Dialect):
    name = "postgres"
    brackets = ("{", "}")
    functions: ClassVar[Functions] = {
        # float8 refuses numbers out of its range, so these are handled first.
        "bounded": (
            *("numeric", "float8"),
            "CASE WHEN abs(v) >= 1.797693134862315807e308 THEN sign(v) * CAST('Infinity' AS float8)"
            " WHEN abs(v) <= 2.4703282292062327e-324 THEN 0e0 ELSE CAST(v AS float8) END",
        ),
        "parsed": (
            *("text", "float8"),
            "CASE WHEN length(v) < 60 AND v ~ '^[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)"
            "([eE][+-]?[0-9]{1,2})?$' THEN CAST(v AS float8) "
            f"WHEN v ~ {NUMBER} THEN CASE WHEN lower(v) ~ '^[^1-9e]*(e.*)?$' THEN 0e0 "
            "WHEN v ~ '^.*[eE]-0*[1-9][0-9]{4,}$' THEN 0e0 "
            "WHEN v ~ '^-.*[eE][+]?0*[1-9][0-9]{4,}$' THEN CAST('-Infinity' AS float8) "
            "WHEN v ~ '^.*[eE][+]?0*[1-9][0-9]{4,}$' THEN CAST('Infinity' AS float8) "
            f"ELSE <bounded>(CAST(v AS numeric)) END {INFINITE} END",
        ),
        "exact": ("float8", "text", "encode(float8send(v), 'hex')"),  # however a session shows it
        "number": ("text", "float8", "<meant>(<trimmed>(v))"),
        "month": (  # the first day of it
            *("text", "date"),
            "CASE WHEN CAST(split_part(v, '-', 2) AS integer) BETWEEN 1 AND 12 "
            "AND CAST(split_part(v, '-', 1) AS integer) > 0 THEN make_date(CAST(split_part(v, '-', "
            "1) AS integer), CAST(split_part(v, '-', 2) AS integer), 1) END",
        ),
        "day": (  # as many days later, where that is the same month
            *("text", "date"),
            "CASE WHEN extract(month FROM <month>(v) + CAST(split_part(v, '-', 3) AS integer) - 1) "
            "= extract(month FROM <month>(v)) "
            "THEN <month>(v) + CAST(split_part(v, '-', 3) AS integer) - 1 END",
        ),
        "weekday": (
            *("text", "text"),
            f"CASE WHEN v ~ {DAY} THEN CAST(extract(isodow FROM <day>(v)) AS text) END",
        ),
    }
    # A column of numbers is used directly: the text of a real differs.
    more = (
        ("float8", "nullif(v, CAST('NaN' AS float8))"),
        ("boolean", "CAST(CAST(v AS integer) AS float8)"),
    )

    def same_name(self, name: str) -> str:
        return name.encode()[:63].decode(errors="ignore")

    def definitions(self, terms: Sequence[Term]) -> list[str]:
        made = [(name, *facts) for name, facts in self.bodies().items()]
        made += [("number", takes, "float8", body) for takes, body in self.more]
        out = []
        for name, takes, gives, body in made:
            out.append(
                f"CREATE OR REPLACE FUNCTION {self.named(name)}(v {takes}) RETURNS {gives} "
                f"LANGUAGE sql IMMUTABLE PARALLEL SAFE AS {literal('SELECT ' + body)};"
            )
        return [*out, *(self._product(n, group) for n, group in enumerate(_groups(terms), 1))]

    def _product(self, number: int, terms: Sequence[Term]) -> str:
        """sum_t own_t sum_j x_j others_jt, over some of the fields. A loop unpacks every array
        once; of the ways tried it is the fastest, by a factor of two or more."""
        others = [
            f"others_{j}[t]" if term.value is None else f"x[{j}] * others_{j}[t]"
            for j, term in enumerate(terms, 1)
        ]
        arrays = ", ".join(f"others_{j} real[]" for j in range(1, len(terms) + 1))
        body = (
            "DECLARE z float8 := 0; BEGIN FOR t IN 1 .. array_length(own, 1) LOOP "
            f"z := z + own[t] * ({' + '.join(others)}); END LOOP; RETURN z; END"
        )
        return (
            f"CREATE OR REPLACE FUNCTION {self.named(f'product_{number}')}(own real[], x float8[], "
            f"{arrays}) RETURNS float8 LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS {literal(body)};"
        )

    def tuning(self, table: str, arrays: Sequence[str], width: int) -> list[str]:
        """Keep arrays uncompressed, and in their row if it fits on a page."""
        storage = "PLAIN" if 4 * width < PAGE else "EXTERNAL"
        return [f"ALTER TABLE {table} ALTER COLUMN {a} SET STORAGE {storage};" for a in arrays]

    def indexes(self, n_codes: int) -> list[str]:
        codes = ", ".join(f"code_{k}" for k in range(1, n_codes + 1))
        tables = [self.named(name) for name in ("categories", "rows", "crosses")]
        return [
            # By hash: a category may be too long for a B-tree.
            f"CREATE INDEX ON {tables[0]} USING hash (category);",
            f"ALTER TABLE {tables[1]} ADD PRIMARY KEY (field, code);",
            *([f"ALTER TABLE {tables[2]} ADD PRIMARY KEY (number, {codes});"] if codes else []),
            *(f"ANALYZE {table};" for table in tables),
        ]

    def list_of(self, items: Sequence[str]) -> str:
        return f"ARRAY[{', '.join(items)}]"

    def size(self, items: str) -> str:
        return f"cardinality({items})"

    def bin(self, number: str, edges: Sequence[str]) -> str:
        return f"1 + width_bucket({number}, CAST({self.list_of(edges)} AS float8[]))"

    def list_join(self, lists: ListField, n_outputs: int) -> str:
        columns = []
        for o in range(1, n_outputs + 1):
            columns += [
                "(SELECT CAST(array_agg(v ORDER BY k) AS real[]) FROM (SELECT k, sum(value * e) "
                f"AS v FROM found, unnest({name}) WITH ORDINALITY AS u(e, k) GROUP BY k) AS s) "
                f"AS {name}"
                for name in (f"own_{o}", f"others_{o}")
            ]
            columns.append(
                f"(SELECT CASE WHEN count(*) = count(bias_{o}) THEN sum(value * bias_{o}) END "
                f"FROM found) AS bias_{o}"
            )
        return (
            f"LEFT JOIN LATERAL (WITH found AS (SELECT {lists.value} AS value, r.*\n"
            f"  FROM (SELECT item, place, {self.size(lists.items)} AS size,\n"
            f"    {lists.is_missing} AS is_missing\n"
            f"    FROM unnest({lists.items}) WITH ORDINALITY AS u(item, place)) AS i\n"
            f"  {lists.found})\n"
            f"  SELECT {(',' + chr(10) + '    ').join(columns)}) AS {lists.alias} ON true"
        )

    def step(
        self, source: str, number: int, joins: Sequence[str], columns: Mapping[str, str]
    ) -> str:
        made = ",\n  ".join(f"{expression} AS {name}" for name, expression in columns.items())
        # OFFSET 0 makes PostgreSQL compute a column once, not wherever it is used.
        step = f"CROSS JOIN LATERAL (SELECT {made}\n  OFFSET 0) AS s{number}"
        return "\n".join([source, *joins, *([step] if columns else [])])

    def ref(self, name: str, number: int) -> str:
        return f"s{number}.{name}"

    def score(
        self, query: Query, joins: Sequence[str], terms: Sequence[Term], offsets: Sequence[str]
    ) -> list[str]:
        outputs = range(1, len(offsets) + 1)
        own = {f"own_{o}": " || ".join(self._own(term, o) for term in terms) for o in outputs}
        query.step(joins, own)
        scores = {f"z_{o}": self._sum(query, terms, o, offsets[o - 1]) for o in outputs}
        query.step([], scores)
        return [query.ref(name) for name in scores]

    def _sum(self, query: Query, terms: Sequence[Term], o: int, offset: str) -> str:
        parts = [offset]
        for term in terms:
            bias = f"{term.row}.bias_{o}"
            parts.append(f"{term.value} * {bias}" if term.value else bias)
        if any(term.rank for term in terms):
            for number, group in enumerate(_groups(terms), 1):
                others = ", ".join(f"{term.row}.others_{o}" for term in group)
                values = self.list_of([term.value or "1" for term in group])
                parts.append(
                    f"{self.named(f'product_{number}')}({query.ref(f'own_{o}')},\n"
                    f"    CAST({values} AS float8[]),\n    {others})"
                )
        return "\n  + ".join(parts)

    @staticmethod
    def _own(term: Term, o: int) -> str:
        if term.value and term.rank:
            return (
                f"CAST(ARRAY(SELECT e * {term.value} FROM unnest({term.row}.own_{o}) "
                "WITH ORDINALITY AS u(e, k) ORDER BY k) AS real[])"
            )
        return f"{term.row}.own_{o}"

    def select(self, query: Query, key: Sequence[str], shown: Sequence[str]) -> str:
        kept = [f"t.{identifier(name)}" for name in key] or ["t.*"]
        return f"SELECT {', '.join([*shown, *kept])}\n{query.source}"
