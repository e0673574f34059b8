"""Targets and weights in the form engines take; a trained table back in the targets' own units.

Targets of squared, absolute and huber are scaled to centre 0 and spread 1, so that the same
learning rates suit any unit; the trained table is scaled back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .data.shuffle import Table, row_weights
from .errors import DataError, SettingError
from .layout import Layout
from .losses import LARGEST_NUMBER, LOSSES, check_target, check_weight
from .maths import fold, mean_of_outputs
from .objective import Head, Objective

__all__ = ["Scale", "aggregated", "folded", "scale_of", "weights_of"]

READ_ROWS = 1 << 16
FARTHEST = 1e6  # spreads that a target's centre may lie from 0: scores have 7 digits
TARGET_ROWS = 1 << 22  # rows that the outputs' initial constants are computed from, at most


@dataclass(frozen=True)
class Scale:
    """How targets are scaled for the engine: (y - center) / spread, for each head, and the scores
    to start from, `offsets` (K,), in that scale. For other losses than squared, absolute and huber
    center is 0 and spread 1."""

    offsets: np.ndarray
    center: np.ndarray
    spread: np.ndarray

    def of_outputs(self, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
        """The center and spread of every output, (K,) each"""
        targets = [t for head, _, t in objective.copies for _ in range(head.size)]
        return self.center[targets], self.spread[targets]

    def of_loss(self, objective: Objective) -> float:
        """The factor from the engine's loss to that in the target's units; of several targets 1."""
        if len(objective.heads) > 1:
            return 1.0
        power = {"squared": 2, "huber": 2, "absolute": 1}.get(objective.heads[0].loss, 0)
        return float(self.spread[0] ** power)

    def scaled(self, objective: Objective) -> Objective:
        """The objective with huber's delta in the engine's scale."""
        pairs = zip(objective.heads, self.spread.tolist(), strict=True)
        heads = tuple(replace(head, delta=head.delta / spread) for head, spread in pairs)
        return replace(objective, heads=heads)


def scale_of(rows: Table, only: np.ndarray | None, objective: Objective) -> Scale:
    """The scale of targets and the scores to start from, computed from (a sample of) the rows."""
    stride = -(-rows.n_rows // TARGET_ROWS)
    targets, weights = [], []
    for start in range(0, rows.n_rows, READ_ROWS):
        batch = rows.read(start, min(start + READ_ROWS, rows.n_rows))
        kept = slice(None) if only is None else only[start : start + READ_ROWS]
        y = batch["target"][kept][::stride]
        targets.append(y)
        weights.append(
            batch["weight"][kept][::stride] if "weight" in batch else np.ones((len(y), 1))
        )
    y, w = np.concatenate(targets).astype(np.float64), np.concatenate(weights).astype(np.float64)
    if not w.sum() > 0:
        raise SettingError("the rows to train on have no weight; check the weights and the split")
    check_weight(w[:, 0])
    center, spread = np.zeros(y.shape[1]), np.ones(y.shape[1])
    for k, head in enumerate(objective.heads):
        check_target(head.loss, y[:, k])
        seen = y[w[:, 0] > 0, k]
        if head.is_class and seen.min() == seen.max() and seen[0] in (0, 1):
            raise SettingError(
                "the rows to train on have one class only; the target needs two, check the split"
            )
        if head.is_scaled:
            center[k], spread[k] = _measure(head, y[:, k], w[:, 0])
    offsets = objective.starts((y - center) / spread, w)
    return Scale(offsets, center, spread)


def _measure(head: Head, y: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """The center and spread of a target's numbers; refuses those that float32 cannot resolve."""
    if y.min() == y.max():
        return float(y[0]), 1.0
    center = float(LOSSES[head.loss].start(y, w))
    away = y - center
    widest = float(np.abs(away).max())  # divided by: squares may overflow
    spread = widest * float(np.sqrt(np.sum(w * (away / widest) ** 2) / w.sum()))
    if spread == 0:  # all equal, except in rows of weight zero
        return center, 1.0
    if not 1 / LARGEST_NUMBER <= spread <= LARGEST_NUMBER:
        raise DataError(
            f"the target's numbers spread over {spread:g}, which must lie between "
            f"{1 / LARGEST_NUMBER:g} and {LARGEST_NUMBER:g}; learn the target times a number, or "
            "its logarithm"
        )
    if abs(center) > FARTHEST * spread:
        raise DataError(
            f"the target lies around {center:g} with a spread of only {spread:g}, too small for "
            f"scores of 32 bits; subtract {center:g} and add it to predictions"
        )
    return center, spread


def weights_of(
    batch: Mapping[str, np.ndarray], objective: Objective, *, bagging: bool, seed: int
) -> np.ndarray | None:
    """Weights (n, 1) or None; with bagging (n, heads of all members), times how often each member
    drew the row.

    Draws depend only on the row's codes, so they are the same in every epoch, and for equal rows.
    """
    weight = batch.get("weight")
    if not bagging or objective.n_members == 1:
        return weight
    key = np.random.SeedSequence([seed, 303])
    width = batch["codes"].shape[1]
    raw = np.random.Philox(key).random_raw(width + objective.n_members)
    mixed = batch["codes"].astype(np.uint64) @ (raw[:width] | np.uint64(1))
    drawn = []
    for salt in raw[width:]:
        bits = _splitmix(mixed + salt)
        chance = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        drawn.append(np.searchsorted(POISSON, chance, side="right").astype(np.float64))
    out = np.repeat(np.stack(drawn, axis=1), len(objective.heads), axis=1)
    return out if weight is None else out * weight


POISSON = np.cumsum(np.exp(-1.0) / np.cumprod([1.0, *range(1, 12)]))  # P(draws <= k) of mean 1


def _splitmix(x: np.ndarray) -> np.ndarray:
    """A 64-bit hash; every bit depends on all bits of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def folded(
    table: np.ndarray,
    layout: Layout,
    objective: Objective,
    scale: Scale,
    field_weights: np.ndarray,
) -> tuple[np.ndarray, Layout, Objective, np.ndarray]:
    """The final model of a trained table: table, layout, objective and offsets (K,). Field weights,
    the mean over members and the targets' scale are folded into the table."""
    center, spread = scale.of_outputs(objective)
    offsets = scale.offsets * spread + center
    factors = spread[:, None] * field_weights
    table = table if (factors == 1).all() else fold(table, layout, factors)
    if objective.n_members > 1 and not objective.is_vote:
        table, layout = mean_of_outputs(table, layout, objective.n_members)
        offsets = offsets.reshape(objective.n_members, -1).mean(axis=0)
    return table, layout, objective.plain(), offsets


def aggregated(arrays: Mapping[str, np.ndarray], heads: Sequence[Head]) -> dict[str, np.ndarray]:
    """Each distinct row once, with its weights summed; two-class targets become their mean.

    Rows are in order of first appearance.
    """
    import polars as pl

    merge = all(head.loss == "logistic" for head in heads)
    columns: dict[str, np.ndarray] = {}
    for name in ("codes", "values", *(() if merge else ("target",))):
        if name in arrays:
            columns |= {f"{name} {j}": arrays[name][:, j] for j in range(arrays[name].shape[1])}
    keys = list(columns)
    y = arrays["target"]
    w = row_weights(arrays)
    sums = {f"sum {k}": w * y[:, k] for k in range(y.shape[1])} if merge else {}
    frame = pl.DataFrame({**columns, "weight": w, **sums})
    found = frame.group_by(keys, maintain_order=True).agg(pl.exclude(keys).sum())
    weight = found["weight"].to_numpy()
    out = {"weight": weight[:, None]}
    for name in ("codes", "values", "target"):
        mine = [k for k in keys if k.startswith(f"{name} ")]
        if mine:
            out[name] = found.select(mine).to_numpy().astype(arrays[name].dtype)
    if merge:
        total = found.select(sums.keys()).to_numpy()
        out["target"] = total / np.maximum(weight, 1e-300)[:, None]
    return out
