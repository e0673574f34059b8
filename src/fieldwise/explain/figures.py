"""The report's plots for notebooks and papers, by matplotlib. Each takes a part of the numbers and
optionally axes to draw on, and returns the axes; `axes.figure.savefig` writes it. Without axes it
makes a figure outside pyplot's list, so that nothing is left open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MissingExtra
from .shapes import by_share, curves, run_names, waterfall

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "plot_calibration",
    "plot_card",
    "plot_history",
    "plot_importance",
    "plot_pairs",
    "plot_waterfall",
]

ACCENT, SOFT, UP, DOWN, MUTED = "#2f6690", "#9cc0dc", "#cf5c50", "#3d7eb0", "#667080"
LINES = ["#2f6690", "#cf5c50", "#5b8c5a", "#8a6bb0", "#c58b2b", "#4c9a9a"]
STEP = 0.26  # inches per bar
LONG = 36  # letters of a name, at most


def _axes(ax: Axes | None, height: float, width: float = 7.0) -> Axes:
    if ax is None:
        try:
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        except ImportError as error:
            raise MissingExtra("matplotlib", "report") from error
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _plain(text: Any) -> str:
    """A name on one line, not too long; a dollar starts no formula."""
    text = " ".join(str(text).split())
    return (text if len(text) <= LONG else text[: LONG - 1] + "…").replace("$", r"\$")


def _bars(ax: Axes, names: Sequence[str]) -> np.ndarray:
    """Positions of bars, the first on top."""
    places = np.arange(len(names))
    ax.set_yticks(places, [_plain(name) for name in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", alpha=0.25)
    ax.set_axisbelow(True)
    return places


def plot_importance(
    fields: Sequence[Mapping[str, Any]], ax: Axes | None = None, *, most: int = 40
) -> Axes:
    """Shares of the score's variance by field: by itself, and in pairs."""
    top = [fields[k] for k in by_share(fields)[:most]]
    ax = _axes(ax, 1 + STEP * len(top))
    places = _bars(ax, [f["name"] for f in top])
    own = np.array([f["share"] for f in top], float)
    ax.barh(places, own, 0.7, color=ACCENT, label="by itself")
    pairs = [f["pair_share"] for f in top]
    ax.barh(places, pairs, 0.7, left=own, color=SOFT, label="in pairs")
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    ax.set_xlabel("share of the score's variance")
    ax.legend(frameon=False, loc="lower right")
    return ax


def plot_pairs(
    fields: Sequence[Mapping[str, Any]], pairs: Any, ax: Axes | None = None, *, most: int = 40
) -> Axes:
    """The shares of pairs of fields; on the diagonal, in red, those of fields by themselves."""
    kept = by_share(fields)[:most]
    shares = np.asarray(pairs, float)[np.ix_(kept, kept)]
    own = np.eye(len(kept), dtype=bool)
    side = max(4.5, 1.6 + STEP * len(kept))
    ax = _axes(ax, side, side + 3)
    names = [_plain(fields[k]["name"]) for k in kept]
    for mask, colours, words in ((own, "Blues", "as a pair"), (~own, "Reds", "by itself")):
        part = np.ma.masked_array(shares, mask)
        top = float(part.max()) if part.count() else 1.0
        picture = ax.imshow(part, cmap=colours, vmin=0, vmax=top or 1.0)
        bar = ax.figure.colorbar(picture, ax=ax, shrink=0.6, pad=0.02)
        bar.set_label(f"share of variance, {words}")
        bar.outline.set_visible(False)
    ax.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(names)), names)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def plot_history(history: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Axes:
    """Loss after every epoch; a colour for each run, dashed on the training rows."""
    ax = _axes(ax, 3.6)
    points = curves(history)
    names = run_names(points)
    for run, rows in dict.fromkeys((p["run"], p["rows"]) for p in points):
        mine = [p for p in points if (p["run"], p["rows"]) == (run, rows)]
        label = f"{mine[0]['name']}, {rows}" if len(names) > 1 else rows
        colour = LINES[names.index(mine[0]["name"]) % len(LINES)]
        style = "--" if rows == "training" else "-"
        epochs, losses = [p["epoch"] for p in mine], [p["loss"] for p in mine]
        ax.plot(epochs, losses, style, marker="o", ms=4, color=colour, label=label)
    ax.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    ax.set_xlabel("epoch")
    ax.set_ylabel("loss")
    ax.grid(axis="y", alpha=0.25)
    if points:
        ax.legend(frameon=False)
    return ax


def plot_calibration(calibration: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Observed against predicted means, with 95 % intervals."""
    ax = _axes(ax, 4.6, 4.8)
    bins = calibration["bins"]
    predicted, observed, low, high = (
        np.array([b[key] for b in bins], float) for key in ("predicted", "observed", "low", "high")
    )
    ends = [min(predicted.min(), low.min()), max(predicted.max(), high.max())]
    ax.plot(ends, ends, "--", color=MUTED, lw=1)
    ax.vlines(predicted, low, high, color=SOFT, lw=2)
    ax.plot(predicted, observed, "o", color=ACCENT, ms=5)
    ax.set_xlabel("predicted")
    ax.set_ylabel("observed")
    ax.grid(alpha=0.25)
    return ax


def plot_waterfall(
    row: Mapping[str, Any],
    base: float,
    names: Sequence[str],
    ax: Axes | None = None,
    *,
    unit: str = "log-odds",
    most: int = 14,
) -> Axes:
    """From the score of a typical row to this row's, a step for each field."""
    steps = waterfall(row, base, names, most)
    ax = _axes(ax, 1 + STEP * len(steps))
    places = _bars(ax, [step["label"] for step in steps])
    colours = {"raises": UP, "lowers": DOWN, "whole": MUTED}
    start = np.array([step["start"] for step in steps])
    end = np.array([step["end"] for step in steps])
    ax.barh(places, end - start, 0.62, left=start, color=[colours[s["kind"]] for s in steps])
    for place, step in zip(places, steps, strict=True):
        if step["kind"] == "whole":
            ax.plot(step["end"], place, "|", color=MUTED, ms=12, mew=3)
        ax.annotate(f"{step['effect']:+.2f}", (step["far"], place), xytext=(6, 0),
                    textcoords="offset points", va="center", fontsize=9)  # fmt: skip
    low, high = min(start.min(), end.min()), max(start.max(), end.max())
    room = 0.08 * (high - low) or 1.0
    ax.set_xlim(low - room, high + 2 * room)  # room for the words to the right of bars
    ax.set_xlabel(unit)
    return ax


def plot_card(
    card: Mapping[str, Any], ax: Axes | None = None, *, unit: str = "log-odds", most: int = 15
) -> Axes:
    """The strongest weights of a category's own model."""
    items = [
        (f"{partner['field']} = {item[0]}", float(item[1]))
        for partner in card["partners"]
        for item in (*partner["for"], *partner["against"])
    ]
    items = sorted(items, key=lambda item: -abs(item[1]))[:most]
    items.sort(key=lambda item: -item[1])
    ax = _axes(ax, 1.2 + STEP * len(items))
    places = _bars(ax, [name for name, _ in items])
    weights = [weight for _, weight in items]
    ax.barh(places, weights, 0.7, color=[UP if w > 0 else DOWN for w in weights])
    ax.axvline(0, color=MUTED, lw=0.8)
    ax.set_xlabel(f"weight, {unit}")
    ax.set_title(_plain(f"{card['field']} = {card['category']}"), loc="left", fontsize=11)
    return ax
