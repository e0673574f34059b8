"""What is minimised: which outputs there are, their losses, and how the fields' scores combine.

A head is a target with its loss: one output, or for softmax one a class. All heads are there once a
member of an ensemble. The scores of fields f (n, K, m) become outputs z by one of

    sum        z_o = sum_i f_oi
    weighted   z_o = sum_i u_i f_oi     u_i >= 0 are learned
    vote       every f_oi is an output with a loss of its own

Losses are means over weights: sum_s w_s loss_s / sum_s w_s, summed over heads, members and votes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .errors import SettingError
from .losses import LOSSES, sigmoid, softmax

__all__ = ["COMBINE", "Head", "Objective"]

COMBINE = ("sum", "weighted", "vote")
TINY = 1e-12


@dataclass(frozen=True)
class Head:
    """A loss and how many outputs it takes; delta is where huber's becomes straight."""

    loss: str = "logistic"
    size: int = 1
    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise SettingError(f"loss={self.loss!r} is not one of {', '.join(LOSSES)}")
        if (self.loss == "softmax") != (self.size > 1):
            raise SettingError(f"{self.loss} cannot have {self.size} outputs")
        if not self.delta > 0:
            raise SettingError(f"delta={self.delta} must be more than 0")


@dataclass(frozen=True)
class Objective:
    """Heads, how often each is there (members), and how fields combine."""

    heads: tuple[Head, ...] = (Head(),)
    n_members: int = 1
    combine: str = "sum"

    def __post_init__(self) -> None:
        if self.combine not in COMBINE:
            raise SettingError(f"combine={self.combine!r} is not one of {', '.join(COMBINE)}")
        if self.n_members < 1 or not self.heads:
            raise SettingError(f"n_members={self.n_members} must be at least 1")

    @property
    def n_outputs(self) -> int:
        """K"""
        return self.n_members * sum(head.size for head in self.heads)

    @cached_property
    def copies(self) -> list[tuple[Head, int, int]]:
        """(head, first output, target) of every head of every member"""
        out, first = [], 0
        for _ in range(self.n_members):
            for target, head in enumerate(self.heads):
                out.append((head, first, target))
                first += head.size
        return out

    def slopes(
        self,
        f: np.ndarray,
        offsets: np.ndarray,
        y: np.ndarray,
        w: np.ndarray,
        u: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weighted losses (n,), their derivatives by f (n, K, m), and by u (m,).

        f (n, K, m), offsets (K,), y (n, targets), w (n, 1) or (n, copies), u (m,)
        """
        n, _, m = f.shape
        losses, df, du = np.zeros(n), np.zeros_like(f), np.zeros(m)
        for e, (head, first, target) in enumerate(self.copies):
            loss, outputs = LOSSES[head.loss], slice(first, first + head.size)
            weight = w[:, e if w.shape[1] > 1 else 0]
            total = weight.sum()
            share = weight / total if total > 0 else 0 * weight
            if self.combine == "vote":
                voices = [f[:, outputs, i] for i in range(m)]
            elif self.combine == "weighted":
                voices = [f[:, outputs] @ u]
            else:
                voices = [f[:, outputs].sum(axis=2)]
            for i, voice in enumerate(voices):
                z = voice + offsets[outputs]
                z = z if head.loss == "softmax" else z[:, 0]
                losses += weight * loss.value(z, y[:, target], head.delta)
                dz = loss.derivative(z, y[:, target], head.delta).reshape(n, -1) * share[:, None]
                if self.combine == "vote":
                    df[:, outputs, i] = dz
                elif self.combine == "weighted":
                    df[:, outputs] = dz[:, :, None] * u
                    du += np.einsum("so,soi->i", dz, f[:, outputs])
                else:
                    df[:, outputs] = dz[:, :, None]
        return losses, df, du

    def merged(self, scores: np.ndarray) -> list[np.ndarray]:
        """One score a head, (n,) or (n, size): the mean of members' and fields' predictions.

        scores (n, K), or of a vote (n, K, m). Members' scores are averaged as they are; a vote's
        predictions are, and the mean is given as the score that stands for it.
        """
        out, k = [], self.n_outputs // self.n_members
        voices = scores.reshape(len(scores), self.n_members, k, -1)
        first = 0
        for head in self.heads:
            z = voices[:, :, first : first + head.size]  # (n, members, size, fields or 1)
            first += head.size
            if self.combine != "vote":
                z = z.mean(axis=1)[:, :, 0]
            elif head.loss == "logistic":
                chance = np.clip(sigmoid(z.astype(np.float64)).mean(axis=(1, 3)), TINY, 1 - TINY)
                z = np.log(chance) - np.log1p(-chance)
            elif head.loss == "softmax":
                chance = softmax(z.astype(np.float64).swapaxes(2, 3)).mean(axis=(1, 2))
                z = np.log(np.maximum(chance, TINY))
            elif head.loss == "poisson":
                rates = LOSSES["poisson"].prediction(z.astype(np.float64))
                z = np.log(np.maximum(rates.mean(axis=(1, 3)), TINY))
            else:
                z = z.mean(axis=(1, 3))
            out.append(z if head.loss == "softmax" else z[:, 0])
        return out

    def plain(self) -> Objective:
        """The objective of a trained model, whose members and weights are in its table."""
        combine = "vote" if self.combine == "vote" else "sum"
        return Objective(self.heads, 1 if combine == "sum" else self.n_members, combine)

    def starts(self, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        """(K,) the constant scores that fit best"""
        found = []
        for head, _, target in self.copies:
            start = np.atleast_1d(LOSSES[head.loss].start(y[:, target], w[:, 0]))
            if len(start) < head.size:
                start = np.concatenate([start, np.full(head.size - len(start), start.min())])
            found.append(start)
        return np.concatenate(found)
