"""Explanations as small tables of HTML, for notebooks: plain numbers in, escaped text out. Standard
library only; colours that read on white and on black."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = [
    "card_html",
    "comparison_html",
    "explanation_html",
    "fields_html",
    "model_html",
    "percent",
    "shown",
    "table_html",
]

UP, DOWN = "#d9695f", "#4b8bbe"  # raises the score, lowers it
CELL = "padding:.15em .8em .15em 0;border-bottom:1px solid #8883;background:none;"
LONG = 25  # letters of a word that may be broken
BAR = "display:inline-block;height:.7em;border-radius:2px;min-width:1px;"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def shown(value: Any, *, sign: bool = False) -> str:
    """A number as readable text; a dash if unknown."""
    if value is None or value != value:
        return "–"
    if isinstance(value, (str, bool)) or not hasattr(value, "__float__"):
        return str(value)
    if abs(float(value)) == float("inf"):
        return "∞" if value > 0 else "−∞"
    if float(value) == int(value) and not sign and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(float(value))
    if size >= 1000:
        text = f"{value:+,.0f}" if sign else f"{value:,.0f}"
    elif 0 < size < 0.001:
        text = f"{value:+.1e}" if sign else f"{value:.1e}"
    else:
        digits = 3 if size < 10 else 1
        text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("-", "−") if sign else text


def percent(value: float | None) -> str:
    if value is None or value != value:
        return "–"
    share = 100 * value
    if 0 < share < 0.005:
        return "< 0.01 %"
    return f"{share:.1f} %" if share >= 0.995 or share <= 0 else f"{share:.2f} %"


def escaped(value: Any) -> str:
    return value if isinstance(value, Markup) else html.escape(str(value))


def table_html(
    head: Sequence[str], rows: Iterable[Sequence[Any]], *, words: int = 1, style: bool = False
) -> str:
    """A table whose first `words` columns are text and whose others are numbers."""

    def cell(tag: str, column: int, value: Any) -> str:
        side = "left" if column < words else "right"
        look = f' style="{CELL}text-align:{side}"' if style else ""
        kind = ""
        if not style and column >= words:
            kind = ' class="n"'
        elif not style and max(map(len, str(value).split()), default=0) >= LONG:
            kind = ' class="long"'
        return f"<{tag}{kind}{look}>{escaped(value)}</{tag}>"

    def line(tag: str, values: Sequence[Any]) -> str:
        return "<tr>" + "".join(cell(tag, k, v) for k, v in enumerate(values)) + "</tr>"

    whole = ' style="border-collapse:collapse;font-variant-numeric:tabular-nums"' if style else ""
    body = "".join(line("td", row) for row in rows)
    return f"<table{whole}><thead>{line('th', head)}</thead><tbody>{body}</tbody></table>"


def bar(value: float, most: float, *, width: float = 8.0) -> Markup:
    """A bar from the left, as long as the value is large, coloured by its sign."""
    length = width * abs(value) / most if most else 0.0
    colour = UP if value > 0 else DOWN
    return Markup(f'<span style="{BAR}width:{length:.2f}em;background:{colour}"></span>')


def framed(*parts: str) -> str:
    return f'<div style="overflow-x:auto;max-width:100%">{"".join(parts)}</div>'


def card_html(card: Mapping[str, Any], unit: str = "log-odds", *, most: int = 12) -> str:
    """One category: how often, how much by itself, and the partners that move it most."""
    effect = shown(card["main"], sign=True)
    if card.get("error") is not None:
        effect += f" ± {shown(card['error'])}"
    odd = f"distance {shown(card['distance'])}, in its field typically {shown(card['typical'])}"
    lines = [f"{effect} {unit} by itself", f"{shown(card['count'])} rows", odd, card.get("note")]
    rows = [
        (f"{partner['field']} = {item[0]}", item[2], item[3])
        for partner in card["partners"]
        for item in (*partner["for"], *partner["against"])
    ]
    rows = sorted(rows, key=lambda row: -abs(row[1]))[:most]
    longest = max((abs(row[1]) for row in rows), default=0.0)
    body = [(n, bar(e, longest), shown(e, sign=True), shown(c)) for n, e, c in rows]
    return framed(
        f"<p><b>{html.escape(card['field'])} = {html.escape(card['category'])}</b><br>",
        html.escape("; ".join(line for line in lines if line)) + "</p>",
        table_html(["together with", "", unit, "rows"], body, words=2, style=True),
    )


def comparison_html(found: Mapping[str, Any]) -> str:
    """Two categories: how often, how much by themselves, and where their models differ most."""
    names = [str(found["first"]), str(found["second"])]
    pairs = zip(names, found["counts"], found["main"], strict=True)
    lines = [f"{name}: {shown(n)} rows, {shown(v, sign=True)} by itself" for name, n, v in pairs]
    lines.append(f"distance {shown(found['distance'])}, typically {shown(found['typical'])}")
    longest = max((abs(d["difference"]) for d in found["differences"]), default=0.0)
    body = [
        (f"{d['field']} = {d['category']}", shown(d["first"], sign=True),
         shown(d["second"], sign=True), bar(d["difference"], longest),
         shown(d["difference"], sign=True), shown(d["count"]))
        for d in found["differences"]
    ]  # fmt: skip
    head = ["together with", *names, "", "difference", "rows"]
    return framed(
        f"<p><b>{html.escape(found['field'])}: {html.escape(' and '.join(names))}</b><br>",
        html.escape("; ".join(lines)) + "</p>",
        table_html(head, body, style=True),
    )


def fields_html(found: Mapping[str, Any]) -> str:
    """How much every field matters, alone and in pairs."""
    longest = max((f["share"] + f["pair_share"] for f in found["fields"]), default=0.0)
    body = [
        (f["name"], bar(f["share"] + f["pair_share"], longest), percent(f["share"]),
         percent(f["pair_share"]), shown(f["importance"]))
        for f in found["fields"]
    ]  # fmt: skip
    head = ["field", "share of the score's variance", "alone", "in pairs", "importance"]
    return framed(table_html(head, body, words=2, style=True))


def explanation_html(
    base: float,
    names: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
    unit: str = "log-odds",
    *,
    n_rows: int = 3,
    most: int = 10,
) -> str:
    """Explained rows: what each field adds to the score, the largest first."""
    parts = []
    for number, row in enumerate(rows[:n_rows], 1):
        effects = [float(e) for e in row["effects"]]
        order = sorted(range(len(names)), key=lambda k: -abs(effects[k]))[:most]
        longest = max((abs(effects[k]) for k in order), default=0.0)
        body = [
            (names[k], row["values"][k], bar(effects[k], longest), shown(effects[k], sign=True))
            for k in order
        ]
        heading = f"Row {number}: score {shown(row['score'], sign=True)}"
        if row.get("prediction") is not None:
            heading += f", prediction {shown(row['prediction'])}"
        left = len(names) - len(order)
        heading += f"; from {shown(base, sign=True)} of a typical row"
        heading += f", {left} smaller effects not shown" if left else ""
        parts += [f"<p><b>{html.escape(heading)}</b></p>"]
        parts += [table_html(["field", "value", "", unit], body, words=3, style=True)]
    if len(rows) > n_rows:
        parts.append(f"<p>and {len(rows) - n_rows:,} rows more</p>")
    return framed(*parts)


def model_html(
    summary: Mapping[str, Any], fields: Sequence[Mapping[str, Any]], *, most: int = 12
) -> str:
    """A model at a glance: what it predicts, how well, and its most important fields."""
    about = f"{summary['fields']:,} fields, {summary['categories']:,} categories"
    about += f", {summary['parameters']:,} parameters"
    marks = ", ".join(f"{name} {shown(v)}" for name, v in summary["metrics"].items())
    top = sorted(fields, key=lambda f: -f["importance"])[:most]
    longest = max((f["importance"] for f in top), default=0.0)
    body = [
        (f["name"], f["kind"], shown(f["categories"]), f["rank"], bar(f["importance"], longest),
         shown(f["importance"]))
        for f in top
    ]  # fmt: skip
    head = ["field", "kind", "categories", "rank", "", "importance"]
    return framed(
        f"<p><b>fieldwise model of {html.escape(str(summary['target']))}</b><br>",
        html.escape(about) + (f"<br>{html.escape(marks)}" if marks else "") + "</p>",
        table_html(head, body, words=2, style=True),
    )
