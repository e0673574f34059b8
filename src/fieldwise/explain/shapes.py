"""A report's numbers in the form that plots need. All arithmetic of plots is here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["by_share", "curves", "pair_cells", "run_names", "top_pairs", "waterfall"]


def curves(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A point for every loss of every epoch. A new run starts where epochs start again."""
    run, last, out = 1, 0, []
    for record in history:
        run += record["epoch"] <= last
        last = record["epoch"]
        rate = record.get("learning_rate")
        name = f"run {run}" if rate is None else f"learning rate {rate:.3g}"
        for key, rows in (("train_loss", "training"), ("loss", "held out")):
            if record.get(key) is not None:
                out.append(
                    {"run": run, "name": name, "epoch": last, "rows": rows, "loss": record[key]}
                )
    return out


def run_names(points: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(point["name"] for point in points))


def by_share(fields: Sequence[Mapping[str, Any]]) -> list[int]:
    """Indices of fields, by falling share of the score's variance."""
    return sorted(range(len(fields)), key=lambda k: -(fields[k]["share"] + fields[k]["pair_share"]))


def pair_cells(
    fields: Sequence[Mapping[str, Any]], pairs: Any, most: int = 40
) -> list[dict[str, Any]]:
    """The cells of the heat map, of the `most` fields with the largest shares."""
    shares, kept = np.asarray(pairs, float), by_share(fields)[:most]
    return [
        {
            "one": fields[i]["name"],
            "other": fields[j]["name"],
            "share": float(shares[i, j]),
            "what": "by itself" if i == j else "as a pair",
        }
        for i in kept
        for j in kept
    ]


def top_pairs(
    fields: Sequence[Mapping[str, Any]], pairs: Any, most: int = 20
) -> list[tuple[str, str, float]]:
    """Pairs of fields by falling share of the score's variance."""
    shares = np.asarray(pairs, float)
    low, high = np.triu_indices(len(fields), 1)
    order = np.argsort(-shares[low, high], kind="stable")[:most]
    found = ((low[k], high[k]) for k in order)
    return [(fields[i]["name"], fields[j]["name"], float(shares[i, j])) for i, j in found]


def waterfall(
    row: Mapping[str, Any], base: float, names: Sequence[str], most: int = 14
) -> list[dict[str, Any]]:
    """From the base to the score, a step for each field, the largest first, small ones merged."""
    effects = np.asarray(row["effects"], float)
    order = np.argsort(-np.abs(effects), kind="stable")
    if len(order) > most:
        shown, rest = order[: most - 1], order[most - 1 :]
    else:
        shown, rest = order, order[:0]
    steps = [
        {"field": names[k], "value": row["values"][k], "label": f"{names[k]} = {row['values'][k]}",
         "effect": float(effects[k])}
        for k in shown
    ]  # fmt: skip
    if len(rest):
        words = f"{len(rest)} other fields"
        steps.append({"field": words, "value": "", "label": words,
                      "effect": float(effects[rest].sum())})  # fmt: skip
    at = float(base)
    for step in steps:
        step["start"], step["end"] = at, at + step["effect"]
        step["far"] = max(at, step["end"])
        step["kind"] = "raises" if step["effect"] > 0 else "lowers"
        at = step["end"]
    ends = [("a typical row", float(base)), ("this row", float(row["score"]))]
    first, last = (
        {"field": words, "value": "", "label": words, "effect": value, "start": value,
         "end": value, "far": value, "kind": "whole"}
        for words, value in ends
    )  # fmt: skip
    return [first, *steps, last]
