"""Results as a Markdown table, JSON, a plot, and a page with all of it."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

from ..baselines.methods import OURS
from ..files import write_atomically

__all__ = ["markdown", "write_pages"]

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .8rem; text-align: right; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, td.words, th.words { text-align: left; }
tr.best td { font-weight: 600; }
img { max-width: 100%; background: white; border-radius: 6px; }
"""


def write_pages(body: dict[str, Any], out: Path) -> None:
    """Write results.json, .md, .png (only with matplotlib) and .html."""
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "results.json", (json.dumps(body, indent=1) + "\n").encode())
    write_atomically(out / "results.md", markdown(body).encode())
    picture = drawn(body)
    if picture is not None:
        write_atomically(out / "results.png", picture)
    write_atomically(out / "results.html", page(body, picture).encode())


def headings(body: dict[str, Any]) -> list[str]:
    names = ["method", "test logloss", "AUC" if body["table"]["classes"] == 2 else "accuracy"]
    names += [f"logloss less {OURS}'s (95 %)", "training", "parameters"]
    if any("published" in row for row in body["methods"]):
        names += ["published logloss", "difference", "published AUC", "published parameters"]
    return names


def cells(row: dict[str, Any], body: dict[str, Any]) -> list[str]:
    """A method's row as text; unknown figures are empty, with the reason."""
    published = _published(row) if any("published" in r for r in body["methods"]) else []
    if row["logloss"] is None:
        return [row["name"], f"{row['status']}: {row['note']}", "", "", "", "", *published]
    second = row["auc"] if row["auc"] is not None else row.get("accuracy")
    gap = row.get("difference")
    between = f"{gap['mean']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})" if gap else ""
    spread = f" ± {row['logloss_deviation']:.4f}" if "logloss_deviation" in row else ""
    name = row["name"] if row["status"] == "ok" else f"{row['name']} ({row['note']})"
    size = f"{row['parameters']:,}" + (" trees" if row["counts"] == "trees" else "")
    shown = "" if second is None else f"{second:.4f}"
    return [name, f"{row['logloss']:.4f}{spread}", shown, between, duration(row["seconds"]), size,
            *published]  # fmt: skip


def _published(row: dict[str, Any]) -> list[str]:
    said = row.get("published")
    if said is None:
        return [""] * 4
    away = ""
    if row["logloss"] is not None:
        gap = row["logloss"] - said["logloss"]
        away = f"{gap:+.4f}" + (" !" if abs(gap) >= 0.001 else "")
    loss = f"{said['logloss']:.4f} ± {said['deviation']:.5f}"
    return [loss, away, f"{said['auc']:.4f}", said["parameters"]]


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def best(body: dict[str, Any]) -> str | None:
    good = [row for row in body["methods"] if row["logloss"] is not None]
    return min(good, key=lambda row: row["logloss"])["name"] if good else None


def about(body: dict[str, Any]) -> list[str]:
    """Sentences on what was compared."""
    table = body["table"]
    rows = table["rows"]
    lines = [
        f"{rows['training']:,} rows to learn from, {rows['validation']:,} to choose by and "
        f"{rows['test']:,} to be read once (split: {table['split']}); {table['fields']} fields, "
        f"{table['categories']:,} categories; target {table['target']}, "
        + (f"{table['share']:.1%} positive." if table["classes"] == 2
           else f"{table['classes']} classes.")
    ]  # fmt: skip
    seeds = max((row.get("seeds", 0) for row in body["methods"]), default=0)
    if body.get("trials"):
        lines.append(
            f"Settings: the best of up to {body['trials']} trials a method on the validation rows."
        )
    if seeds > 1:
        lines.append(f"Figures are means over {seeds} seeds, ± their standard deviation.")
    lines += body.get("remarks", [])
    return lines


def markdown(body: dict[str, Any]) -> str:
    """The table of results."""
    head, top = headings(body), best(body)
    lines = [f"# {body['data']}", "", *(f"{line}\n" for line in about(body))]
    lines += ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for row in body["methods"]:
        shown = [cell.replace("|", "\\|") for cell in cells(row, body)]
        if row["name"] == top:
            shown = [f"**{cell}**" if cell else cell for cell in shown]
        lines.append("| " + " | ".join(shown) + " |")
    lines += ["", "Settings:", ""]
    lines += [f"- {row['name']}: {_settings(row)}" for row in body["methods"] if "settings" in row]
    return "\n".join(lines) + "\n"


def _settings(row: dict[str, Any]) -> str:
    pairs = [f"{k} {'by itself' if v is None else v}" for k, v in row["settings"].items()]
    return ", ".join(pairs) + (f" ({row['note']})" if row["note"] else "")


def drawn(body: dict[str, Any]) -> bytes | None:
    """Logloss and training time of every method, best on top."""
    rows = sorted(
        (row for row in body["methods"] if row["logloss"] is not None),
        key=lambda row: -row["logloss"],
    )
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    if not rows:
        return None
    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    names = [row["name"] for row in rows]
    colours = ["#d1495b" if name == OURS else "#30638e" for name in names]
    size = (10, 1.4 + 0.36 * len(rows))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=size, sharey=True)
    spread = [row.get("logloss_deviation", 0.0) for row in rows]
    values = [row["logloss"] for row in rows]
    for k, colour in enumerate(colours):
        left.errorbar(values[k], k, xerr=spread[k], fmt="o", color=colour, capsize=3)
    left.set_yticks(range(len(rows)), names)
    left.set_xlabel("test logloss, lower is better")
    left.grid(axis="x", alpha=0.3)
    seconds = [max(row["seconds"], 1e-3) for row in rows]
    bars = right.barh(range(len(rows)), seconds, color=colours)
    right.bar_label(bars, [duration(row["seconds"]) for row in rows], padding=4)
    right.set_xscale("log")
    right.set_xlim(min(seconds) / 3, max(seconds) * 4)  # room for labels
    right.xaxis.set_minor_formatter(ticker.NullFormatter())
    right.set_xlabel("training, seconds")
    figure.tight_layout()
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=130)
    pyplot.close(figure)
    return out.getvalue()


def page(body: dict[str, Any], picture: bytes | None) -> str:
    """The results as one self-contained HTML file."""
    title = html.escape(f"{body['data']}: methods compared")
    top = best(body)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in headings(body))
    lines = []
    for row in body["methods"]:
        kind = ' class="best"' if row["name"] == top else ""
        inner = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells(row, body))
        lines.append(f"<tr{kind}>{inner}</tr>")
    settings = "".join(
        f"<li>{html.escape(row['name'])}: {html.escape(_settings(row))}</li>"
        for row in body["methods"]
        if "settings" in row
    )
    shown = ""
    if picture is not None:
        code = base64.b64encode(picture).decode()
        shown = f'<img alt="logloss and training time" src="data:image/png;base64,{code}">'
    words = "".join(f"<p>{html.escape(line)}</p>" for line in about(body))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>{words}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody>'
        f"</table></div>{shown}<h2>Settings</h2><ul>{settings}</ul></body></html>\n"
    )
