"""What is minimised: the outputs, their losses, and how the fields' scores combine.

A head is a target with its loss: one output, or for softmax one per class. Every member of an
ensemble has all heads. The scores of fields f (n, K, m) become outputs z by one of

    sum            z_o = sum_i f_oi
    weighted       z_o = sum_i u_i f_oi     u_i >= 0 are learned
    vote           every f_oi is an output with a loss of its own
    weighted_vote  the same, with weights for the fields' votes that are found afterwards

Losses are means over weights: sum_s w_s loss_s / sum_s w_s, summed over heads, members and votes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import numpy as np

from .errors import SettingError, not_one_of
from .losses import LOSSES, sigmoid, softmax

__all__ = ["COMBINE", "Head", "Objective"]

COMBINE = ("sum", "weighted", "vote", "weighted_vote")
TINY = 1e-12
ROUNDS = 200  # of the search for weights of voices; each improves the likelihood


@dataclass(frozen=True)
class Head:
    """A loss and how many outputs it takes; delta is where huber's becomes linear."""

    loss: str = "logistic"
    size: int = 1
    delta: float = 1.0

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise not_one_of(f"loss={self.loss!r}", self.loss, LOSSES)
        whole = isinstance(self.size, (int, np.integer)) and not isinstance(self.size, bool)
        if not whole or self.size < 1 or (self.size > 1) != (self.loss == "softmax"):
            raise SettingError(f"{self.loss} cannot have {self.size!r} outputs")
        if not 0 < self.delta < np.inf:
            raise SettingError(f"delta={self.delta!r} must be more than 0, and finite")

    @property
    def is_class(self) -> bool:
        return self.loss in ("logistic", "softmax")

    @property
    def is_scaled(self) -> bool:
        """Whether its target is scaled to centre 0 and spread 1 for training."""
        return self.loss in ("squared", "absolute", "huber")


@dataclass(frozen=True)
class Objective:
    """Heads, the number of members that have them, and how fields combine."""

    heads: tuple[Head, ...] = (Head(),)
    n_members: int = 1
    combine: str = "sum"
    voices: tuple[float, ...] = ()  # of a vote, how much each field counts; empty: equally

    def __post_init__(self) -> None:
        if self.combine not in COMBINE:
            raise not_one_of(f"combine={self.combine!r}", self.combine, COMBINE)
        if self.combine == "weighted_vote" and not all(head.is_class for head in self.heads):
            raise SettingError("combine='weighted_vote' is for classes; 'weighted' for numbers")
        if isinstance(self.n_members, bool) or self.n_members < 1 or not self.heads:
            raise SettingError(f"n_members={self.n_members} must be at least 1")

    @property
    def is_vote(self) -> bool:
        return self.combine in ("vote", "weighted_vote")

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

    @cached_property
    def outputs(self) -> list[range]:
        """The outputs of every head, within one member"""
        ends = accumulate(head.size for head in self.heads)
        return [range(end - head.size, end) for head, end in zip(self.heads, ends, strict=True)]

    def place_of(self, output: int) -> tuple[int, int]:
        """The head that an output belongs to, and its place among that head's outputs."""
        for h, outputs in enumerate(self.outputs):
            if output in outputs:
                return h, outputs.index(output)
        raise IndexError(output)

    def by_head(self, z: np.ndarray) -> list[np.ndarray]:
        """Split scores of a trained model, (n, K) or (n,), by head: (n,) or (n, size) each."""
        z = z[:, None] if z.ndim == 1 else z
        return [
            z[:, outputs.start : outputs.stop] if len(outputs) > 1 else z[:, outputs.start]
            for outputs in self.outputs
        ]

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
            if self.is_vote:
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
                if self.is_vote:
                    df[:, outputs, i] = dz
                elif self.combine == "weighted":
                    df[:, outputs] = dz[:, :, None] * u
                    du += np.einsum("so,soi->i", dz, f[:, outputs])
                else:
                    df[:, outputs] = dz[:, :, None]
        return losses, df, du

    def _voices(self, scores: np.ndarray) -> list[np.ndarray]:
        """Scores by head, each (n, members, size, fields); without a vote as if of one field"""
        k = self.n_outputs // self.n_members
        every = scores.astype(np.float64).reshape(len(scores), self.n_members, k, -1)
        return [every[:, :, outputs.start : outputs.stop] for outputs in self.outputs]

    def merged(self, scores: np.ndarray) -> list[np.ndarray]:
        """One score per head, (n,) or (n, size), merged over members and, in a vote, fields.

        scores (n, K), or of a vote (n, K, m). Without a vote, and for numbers, scores are averaged.
        A vote averages chances (by the weights of voices) or rates, and returns the score of the
        mean.
        """
        out = []
        for head, z in zip(self.heads, self._voices(scores), strict=True):
            if self.is_vote and head.is_class:
                chance = np.average(_chances(head, z), axis=1, weights=self.voices or None)
                logs = np.log(np.maximum(chance, TINY))
                found = logs if head.size > 1 else logs[:, 1:] - logs[:, :1]
            elif self.is_vote and head.loss == "poisson":
                rates = LOSSES["poisson"].prediction(z).mean(axis=(1, 3))
                found = np.log(np.maximum(rates, TINY))
            else:
                found = z.mean(axis=(1, 3))
            out.append(found if head.loss == "softmax" else found[:, 0])
        return out

    def votes(self, scores: np.ndarray) -> list[np.ndarray]:
        """The votes for each class, (n, classes) per head; scores (n, K, m)

        Every field of every member votes for one class. The mean chance is added with a tiny
        weight, only to break ties.
        """
        out = []
        for head, z in zip(self.heads, self._voices(scores), strict=True):
            z = z if head.size > 1 else np.concatenate([-z, z], axis=2)
            chosen = np.argmax(z, axis=2)  # (n, members, fields)
            weights = np.array(self.voices or np.ones(z.shape[3]))
            counts = [((chosen == c) * weights).sum(axis=(1, 2)) for c in range(z.shape[2])]
            chance = np.average(_chances(head, z), axis=1, weights=weights)
            out.append(np.stack(counts, axis=1) + 1e-6 * weights.min() * chance)
        return out

    def with_voices(self, scores: np.ndarray, y: np.ndarray, w: np.ndarray) -> Objective:
        """The objective with weights for the voices: those whose weighted mean chance makes y
        (n, targets) most likely, found by expectation-maximisation. scores (n, K, m), w (n,)"""
        heads = zip(self.heads, self._voices(scores), y.T, strict=True)
        chances, shares = [], []
        for head, z, target in heads:
            found = _chances(head, z)  # (n, fields, classes)
            if head.size > 1:
                share = np.eye(head.size)[target.astype(int)]
            else:
                share = np.stack([1 - target, target], axis=1)
            chances.append(np.maximum(found, TINY))
            shares.append(share * w[:, None])
        u = np.full(scores.shape[2], 1 / scores.shape[2])
        for _ in range(ROUNDS):
            part = np.zeros_like(u)
            for found, share in zip(chances, shares, strict=True):
                mean = np.einsum("i,nic->nc", u, found)
                part += np.einsum("nic,nc->i", found, share / mean)
            u = u * part
            u /= u.sum()
        return replace(self, voices=tuple(u.tolist()))

    def plain(self) -> Objective:
        """The objective of a trained model, whose table has members and field weights in it."""
        return self if self.is_vote else Objective(self.heads)

    def starts(self, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        """(K,) the constant scores that fit best"""
        found = []
        for head, _, target in self.copies:
            start = np.atleast_1d(LOSSES[head.loss].start(y[:, target], w[:, 0]))
            if len(start) < head.size:
                start = np.concatenate([start, np.full(head.size - len(start), start.min())])
            found.append(start)
        return np.concatenate(found)


def _chances(head: Head, z: np.ndarray) -> np.ndarray:
    """Every field's chances, averaged over members: (n, members, size, fields) -> (n, fields,
    classes)"""
    if head.size > 1:
        return softmax(z.swapaxes(2, 3)).mean(axis=1)
    chance = sigmoid(z[:, :, -1]).mean(axis=1)
    return np.stack([1 - chance, chance], axis=2)
