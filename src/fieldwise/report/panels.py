"""The tabs of the page as HTML: words, tables, and places where charts are drawn."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..explain.html import percent, shown, table_html
from ..explain.shapes import curves, pair_cells, run_names, top_pairs
from .text import calibration_rows, field_rows, metrics, odd_rows, source

__all__ = ["Panel", "panels", "tiles"]

Panel = tuple[str, str, str]  # id, title, body


def panels(numbers: Mapping[str, Any], n_indexed: int, n_cards: int) -> list[Panel]:
    """The tabs that there are numbers for."""
    out = [
        ("overview", "Overview", overview(numbers)),
        ("fields", "Fields", fields_panel(numbers)),
        ("categories", "Categories", categories_panel(numbers, n_indexed, n_cards)),
    ]
    if numbers["rows"]:
        show = percent if numbers["summary"]["task"] == "chance" else shown
        out.append(("rows", "Rows", rows_panel(numbers["rows"], show)))
    quality = quality_panel(numbers)
    if quality:
        out.append(("quality", "Quality", quality))
    return out


def tiles(pairs: Iterable[tuple[str, str]]) -> str:
    """A few large numbers side by side."""
    inner = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in pairs
    )
    return f'<dl class="tiles">{inner}</dl>'


def block(heading: str, words: str, *parts: str) -> str:
    said = f"<p>{html.escape(words)}</p>" if words else ""
    return f'<section class="block"><h3>{html.escape(heading)}</h3>{said}{"".join(parts)}</section>'


def key(*entries: tuple[str, str]) -> str:
    """A legend of colours, from pairs (CSS class, words)."""
    inner = "".join(
        f'<li><i class="{look}"></i>{html.escape(words)}</li>' for look, words in entries
    )
    return f'<ul class="key">{inner}</ul>'


def chart(name: str, caption: str, above: str = "") -> str:
    return (
        f'<figure>{above}<div class="chart" data-chart="{name}"></div>'
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def listed(
    head: Sequence[str], rows: Sequence[Sequence[Any]], words: int, *, most: int = 12
) -> str:
    """A table that may be wide; a long one shows `most` rows and unfolds the rest."""
    most = len(rows) if len(rows) <= most + 3 else most
    first = table_html(head, rows[:most], words=words)
    if len(rows) == most:
        return f'<div class="wide">{first}</div>'
    rest = table_html(head, rows[most:], words=words)
    return (
        f'<div class="wide">{first}<details><summary>{len(rows) - most:,} more</summary>'
        f"{rest}</details></div>"
    )


def beside(left: str, right: str) -> str:
    """A chart and its table, side by side if there is room."""
    return f'<div class="beside">{left}{right}</div>'


def overview(numbers: Mapping[str, Any]) -> str:
    summary = numbers["summary"]
    size = [("fields", shown(summary["fields"])), ("categories", shown(summary["categories"])),
            ("parameters", shown(summary["parameters"]))]  # fmt: skip
    if summary["rows"] is not None:
        size.insert(0, ("rows", shown(summary["rows"])))
    out = [tiles(size)]
    if summary["metrics"]:
        out.append("<h3>On the held-out rows</h3>" + tiles(metrics(summary["metrics"])))
    if numbers.get("data_metrics"):
        where = html.escape(source(numbers))
        out.append(f"<h3>On {where}</h3>" + tiles(metrics(numbers["data_metrics"])))
    if numbers["history"]:
        words = "Loss after every epoch, on the rows learned from and on those held out."
        out.append(block("Training", "", chart("history", words, _runs(numbers["history"]))))
    settings = [(key, _setting(value)) for key, value in summary["settings"].items()]
    if settings:
        shown_settings = (
            f'<div class="wide">{table_html(["setting", "value"], settings, words=2)}</div>'
        )
        out.append(f"<details><summary>Settings</summary>{shown_settings}</details>")
    return "".join(out)


def _runs(history: Sequence[Mapping[str, Any]]) -> str:
    points = curves(history)
    names, kinds = run_names(points), {point["rows"] for point in points}
    runs = [(f"line line{k % 6 + 1}", name) for k, name in enumerate(names)]
    dashes = [("line", "held out")] if "held out" in kinds else []
    return key(*(runs if len(runs) > 1 else []), *dashes, ("line dash", "training"))


def _setting(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_setting(v)}" for k, v in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def fields_panel(numbers: Mapping[str, Any]) -> str:
    fields = numbers["fields"]
    head = ["field", "kind", "categories", "rank", "importance", "by itself", "in pairs"]
    pairs = [(a, b, percent(s)) for a, b, s in top_pairs(fields, numbers["pairs"])]
    two = (
        '<div class="two">'
        + chart("shares", "How much of the spread of scores a field explains: by itself, and half "
                "of what it explains together with each other field.",
                key(("accent", "by itself"), ("soft", "in pairs")))
        + chart("importance", "The paper's importance: how far the models of a field's categories "
                "lie from their mean.")
        + "</div>"
    )  # fmt: skip
    out = [block("Importance", "", two, listed(head, field_rows(fields), 2, most=8))]
    if pairs:
        words = (
            "What two fields say together and neither says alone. The diagonal is what a field "
            "says by itself."
        )
        out.append(block("Pairs of fields", "", beside(chart("pairs", words, _ramps(numbers)),
                         listed(["field", "with", "variance"], pairs, 2, most=10))))  # fmt: skip
    return "".join(out)


def _ramps(numbers: Mapping[str, Any]) -> str:
    cells = pair_cells(numbers["fields"], numbers["pairs"])
    entries = []
    for look, what in (("ramp accent", "as a pair"), ("ramp up", "by itself")):
        most = max((c["share"] for c in cells if c["what"] == what), default=0.0)
        entries.append((look, f"{what}, 0 to {percent(most)}"))
    return key(*entries)


SEARCH = """
<div class="search">
 <label for="query">Find a category</label>
 <div class="query"><input id="query" type="search" role="combobox" aria-expanded="true"
  aria-controls="hits" aria-autocomplete="list" autocomplete="off" spellcheck="false"
  placeholder="type part of a name"><select id="within" aria-label="in the field">
  <option value="">every field</option></select></div>
 <p id="found" role="status"></p>
</div>
<div class="finder">
 <div class="results"><div class="columns" aria-hidden="true"><span>category</span><span>rows</span>
  <span>bias</span><span>distance</span></div>
  <ul id="hits" role="listbox" aria-label="categories found"></ul></div>
 <article id="card" tabindex="-1" aria-live="polite"></article>
</div>
"""


def categories_panel(numbers: Mapping[str, Any], n_indexed: int, n_cards: int) -> str:
    total = int(numbers["categories"]["total"])
    if n_indexed < total:
        said = f"The search knows the {n_indexed:,} most frequent of {total:,} categories"
    else:
        said = f"The search knows all {total:,} categories"
    said += f"; {n_cards:,} of the most frequent have their whole card here."
    out = [f'<section class="block"><h3>Search</h3><p>{said}</p>{SEARCH}</section>']
    if numbers["odd"]:
        words = (
            "Categories whose model lies farther from their field's mean than is typical of the "
            "field (the tick)."
        )
        head = ["field", "category", "rows", "distance", "typical"]
        table = listed(head, odd_rows(numbers["odd"]), 2)
        out.append(block("Odd ones out", "", beside(chart("odd", words), table)))
    return "".join(out)


def rows_panel(found: Mapping[str, Any], show: Callable[[Any], str]) -> str:
    options = "".join(
        f'<option value="{k}">{html.escape(_row_title(k, row, show))}</option>'
        for k, row in enumerate(found["rows"])
    )
    picker = (
        '<div class="picker"><label for="row">Row</label><div class="query">'
        f'<select id="row">{options}</select>'
        '<button type="button" id="previous" aria-label="previous row">←</button>'
        '<button type="button" id="next" aria-label="next row">→</button></div></div>'
    )
    words = (
        "From the score of a typical row to that of this one: exact Shapley values, the largest "
        "first."
    )
    both = beside(chart("waterfall", words), '<div class="wide" id="row-values"></div>')
    return block("Why a row scores as it does", "", picker, both)


def _row_title(k: int, row: Mapping[str, Any], show: Callable[[Any], str]) -> str:
    title = f"{k + 1}: predicted {show(row['prediction'])}"
    return title if row["target"] is None else f"{title}, was {row['target']}"


def quality_panel(numbers: Mapping[str, Any]) -> str:
    """Calibration, slices and the bound, whichever there are."""
    chance, out = numbers["summary"]["task"] == "chance", []
    show = percent if chance else shown
    found = numbers["calibration"]
    if found:
        words = (
            "Rows in bins of equal weight, by prediction: what was predicted, and what was "
            "observed with its 95 % range."
        )
        rows = calibration_rows(found["fields"], show)
        head = ["field", "category", "rows", "predicted", "observed", "error"]
        table = listed(head, rows, 2) if rows else ""
        said = f"On average, predicted and observed differ by {show(found['error'])}."
        out.append(block("Calibration", said, beside(chart("calibration", words), table)))
    if numbers["slices"]:
        rows = [
            (s["field"], s["category"], shown(s["count"]), shown(s["loss"]),
             shown(s["excess"], sign=True))
            for s in numbers["slices"]
        ]  # fmt: skip
        head = ["field", "category", "rows", "logloss" if chance else "loss", "excess"]
        words = "Rows that share a category, and their loss; the dashed line is that of all rows."
        out.append(
            block(
                "Where the model is worst",
                "",
                beside(chart("slices", words), listed(head, rows, 2)),
            )
        )
    if numbers["bound"]:
        out.append(_bound(numbers["bound"]))
    return "".join(out)


def _bound(found: Mapping[str, Any]) -> str:
    said = (
        f"With probability {percent(1 - found['delta'])} over the draw of the {found['n_rows']:,} "
        f"rows, the expected loss is at most {shown(found['total'])}."
    )
    pieces = tiles([("training loss", shown(found["train_loss"])),
                    ("Rademacher complexity", shown(found["rademacher"])),
                    ("Lipschitz constant", shown(found["lipschitz"])),
                    ("loss at most", shown(found["loss_bound"])),
                    ("bound", shown(found["total"]))])  # fmt: skip
    rows = [
        (f["name"], shown(f["n1"]), shown(f["n2"]), shown(f["term"]))
        for f in sorted(found["fields"], key=lambda f: -f["term"])
    ]
    words = "What every field adds to the complexity."
    return block("Generalisation bound", said, pieces, beside(chart("bound", words),
                 listed(["field", "n1", "n2", "term"], rows, 1, most=10)))  # fmt: skip
