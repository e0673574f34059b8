"""The scoring query, in steps: from a row of the user's table to the keys of its values, to codes,
to evidence, to rows of the model's table, and to the sum over those."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..data.schema import Field
from ..data.values import LARGEST_LINEAR
from ..losses import LARGEST
from ..objective import Head
from .dialects import MISSING_WORDS, Dialect, ListField, Query, Term, identifier, literal
from .parts import REFUSED_CODE, Cross, Part

__all__ = ["number", "predictions", "scored", "terms_of"]

PLACES = {"year": (1, 4), "month": (6, 2), "day": (9, 2), "hour": (12, 2), "minute": (15, 2)}
LARGEST_VALUE = float(np.finfo(np.float32).max)
LARGEST_EXPONENT = 700  # of exp, in float64


def number(value: float) -> str:
    """A float64 as SQL, exact to the last bit: with an exponent, no database reads a decimal."""
    text = repr(float(value))
    text = text if "e" in text else text + "e0"
    return f"({text})" if text.startswith("-") else text


def scored(
    query: Query,
    parts: Sequence[Part],
    crosses: Sequence[Cross],
    ranks: Sequence[int],
    offsets: Sequence[float],
) -> list[str]:
    """Extend the query to the scores; returns their names in it."""
    dialect = query.dialect
    own = [part for part in parts if part.evidence is None and not part.field.is_list]
    made = [part for part in parts if part.evidence is not None]
    query.step([], {_name("key", part): _read(dialect, part) for part in own})
    joins = [_category_join(query, part) for part in own if part.field.is_counted]
    query.step(joins, {_name("code", part): _code(query, part) for part in own})
    if crosses:
        joins = [_cross_join(query, k, cross) for k, cross in enumerate(crosses, 1)]
        query.step(joins, {_name("key", part): _known(part, crosses) for part in made})
    lists = [part for part in parts if part.field.is_list]
    joins = [dialect.list_join(_list_field(dialect, part), len(offsets)) for part in lists]
    joins += [_row_join(query, part) for part in (*own, *made)]
    return dialect.score(query, joins, terms_of(query, parts, ranks), [*map(number, offsets)])


def terms_of(query: Query | None, parts: Sequence[Part], ranks: Sequence[int]) -> list[Term]:
    """What every field brings; without a query, all but its value."""
    out = []
    for part, rank in zip(parts, ranks, strict=True):
        value = None
        if part.field.is_linear:
            value = "" if query is None else _value(query, part)
        out.append(Term(_alias(part), rank, value, part.field.is_list))
    return out


def _alias(part: Part) -> str:
    """The alias of the field's row of the model's table."""
    return f"r{part.number + 1}"


def _name(kind: str, part: Part) -> str:
    return f"{kind}_{part.number + 1}"


def _text(part: Part) -> str:
    return f"CAST({_column(part)} AS text)"


def _column(part: Part) -> str:
    return f"t.{identifier(part.field.column)}"


def _read(dialect: Dialect, part: Part) -> str:
    """The category or the number of the row's value: null if missing, NaN if not a number."""
    if part.field.is_counted:
        return _key(dialect, part.field, _text(part))
    return dialect.call("number", _column(part))


def _category_join(query: Query, part: Part) -> str:
    c, table = f"c{part.number + 1}", query.dialect.named("categories")
    on = f"{c}.field = {part.number + 1} AND {c}.category = {query.ref(_name('key', part))}"
    return f"LEFT JOIN {table} AS {c} ON {on}"


def _cross_join(query: Query, k: int, cross: Cross) -> str:
    codes = [query.ref(f"code_{i + 1}") for i in cross.fields]
    same = [f"e{k}.code_{j} = {code}" for j, code in enumerate(codes, 1)]
    on = " AND ".join([f"e{k}.number = {k}", *same])
    return f"LEFT JOIN {query.dialect.named('crosses')} AS e{k} ON {on}"


def _known(part: Part, crosses: Sequence[Cross]) -> str:
    """Evidence of a cross: 0 if the crossed category was never seen."""
    k, target = divmod(part.evidence or 0, crosses[0].evidence.shape[1])
    return f"CAST(coalesce(e{k + 1}.evidence_{target + 1}, 0) AS float8)"


def _code(query: Query, part: Part) -> str:
    key = query.ref(_name("key", part))
    if part.field.is_counted:
        return f"coalesce(c{part.number + 1}.code, {_without(part, _text(part), key)})"
    if part.field.is_linear:
        within = f"abs({key}) < {number(LARGEST_LINEAR)}"
        return f"CASE WHEN {key} IS NULL THEN 1 WHEN {within} THEN 0 ELSE {REFUSED_CODE} END"
    return (
        f"CASE WHEN {key} IS NULL THEN {part.missing} WHEN {key} = CAST('NaN' AS float8) "
        f"THEN {REFUSED_CODE} ELSE {_bin(query.dialect, part, key)} END"
    )


def _bin(dialect: Dialect, part: Part, number_: str) -> str:
    edges = [number(edge) for edge in part.field.edges or ()]
    return dialect.bin(number_, edges) if edges else "1"


def _value(query: Query, part: Part) -> str:
    """The factor of a linear field's row."""
    field, key = part.field, query.ref(_name("key", part))
    center, scale = (0.0, 1.0) if field.center is None else (field.center, field.scale or 1.0)
    value = f"({key} - {number(center)}) / {number(scale)}"
    value = f"greatest(least({value}, {number(LARGEST_VALUE)}), {number(-LARGEST_VALUE)})"
    return f"CASE WHEN {key} IS NULL THEN 1e0 ELSE {value} END"


def _row_join(query: Query, part: Part) -> str:
    if part.evidence is None:
        code = query.ref(_name("code", part))
    elif part.field.is_linear:
        code = "0"
    else:
        code = _bin(query.dialect, part, query.ref(_name("key", part)))
    return _joined_row(query.dialect, part, code, _alias(part))


def _joined_row(dialect: Dialect, part: Part, code: str, alias: str) -> str:
    most = part.words["code"].max()
    if max(most if isinstance(most, int) else 0, part.missing) >= part.size:
        code = f"CASE WHEN {code} >= {part.size} THEN 0 ELSE {code} END"
    on = f"{alias}.field = {part.number + 1} AND {alias}.code = {code}"
    return f"LEFT JOIN {dialect.named('rows')} AS {alias} ON {on}"


def _without(part: Part, text: str, key: str) -> str:
    """The code of a text that is not a category."""
    field = part.field
    if field.part is None and field.dtype in ("string", "boolean"):
        if part.missing == part.unseen:
            return str(part.unseen)
        return f"CASE WHEN {text} IS NULL THEN {part.missing} ELSE {part.unseen} END"
    return (
        f"CASE WHEN {text} IS NULL OR {text} IN ({MISSING_WORDS}) THEN {part.missing} "
        f"WHEN {key} IS NULL THEN {REFUSED_CODE} ELSE {part.unseen} END"
    )


def _key(dialect: Dialect, field: Field, text: str) -> str:
    """The category of a text; null if it is missing or refused."""
    if field.part == "weekday":
        return dialect.call("weekday", f"substr({text}, 1, 10)")
    if field.part == "date":
        day = f"substr({text}, 1, 10)"
        return f"CASE WHEN {day} ~ '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}$' THEN {day} END"
    if field.part is not None:
        start, length = PLACES[field.part]
        piece = f"substr({text}, {start}, {length})"
        whole = f"CAST(CAST({piece} AS integer) AS text)"
        return f"CASE WHEN {piece} ~ '^[+-]?[0-9]+$' THEN {whole} END"
    if field.dtype == "string":
        return text
    if field.binning == "log2":
        return dialect.call("log_key", text)
    return dialect.call("truth" if field.dtype == "boolean" else "key", text)


def _list_field(dialect: Dialect, part: Part) -> ListField:
    """A field of lists: a text to cut at the separator, if it has one, else an array."""
    field, column = part.field, _column(part)
    missing, text = f"{column} IS NULL", "i.item"
    items = f"CAST({column} AS text[])"
    empty = f" OR {dialect.size(items)} = 0"  # which is refused, as a null in a list is
    gone = f"WHEN {text} IS NULL THEN {REFUSED_CODE} "
    if field.separator is not None:
        missing += f" OR {dialect.call('trimmed', _text(part))} = ''"
        items, empty = f"string_to_array({_text(part)}, {literal(field.separator)})", ""
        text = dialect.call("trimmed", text)
        gone += f"WHEN {text} = '' THEN {REFUSED_CODE} "
    if part.unseen == REFUSED_CODE:
        gone += f"WHEN i.size > {field.n_slots} THEN {REFUSED_CODE} "
    nothing = dialect.list_of(["CAST(NULL AS text)"])
    key = _key(dialect, field, text)
    code = (
        f"CASE WHEN i.is_missing THEN {part.missing} {gone}"
        f"ELSE coalesce(c.code, {_without(part, text, key)}) END"
    )
    share = "1e0" if field.pooling == "sum" else f"1e0 / least(i.size, {field.n_slots})"
    category = f"c.field = {part.number + 1} AND c.category = {key}"
    return ListField(
        alias=_alias(part),
        items=f"CASE WHEN {missing}{empty} THEN {nothing} ELSE {items} END",
        is_missing=missing,
        found=f"LEFT JOIN {dialect.named('categories')} AS c ON {category}\n  "
        + _joined_row(dialect, part, code, "r"),
        # Of a longer list only the first n_slots values count, but all are looked up.
        value=f"CASE WHEN i.place > {field.n_slots} THEN 0e0 ELSE {share} END",
    )


def predictions(heads: Sequence[Head], scores: Sequence[str]) -> list[str]:
    """The prediction of every output's score, as SQL."""
    out: list[str] = []
    for head in heads:
        names = scores[len(out) : len(out) + head.size]
        if head.loss == "softmax":
            highest = f"greatest({', '.join(names)})"
            least = f"-{LARGEST_EXPONENT}"
            parts = [
                f"CASE WHEN {z} IS NOT NULL THEN exp(greatest({z} - {highest}, {least})) END"
                for z in names
            ]
            out += [f"{part} / ({' + '.join(parts)})" for part in parts]
        elif head.loss == "logistic":
            out.append(
                f"1e0 / (1e0 + exp(-({_within(names[0], -LARGEST_EXPONENT, LARGEST_EXPONENT)})))"
            )
        elif head.loss == "poisson":
            out.append(f"exp({_within(names[0], -LARGEST_EXPONENT, LARGEST)})")
        else:
            out.append(names[0])
    return out


def _within(z: str, low: float, high: float) -> str:
    """z clipped to bounds, null staying null, which greatest and least alone would drop."""
    low_, high_ = number(low), number(high)
    return f"CASE WHEN {z} > {high_} THEN {high_} WHEN {z} < {low_} THEN {low_} ELSE {z} END"
