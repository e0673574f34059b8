"""The query that scores: joins from a row of the user's table to codes, from codes to rows of the
model's table, and the sum over those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..data.schema import Field
from ..data.values import LARGEST_LINEAR
from ..losses import LARGEST
from ..objective import Head
from .dialects import MISSING_WORDS, Dialect, ListField, Term, identifier, literal
from .parts import REFUSED_CODE, Cross, Part

__all__ = ["Joined", "joined", "number", "predictions"]

PLACES = {"year": (1, 4), "month": (6, 2), "day": (9, 2), "hour": (12, 2), "minute": (15, 2)}
LARGEST_VALUE = float(np.finfo(np.float32).max)
LARGEST_EXPONENT = 700  # of exp, in float64


@dataclass(frozen=True)
class Joined:
    """What follows FROM, and what every field brings."""

    joins: list[str]
    terms: list[Term]


def number(value: float) -> str:
    """A float64 to the last bit: with an exponent it is nowhere read as a decimal."""
    text = repr(float(value))
    text = text if "e" in text else text + "e0"
    return f"({text})" if text.startswith("-") else text


def joined(
    dialect: Dialect, parts: Sequence[Part], crosses: Sequence[Cross], ranks: Sequence[int], n: int
) -> Joined:
    """The joins of `t`, the user's table, with what the script made; n outputs."""
    joins: list[str] = []
    terms: list[Term] = []
    codes: dict[int, str] = {}
    for part in parts:
        if part.evidence is not None:
            continue
        if part.field.is_list:
            joins.append(dialect.list_join(_list_field(dialect, part), n))
            terms.append(Term(_alias("l", part), ranks[part.number], is_list=True))
            continue
        joins += _category_join(dialect, part)
        codes[part.number], value = _coded(dialect, part)
        joins.append(_row_join(dialect, part, codes[part.number]))
        terms.append(Term(_alias("r", part), ranks[part.number], value))
    for k, cross in enumerate(crosses, 1):
        same = [f"e{k}.code_{j} = {codes[i]}" for j, i in enumerate(cross.fields, 1)]
        on = " AND ".join([f"e{k}.number = {k}", *same])
        joins.append(f"LEFT JOIN {dialect.named('crosses')} AS e{k} ON {on}")
    for part in parts:
        if part.evidence is None:
            continue
        k, target = divmod(part.evidence, crosses[0].evidence.shape[1])
        known = f"CAST(coalesce(e{k + 1}.evidence_{target + 1}, 0) AS float8)"
        code, value = _of_number(dialect, part, known)
        joins.append(_row_join(dialect, part, code))
        terms.append(Term(_alias("r", part), ranks[part.number], value))
    return Joined(joins, terms)


def _alias(kind: str, part: Part) -> str:
    return f"{kind}{part.number + 1}"


def _column(part: Part) -> str:
    return f"t.{identifier(part.field.column)}"


def _text(part: Part) -> str:
    return f"CAST({_column(part)} AS text)"


def _category_join(dialect: Dialect, part: Part) -> list[str]:
    if not part.field.is_counted:
        return []
    c, key = _alias("c", part), _key(dialect, part.field, _text(part))
    table = dialect.named("categories")
    on = f"{c}.field = {part.number + 1} AND {c}.category = {key}"
    return [f"LEFT JOIN {table} AS {c} ON {on}"]


def _row_join(dialect: Dialect, part: Part, code: str, alias: str | None = None) -> str:
    r = alias or _alias("r", part)
    most = part.words["code"].max()
    if max(most if isinstance(most, int) else 0, part.missing) >= part.size:
        code = f"CASE WHEN {code} >= {part.size} THEN 0 ELSE {code} END"
    table = dialect.named("rows")
    return f"LEFT JOIN {table} AS {r} ON {r}.field = {part.number + 1} AND {r}.code = {code}"


def _coded(dialect: Dialect, part: Part) -> tuple[str, str | None]:
    """The code of the row's value, and where the field carries one a value."""
    if not part.field.is_counted:
        return _of_number(dialect, part, dialect.call("number", _column(part)))
    found, text = f"{_alias('c', part)}.code", _text(part)
    return f"coalesce({found}, {_without(dialect, part, text)})", None


def _without(dialect: Dialect, part: Part, text: str) -> str:
    """The code of a text that is no category."""
    field = part.field
    if field.part is None and field.dtype in ("string", "boolean"):
        if part.missing == part.unseen:
            return str(part.unseen)
        return f"CASE WHEN {text} IS NULL THEN {part.missing} ELSE {part.unseen} END"
    return (
        f"CASE WHEN {text} IS NULL OR {text} IN ({MISSING_WORDS}) THEN {part.missing} "
        f"WHEN {_key(dialect, field, text)} IS NULL THEN {REFUSED_CODE} ELSE {part.unseen} END"
    )


def _key(dialect: Dialect, field: Field, text: str) -> str:
    """The category that a text stands for; null where it is missing or refused."""
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


def _of_number(dialect: Dialect, part: Part, known: str) -> tuple[str, str | None]:
    """Code and value of a number, which is null where missing and NaN where refused."""
    field = part.field
    if not field.is_linear:
        edges = [number(edge) for edge in field.edges or ()]
        code = dialect.bin(known, edges) if edges else "1"
        if part.evidence is not None:
            return code, None
        return (
            f"CASE WHEN {known} IS NULL THEN {part.missing} "
            f"WHEN {known} = CAST('NaN' AS float8) THEN {REFUSED_CODE} ELSE {code} END"
        ), None
    center, scale = (0.0, 1.0) if field.center is None else (field.center, field.scale or 1.0)
    value = f"({known} - {number(center)}) / {number(scale)}"
    value = f"greatest(least({value}, {number(LARGEST_VALUE)}), {number(-LARGEST_VALUE)})"
    if part.evidence is not None:
        return "0", value
    within = f"abs({known}) < {number(LARGEST_LINEAR)}"
    code = f"CASE WHEN {known} IS NULL THEN 1 WHEN {within} THEN 0 ELSE {REFUSED_CODE} END"
    return code, f"CASE WHEN {known} IS NULL THEN 1e0 ELSE {value} END"


def _list_field(dialect: Dialect, part: Part) -> ListField:
    """A list is cut at its separator, where it has one; else its column is an array."""
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
    code = (
        f"CASE WHEN i.is_missing THEN {part.missing} {gone}"
        f"ELSE coalesce(c.code, {_without(dialect, part, text)}) END"
    )
    share = "1e0" if field.pooling == "sum" else f"1e0 / least(i.size, {field.n_slots})"
    key = _key(dialect, field, text)
    category = f"c.field = {part.number + 1} AND c.category = {key}"
    return ListField(
        alias=_alias("l", part),
        items=f"CASE WHEN {missing}{empty} THEN {nothing} ELSE {items} END",
        is_missing=missing,
        found=f"LEFT JOIN {dialect.named('categories')} AS c ON {category}\n  "
        + _row_join(dialect, part, code, "r"),
        # Of a list that is longer the first so many count, and yet all are looked at.
        value=f"CASE WHEN i.place > {field.n_slots} THEN 0e0 ELSE {share} END",
    )


def predictions(heads: Sequence[Head], scores: Sequence[str]) -> list[str]:
    """What every output's score stands for, as SQL."""
    out: list[str] = []
    for head in heads:
        names = scores[len(out) : len(out) + head.size]
        if head.loss == "softmax":
            highest = f"greatest({', '.join(names)})"
            parts = [f"exp(greatest({z} - {highest}, -{LARGEST_EXPONENT}))" for z in names]
            out += [f"{part} / ({' + '.join(parts)})" for part in parts]
        elif head.loss == "logistic":
            bounded = f"greatest(least({names[0]}, {LARGEST_EXPONENT}), -{LARGEST_EXPONENT})"
            out.append(f"1e0 / (1e0 + exp(-{bounded}))")
        elif head.loss == "poisson":
            out.append(f"exp(greatest(least({names[0]}, {number(LARGEST)}), -{LARGEST_EXPONENT}))")
        else:
            out.append(names[0])
    return out
