"""How far the loss on new rows can exceed the training loss: the paper's bound, field by field, and
which fields help more on their training rows than on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .. import maths
from ..errors import SettingError
from ..layout import Layout
from ..objective import Objective
from .rows import Marginals

__all__ = ["Bound", "Sample", "bound_of", "check_bounded", "gap_by_field"]

DELTA = 0.05
LIPSCHITZ = 1.0  # of logloss
LOSS_BOUND = 5.0  # the logloss of a probability of 0.7 %; larger losses count as 5


@dataclass(frozen=True)
class Bound:
    """With probability 1 - delta over the draw of n training rows, the expected loss is at most

    total = training loss + 2 L rademacher + 3 c sqrt(log(2 / delta) / 2n)

    for all models whose norms are within n1 and n2, were those fixed beforehand; losses above c
    count as c. See docs/maths.md.

    Parameters
    ----------
    names : the m fields.
    n1, n2 : (m,), the norms N1_i = ||W_b - mean||_F and N2_i = ||mean||_F.
    rows, sums : (m,), as `maths.reach` returns them; m where all fields are categories.
    n_rows : n, the number of training rows.
    train_loss : the mean loss on them.
    delta : the probability that the bound does not hold.
    lipschitz : L, the Lipschitz constant of the loss.
    loss_bound : c, the largest loss that counts.
    """

    names: Sequence[str]
    n1: np.ndarray
    n2: np.ndarray
    rows: np.ndarray
    sums: np.ndarray
    n_rows: int
    train_loss: float
    delta: float = DELTA
    lipschitz: float = LIPSCHITZ
    loss_bound: float = LOSS_BOUND

    def __post_init__(self) -> None:
        if self.n_rows < 1:
            raise SettingError(f"n_rows={self.n_rows} must be at least 1")
        if not 0 < self.delta < 1:
            raise SettingError(f"delta={self.delta} must lie between 0 and 1")
        if not (self.lipschitz > 0 and self.loss_bound > 0):
            raise SettingError(
                f"lipschitz={self.lipschitz} and loss_bound={self.loss_bound} must be more than 0"
            )

    @cached_property
    def terms(self) -> np.ndarray:
        """(m,) what every field adds to `rademacher`"""
        return maths.bound_terms(self.n1, self.n2, self.rows, self.sums, self.n_rows)

    @property
    def sum(self) -> float:
        """sum_i (N1_i + N2_i), the trend of the paper's figure 1b"""
        return float(self.n1.sum() + self.n2.sum())

    @property
    def rademacher(self) -> float:
        """sqrt(m / n) sum_i (N1_i + N2_i), where all are categories"""
        return float(self.terms.sum())

    @property
    def total(self) -> float:
        chance = np.sqrt(np.log(2 / self.delta) / (2 * self.n_rows))
        rise = 2 * self.lipschitz * self.rademacher + 3 * self.loss_bound * chance
        return float(self.train_loss + rise)

    def to_dict(self) -> dict[str, Any]:
        """The bound as a dict for JSON."""
        arrays = (self.n1.tolist(), self.n2.tolist(), self.terms.tolist())
        return {
            "n_rows": self.n_rows,
            "delta": self.delta,
            "lipschitz": self.lipschitz,
            "loss_bound": self.loss_bound,
            "train_loss": float(self.train_loss),
            "rademacher": self.rademacher,
            "total": self.total,
            "sum": self.sum,
            "fields": [
                {"name": name, "n1": n1, "n2": n2, "term": term}
                for name, n1, n2, term in zip(self.names, *arrays, strict=True)
            ],
        }


def check_bounded(layout: Layout, objective: Objective | None = None) -> None:
    """Raise for models that the bound does not cover."""
    if layout.component != "linear":
        raise SettingError(
            f"the bound covers linear models of categories; the component {layout.component!r} "
            "has more in it"
        )
    if objective is not None and objective.is_vote:
        raise SettingError(
            "the prediction of a vote is not a sum of its fields' scores, and the bound covers "
            "such sums only; use combine='sum' or 'weighted'"
        )
    if layout.n_outputs > 1:
        raise SettingError(
            f"the bound covers one score per row, and the model has {layout.n_outputs}; "
            "take one target with two classes"
        )
    if objective is not None and [head.loss for head in objective.heads] != ["logistic"]:
        raise SettingError(
            "the bound covers logloss, whose slope is at most 1, and the model has "
            f"{objective.heads[0].loss} loss; use a target that holds 0 and 1"
        )


def bound_of(
    table: np.ndarray,
    layout: Layout,
    names: Sequence[str],
    n_rows: int,
    *,
    train_loss: float,
    marginals: Marginals | None = None,
    objective: Objective | None = None,
    delta: float = DELTA,
    lipschitz: float = LIPSCHITZ,
    loss_bound: float = LOSS_BOUND,
) -> Bound:
    """The bound of a table (d, R + 1) trained on n_rows rows.

    Without `marginals` every field has one category at a time, with the value 1.
    """
    check_bounded(layout, objective)
    if marginals is None and layout.n_slots > layout.n_fields:
        raise SettingError("fields with several values at once need `marginals`")
    if marginals is None:
        rows = sums = np.full(layout.n_fields, float(layout.n_fields))
    else:
        rows, sums = maths.reach(layout, marginals.weight, marginals.square)
    n1, n2 = maths.norms(table, layout)
    about = (n_rows, train_loss, delta, lipschitz, loss_bound)
    return Bound(tuple(names), n1, n2, rows, sums, *about)


@dataclass(frozen=True)
class Sample:
    """Coded rows with targets and weights: codes (n, S), values (n, S) or None, y and w (n,)"""

    codes: np.ndarray
    values: np.ndarray | None
    y: np.ndarray
    w: np.ndarray


Losses = Callable[[np.ndarray, np.ndarray | None, np.ndarray], np.ndarray]


def gap_by_field(
    losses: Losses, layout: Layout, names: Sequence[str], trained: Sample, held_out: Sample
) -> list[dict[str, Any]]:
    """How much more each field helps on rows it was trained on than on held-out ones, most first.

    A field helps by the rise of the loss when it is made unknown: its codes -1, which score as the
    mean row of its categories, and its values at their mean over the training rows. The gap is the
    difference of the two rises. losses(codes, values, y) returns the loss of each row, (n,).
    """
    middle = None if trained.values is None else trained.values.mean(axis=0)
    pairs = [_rises(losses, layout, sample, middle) for sample in (trained, held_out)]
    found = [
        {"name": name, "training": a, "held_out": b, "gap": a - b}
        for name, a, b in zip(names, *pairs, strict=True)
    ]
    return sorted(found, key=lambda field: -field["gap"])


def _rises(losses: Losses, layout: Layout, sample: Sample, middle: Any) -> list[float]:
    """The loss without each field, less the loss with it."""

    def mean(codes: np.ndarray, values: np.ndarray | None) -> float:
        return float(np.average(losses(codes, values, sample.y), weights=sample.w))

    as_it_is, out = mean(sample.codes, sample.values), []
    for i in range(layout.n_fields):
        slots = layout.slot_owner == i
        codes = np.where(slots, np.int32(-1), sample.codes)
        values = None if sample.values is None else np.where(slots, middle, sample.values)
        out.append(mean(codes, values) - as_it_is)
    return out
