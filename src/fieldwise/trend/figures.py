"""The paper's figure 1, as plots and text: importance of fields (1a), the bound over parameters
(1b)."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import write_atomically
from ..report.text import table

__all__ = ["HEADINGS", "cells", "draw_importance", "draw_trend", "trend_markdown", "write_trend"]

HEADINGS = (
    "rank", "parameters", "steps", "training loss", "validation loss", "sum of N1 + N2",
    "complexity", "bound",
)  # fmt: skip
OURS = "#30638e"
AWAY = "#d1495b"
MOST_FIELDS = 15  # of the gap, in text


def write_trend(body: Mapping[str, Any], out: Path, name: str = "bound") -> None:
    """Write NAME.json, .md and .png, the last only with matplotlib."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / f"{name}.json", (json.dumps(body, indent=1) + "\n").encode())
    write_atomically(out / f"{name}.md", trend_markdown(body, name).encode())
    picture = draw_trend(body)
    if picture is not None:
        write_atomically(out / f"{name}.png", picture)


def cells(row: Mapping[str, Any]) -> list[str]:
    """A rank's row as text."""
    first = [str(row["rank"]), f"{row['parameters']:,}"]
    if row["status"] == "failed":
        return [*first, f"failed: {row['note']}", "", "", "", "", ""]
    reached = "" if row["status"] == "ok" else " (not reached)"
    bound = row["bound"]
    return [
        *first,
        f"{row['steps']:,}",
        f"{row['train_loss']:.4f}{reached}",
        f"{row['validation_loss']:.4f}",
        f"{bound['sum']:.2f}",
        f"{bound['rademacher']:.3f}",
        f"{bound['total']:.3f}",
    ]


def about(body: Mapping[str, Any]) -> list[str]:
    """Sentences on what was done."""
    rows, settings = body["rows"], body["settings"]
    where = body["chosen"] or "as given"
    return [
        f"Models of every rank on {rows['training']:,} rows, {body['fields']} fields and "
        f"{body['categories']:,} categories, each trained until its loss on {rows['sample']:,} of "
        f"those rows was below {body['threshold']:g} ({where}); all else is the same: "
        f"learning_rate {settings['learning_rate']:g}, weight_decay {settings['weight_decay']:g}, "
        f"penalty {settings['penalty']:g}, at most {settings['epochs']} epochs.",
        "Complexity bounds the empirical Rademacher complexity; the bound is the training loss, "
        "twice that, and a term for chance (delta 0.05, losses of at most 5). It is loose, as such "
        "bounds are: its trend is what matters.",
    ]


def trend_markdown(body: Mapping[str, Any], name: str) -> str:
    title = f"{body['data']}: the bound over ranks" if "data" in body else "The bound over ranks"
    lines = [f"# {title}", "", *(f"{line}\n" for line in about(body))]
    lines += table(HEADINGS, map(cells, body["ranks"]), text=0)
    lines += [f"![the bound over parameters]({name}.png)", ""]
    row = best_row(body)
    if row is not None:
        lines += _gap_lines(row)
    return "\n".join(lines) + "\n"


def best_row(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the rank with the smallest validation loss."""
    found = [row for row in body["ranks"] if row["rank"] == body["best"]]
    return found[0] if found else None


def _gap_lines(row: Mapping[str, Any]) -> list[str]:
    gap = row["validation_loss"] - row["train_loss"]
    lines = [
        f"## Which fields carry the gap of rank {row['rank']}",
        "",
        f"The validation loss is {gap:+.4f} above the training loss. A field helps by the rise of "
        "the loss once it is unknown; how much more it helps on rows it was trained on than on "
        "held-out ones is its gap. Gaps do not add up to the whole: fields share what they know.",
        "",
    ]
    head = ["field", "helps, training rows", "helps, held-out rows", "gap"]
    keys = ("training", "held_out", "gap")
    shown = row["gap"][:MOST_FIELDS]
    lines += table(head, [(f["name"], *(f"{f[key]:+.4f}" for key in keys)) for f in shown])
    left = len(row["gap"]) - MOST_FIELDS
    return [*lines, f"{left} fields with smaller gaps are left out."] if left > 0 else lines[:-1]


def _axes(size: tuple[float, float]) -> Any:
    """pyplot, a figure and its axes; None without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot, *pyplot.subplots(figsize=size)


def _png(pyplot: Any, figure: Any) -> bytes:
    out = io.BytesIO()
    figure.tight_layout()
    figure.savefig(out, format="png", dpi=120)
    pyplot.close(figure)
    return out.getvalue()


def draw_trend(body: Mapping[str, Any]) -> bytes | None:
    """Plot sum_i (N1_i + N2_i) over the number of parameters; ranks that stayed above the threshold
    are hollow points off the line."""
    rows = [row for row in body["ranks"] if row["status"] != "failed"]
    drawing = _axes((7, 4)) if rows else None
    if drawing is None:
        return None
    pyplot, figure, axes = drawing
    points = [(row["parameters"], row["bound"]["sum"]) for row in rows]
    ok = [point for point, row in zip(points, rows, strict=True) if row["status"] == "ok"]
    away = [point for point, row in zip(points, rows, strict=True) if row["status"] != "ok"]
    if ok:
        axes.plot(*zip(*ok, strict=True), "o-", color=OURS, label="below the threshold")
    if away:
        label = "threshold not reached"
        axes.plot(*zip(*away, strict=True), "o", mfc="none", color=AWAY, label=label)
        axes.legend()
    box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
    for point, row in zip(points, rows, strict=True):
        about = {"textcoords": "offset points", "ha": "center", "bbox": box}
        axes.annotate(str(row["rank"]), point, (0, 9), **about)
    if points[-1][0] > 10 * points[0][0]:
        axes.set_xscale("log")
    axes.set_xticks([x for x, _ in points], [_short(x) for x, _ in points], rotation=30)
    axes.minorticks_off()
    axes.margins(x=0.1, y=0.15)
    axes.set_xlabel("parameters")
    axes.set_ylabel(r"$\sum_i (N_1^{(i)} + N_2^{(i)})$")
    title = f"Training loss below {body['threshold']:g}; numbers at points are ranks"
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    return _png(pyplot, figure)


def _short(number: float) -> str:
    for size, word in ((1e6, " M"), (1e3, " k")):
        if number >= size:
            return f"{number / size:.3g}{word}"
    return f"{number:g}"


def draw_importance(names: Sequence[str], importance: Sequence[float]) -> bytes | None:
    """Plot ||W_b - mean||_F / d_i of every field, in the order of the table."""
    drawing = _axes((max(6.0, 1.5 + 0.24 * len(names)), 4))
    if drawing is None:
        return None
    pyplot, figure, axes = drawing
    axes.bar(range(len(names)), importance, color=OURS)
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.margins(x=0.01)
    axes.set_ylabel("importance")
    axes.grid(axis="y", alpha=0.3)
    return _png(pyplot, figure)
