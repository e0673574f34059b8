"""The report as one HTML file that opens offline, with charts, search and cards inside.

The page may run only its own two scripts: its content security policy lists them by hash and
allows no connection. Names reach it as escaped text or as JSON, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import shlex
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

from ..errors import MissingExtra

try:
    from . import charts
except ImportError as error:
    raise MissingExtra(error.name or "altair", "report") from error
from ..explain.shapes import waterfall
from .pack import fitting, pack_cards, pack_index
from .panels import Panel, panels
from .text import headline, plain

__all__ = ["LIMIT", "page"]

LIMIT = 9_900_000  # bytes of the page
CARDS = 0.25  # share of the room for categories that is reserved for cards


def page(numbers: Mapping[str, Any], *, limit: int = LIMIT) -> str:
    """The report, of at most `limit` bytes: categories that do not fit are left out, the rarest
    first, and the page says so."""
    categories, cards = numbers["categories"], numbers["cards"]
    drawn = {"charts": charts.charts(numbers), "config": charts.CONFIG}
    about = {
        "unit": numbers["summary"]["unit"],
        "model": str(numbers.get("model", "MODEL")),
        "command": shlex.join(["fieldwise", "category", *_options(numbers)]),
        "fields": [f["name"] for f in numbers["fields"]],
        "rows": _rows(numbers),
    }
    pieces = {"vega": charts.bundle(), "script": asset("page.js"), "style": asset("page.css")}
    small = _filled(numbers, {**drawn, **about}, pieces, NO_INDEX, "")
    room = limit - len(small.encode()) - 200_000  # the tables' words grow with what is left out
    whole = pack_cards(cards, len(cards))
    index = fitting(
        lambda n: pack_index(categories, n),
        len(categories["name"]),
        lambda body: len(body["names"]) + len(body["columns"]),
        room - min(len(whole), int(CARDS * room)),
    )
    room -= len(index["names"]) + len(index["columns"])
    n_cards, kept = fitting(
        lambda n: (n, pack_cards(cards, n)), len(cards), lambda body: len(body[1]), room
    )
    return _filled(numbers, {**drawn, **about}, pieces, index, kept, n_cards)


NO_INDEX: dict[str, Any] = {"names": "", "columns": "", "scales": [], "n": 0}


def asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


def _filled(
    numbers: Mapping[str, Any],
    body: Mapping[str, Any],
    pieces: Mapping[str, str],
    index: Mapping[str, Any],
    cards: str,
    n_cards: int = 0,
) -> str:
    tabs = panels(numbers, index["n"], n_cards)
    data = {**body, "scales": index["scales"], "n": index["n"]}
    return Template(asset("page.html")).substitute(
        policy=_policy(pieces["vega"], pieces["script"]),
        title=html.escape(str(numbers["title"])),
        headline=html.escape(headline(numbers)),
        version=html.escape(str(numbers["summary"]["version"])),
        tabs="".join(_tab(k, tab) for k, tab in enumerate(tabs)),
        panels="".join(_panel(k, tab) for k, tab in enumerate(tabs)),
        data=safe_json(data),
        names=index["names"],
        columns=index["columns"],
        cards=cards,
        **pieces,
    )


def _tab(k: int, tab: Panel) -> str:
    name, title, _ = tab
    first = "true" if k == 0 else "false"
    return (
        f'<button type="button" role="tab" id="tab-{name}" aria-controls="{name}" '
        f'aria-selected="{first}" tabindex="{0 if k == 0 else -1}">{title}</button>'
    )


def _panel(k: int, tab: Panel) -> str:
    name, title, body = tab
    return (
        f'<section role="tabpanel" id="{name}" class="panel{"" if k == 0 else " off"}" '
        f'aria-labelledby="tab-{name}" tabindex="-1"><h2>{title}</h2>{body}</section>'
    )


def _rows(numbers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The waterfall of every row, and all its fields by falling effect."""
    found = numbers["rows"]
    if not found:
        return []
    out = []
    for row in found["rows"]:
        every = zip(found["names"], row["values"], row["effects"], strict=True)
        out.append(
            {
                "steps": waterfall(row, found["base"], found["names"]),
                "fields": sorted(every, key=lambda one: -abs(one[2])),
            }
        )
    return out


def _options(numbers: Mapping[str, Any]) -> list[str]:
    """Further options for `fieldwise category`: the output, if there are several."""
    summary = numbers["summary"]
    several = numbers["title"] != summary["target"] or summary["unit"] != "log-odds"
    return ["--output", summary["output"]] if several and summary["output"] else []


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def safe_json(body: Any) -> str:
    """JSON inside a script element: no name in it can end the element."""
    text = json.dumps(plain(body), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
