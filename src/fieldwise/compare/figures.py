"""The paper's figure 1 for its tables: the importance of every field with the published settings
(1a), and the bound over parameters (1b)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..baselines.methods import OURS
from ..files import write_atomically
from ..progress import Say
from ..train import Running, TrainSettings
from ..trend import follow
from ..trend.figures import draw_importance, write_trend
from .parts import Parts
from .results import Result

__all__ = ["RANKS", "THRESHOLDS", "write_figures"]

RANKS = tuple(range(4, 29, 4))  # the paper's grid of constant ranks
THRESHOLDS = {"criteo": 0.420}  # published; for Avazu there is none, so one is found


def write_figures(
    name: str,
    parts: Parts,
    names: Sequence[str],
    results: Sequence[Result],
    folder: Path,
    out: Path,
    *,
    settings: TrainSettings,
    preset: Mapping[str, Any],
    running: Running,
    say: Say,
) -> None:
    """Write figure1a and figure1b, .json and .png each, if our model is among the results.

    `settings` are those of all methods, `preset` our own.
    """
    ours = [r for r in results if r.method.name == OURS and r.fits]
    if not ours:
        say(f"figure 1 is of our model, which has no result here; add {OURS} to the methods")
        return
    if "importance" in ours[0].fits[0]:
        _write_importance(ours[0].fits[0], parts, names, out)
    else:
        say("these fits were made before importance was kept: no figure 1a unless overwritten")
    steps = {k: v for k, v in preset.items() if k != "ranks"}
    body = follow(
        *(parts.problem, names, folder / "figure1b"),
        ranks=RANKS,
        threshold=THRESHOLDS.get(name),
        settings=replace(settings, **steps),
        running=running,
        say=lambda words: say(f"figure 1b: {words}"),
    )
    write_trend({"data": name, "target": parts.about["target"], **body}, out, "figure1b")


def _write_importance(
    fit: Mapping[str, Any], parts: Parts, names: Sequence[str], out: Path
) -> None:
    found = zip(names, fit["importance"], parts.problem.layout.sizes, strict=True)
    body = {
        "settings": fit["settings"],
        "seed": fit["seed"],
        "fields": [{"name": n, "importance": v, "categories": d} for n, v, d in found],
    }
    write_atomically(out / "figure1a.json", (json.dumps(body, indent=1) + "\n").encode())
    picture = draw_importance(names, fit["importance"])
    if picture is not None:
        write_atomically(out / "figure1a.png", picture)
