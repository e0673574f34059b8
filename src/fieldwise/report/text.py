"""The report as Markdown to read, and as a plain dict for JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..explain.html import percent, shown
from ..explain.shapes import by_share, top_pairs

__all__ = [
    "calibration_rows",
    "field_rows",
    "headline",
    "markdown",
    "metrics",
    "odd_rows",
    "plain",
    "source",
    "table",
]


def plain(value: Any) -> Any:
    """The same with lists for arrays and None for non-finite numbers, ready for JSON."""
    if isinstance(value, Mapping):
        return {str(key): plain(v) for key, v in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "biu":
            return value.tolist()
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def headline(numbers: Mapping[str, Any]) -> str:
    """What was learned from what, in a sentence."""
    summary = numbers["summary"]
    rows = "" if summary["rows"] is None else f"Learned from {summary['rows']:,} rows: "
    said = (
        f"{rows}{summary['fields']:,} fields, {summary['categories']:,} categories, "
        f"{summary['parameters']:,} parameters."
    )
    output, target = summary["output"], summary["target"]
    if output and output != target:
        whole = output if output.startswith(f"{target}=") else f"{target} = {output}"
        said += f" The score that is explained is that of {whole}."
    if summary.get("boosted"):
        said += (
            " Boosted trees make the predictions: rows are explained by the trees; fields, pairs, "
            "categories and training are those of the field-wise score that they read."
        )
    return said


def source(numbers: Mapping[str, Any]) -> str:
    """The file name of the table that the model was evaluated on."""
    return Path(numbers["file"]).name or "the table"


def metrics(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Metrics as text, losses first; the loss only where it has no other name."""
    same = [name for name in found if name != "loss" and found[name] == found.get("loss")]
    names = [name for name in found if not (same and name == "loss")]
    names.sort(key=lambda name: (not name.endswith("loss"), name))
    return [
        (n.replace("_", " "), f"{found[n]:.4f}" if abs(found[n]) < 100 else shown(found[n]))
        for n in names
    ]


def words(name: Any) -> str:
    """A name, escaped for Markdown."""
    text = re.sub(r"\s+", " ", str(name))
    text = re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], *, text: int = 1) -> list[str]:
    """Lines of a Markdown table whose first `text` columns are words."""
    sides = ["---" if k < text else "---:" for k in range(len(head))]
    lines = ["| " + " | ".join(head) + " |", "|" + "|".join(sides) + "|"]
    lines += ["| " + " | ".join(words(cell) for cell in row) + " |" for row in rows]
    return [*lines, ""]


def markdown(numbers: Mapping[str, Any], *, most: int = 20) -> str:
    """The page's content as Markdown tables; of long lists the first `most`."""
    summary = numbers["summary"]
    lines = [f"# {words(numbers['title'])}", "", words(headline(numbers)), ""]
    if summary["metrics"]:
        lines += table(["metric", "held out"], metrics(summary["metrics"]))
    if numbers.get("data_metrics"):
        said = f"on {words(source(numbers))}"
        lines += table(["metric", said], metrics(numbers["data_metrics"]))
    lines += _history(numbers["history"]) + _fields(numbers, most) + _categories(numbers, most)
    if numbers["rows"]:
        lines += _rows(numbers["rows"], summary["unit"], most)
    if numbers["calibration"]:
        lines += _calibration(numbers["calibration"], chance=summary["task"] == "chance")
    if numbers["slices"]:
        loss = "logloss" if summary["task"] == "chance" else "loss"
        head = ["field", "category", "rows", loss, "all rows", "excess"]
        lines += ["## Where the model is worst", ""]
        lines += table(head, [
            (s["field"], s["category"], shown(s["count"]), shown(s["loss"]),
             shown(s["overall"]), shown(s["excess"], sign=True))
            for s in numbers["slices"][:most]
        ], text=2)  # fmt: skip
    if numbers["bound"]:
        lines += _bound(numbers["bound"])
    return "\n".join(lines).rstrip() + "\n"


def _history(history: Sequence[Mapping[str, Any]]) -> list[str]:
    if not history:
        return []
    rows = [
        (r["epoch"], *(_fine(r.get(key)) for key in ("learning_rate", "train_loss", "loss")))
        for r in history
    ]
    head = ["epoch", "learning rate", "training loss", "held-out loss"]
    return ["## Training", "", *table(head, rows, text=0)]


def _fine(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def field_rows(fields: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """name, kind, categories, rank, importance, share by itself and in pairs; by falling share"""
    return [
        (f["name"], f["kind"], shown(f["categories"]), f["rank"], shown(f["importance"]),
         percent(f["share"]), percent(f["pair_share"]))
        for f in (fields[k] for k in by_share(fields))
    ]  # fmt: skip


def odd_rows(odd: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """field, category, rows, distance from the mean model, and what is typical"""
    keys = ("count", "distance", "typical")
    return [(c["field"], c["category"], *(shown(c[key]) for key in keys)) for c in odd]


def calibration_rows(
    fields: Sequence[Mapping[str, Any]], show: Callable[[Any], str]
) -> list[tuple[Any, ...]]:
    """field, category, rows, what was predicted and observed, and the error"""
    keys = ("predicted", "observed", "error")
    return [
        (c["field"], c["category"], shown(c["count"]), *(show(c[key]) for key in keys))
        for c in fields
    ]


def _fields(numbers: Mapping[str, Any], most: int) -> list[str]:
    fields = numbers["fields"]
    head = ["field", "kind", "categories", "rank", "importance", "variance by itself", "in pairs"]
    rows = field_rows(fields)
    pairs = [(a, b, percent(s)) for a, b, s in top_pairs(fields, numbers["pairs"], most)]
    out = ["## Fields", "", *table(head, rows, text=2)]
    if pairs:
        out += ["## Pairs of fields", "", *table(["field", "with", "variance"], pairs, text=2)]
    return out


def _categories(numbers: Mapping[str, Any], most: int) -> list[str]:
    unit, out = numbers["summary"]["unit"], []
    if numbers["cards"]:
        head = ["field", "category", "rows", f"effect, {unit}", "error", "distance", "typical"]
        out += ["## The largest categories", ""]
        out += table(head, [
            (c["field"], c["category"], shown(c["count"]), shown(c["main"], sign=True),
             shown(c["error"]), shown(c["distance"]), shown(c["typical"]))
            for c in numbers["cards"][:most]
        ], text=2)  # fmt: skip
    if numbers["odd"]:
        head = ["field", "category", "rows", "distance", "typical"]
        out += ["## Odd ones out", ""]
        out += table(head, odd_rows(numbers["odd"][:most]), text=2)
    return out


def _rows(found: Mapping[str, Any], unit: str, most: int) -> list[str]:
    """A line for each row, with the three fields that move it most."""
    body = []
    for number, row in enumerate(found["rows"][:most], 1):
        effects = np.asarray(row["effects"], float)
        top = np.argsort(-np.abs(effects), kind="stable")[:3]
        why = "; ".join(
            f"{found['names'][k]} = {row['values'][k]} ({shown(effects[k], sign=True)})"
            for k in top
        )
        target = "–" if row["target"] is None else row["target"]
        body.append((number, shown(row["score"], sign=True), shown(row["prediction"]), target, why))
    head = ["row", f"score, {unit}", "prediction", "target", "most by"]
    return ["## Rows", "", f"A typical row scores {shown(found['base'], sign=True)}.", "",
            *table(head, body, text=0)]  # fmt: skip


def _calibration(found: Mapping[str, Any], *, chance: bool) -> list[str]:
    show = percent if chance else shown
    bins = [
        (show(b["predicted"]), show(b["observed"]), f"{show(b['low'])} to {show(b['high'])}",
         shown(b["count"]))
        for b in found["bins"]
    ]  # fmt: skip
    out = ["## Calibration", "", f"Calibration error {show(found['error'])}.", ""]
    out += table(["predicted", "observed", "95 %", "rows"], bins, text=0)
    if found["fields"]:
        head = ["field", "category", "rows", "predicted", "observed", "error"]
        out += table(head, calibration_rows(found["fields"], show), text=2)
    return out


def _bound(found: Mapping[str, Any]) -> list[str]:
    said = (
        f"With probability {percent(1 - found['delta'])} the expected loss is at most "
        f"{shown(found['total'])}: training loss {shown(found['train_loss'])} plus what the "
        f"{shown(found['n_rows'])} rows leave open."
    )
    rows = [(f["name"], shown(f["n1"]), shown(f["n2"]), shown(f["term"])) for f in found["fields"]]
    return ["## Generalisation bound", "", said, "", *table(["field", "n1", "n2", "term"], rows)]
