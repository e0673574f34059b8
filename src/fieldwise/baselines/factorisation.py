"""LR, FM (Rendle 2010), FFM (Juan et al. 2016), RaFM (Chen et al. 2019) and LLFM (Liu et al. 2017).
v_j is the row of the category in field j."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from ..layout import Layout
from .engine import Baseline

__all__ = ["FFM", "FM", "LLFM", "LR", "RaFM"]


class LR(Baseline):
    """z = sum_j w[x_j]"""

    width = 1

    def __init__(self, layout: Layout) -> None:
        super().__init__()

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        return taken[:, :, 0].sum(dim=1)


class FM(Baseline):
    """z = sum_j w[x_j] + sum_{i < j} v_i . v_j        rows: w, v (rank)"""

    def __init__(self, layout: Layout, rank: int) -> None:
        super().__init__()
        self.width = 1 + rank

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        v = taken[:, :, 1:]
        return taken[:, :, 0].sum(dim=1) + pairs(v)


def pairs(v: torch.Tensor) -> torch.Tensor:
    """sum_{i < j} v_i . v_j of (n, m, rank)"""
    found: torch.Tensor = _Pairs.apply(v)  # type: ignore[no-untyped-call]
    return found


class _Pairs(torch.autograd.Function):
    """1/2 (|s|^2 - sum_j |v_j|^2) with s = sum_j v_j; its slope is s - v_j.

    By hand, because torch's own derivative of the squares passes over all of v three more times.
    """

    @staticmethod
    def forward(ctx: Any, v: torch.Tensor) -> torch.Tensor:
        s = v.sum(dim=1)
        ctx.save_for_backward(v, s)
        return 0.5 * (s.square().sum(dim=1) - v.square().sum(dim=(1, 2)))

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> torch.Tensor:
        v, s = ctx.saved_tensors
        return (s[:, None] - v).mul_(slopes[0][:, None, None])


class FFM(Baseline):
    """z = sum_j w[x_j] + sum_{i < j} v_i^(j) . v_j^(i)        rows: w, v (fields x rank)"""

    def __init__(self, layout: Layout, rank: int) -> None:
        super().__init__()
        self.width = 1 + layout.n_fields * rank

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        n, m, _ = taken.shape
        both: torch.Tensor = _FieldPairs.apply(taken[:, :, 1:].view(n, m, m, -1))  # type: ignore[no-untyped-call]
        return taken[:, :, 0].sum(dim=1) + both

    def n_parameters(self, layout: Layout) -> int:
        """No category has a vector for its own field, though its row has room for one."""
        rank = (self.width - 1) // layout.n_fields
        return layout.n_rows * (self.width - rank)


class _FieldPairs(torch.autograd.Function):
    """sum_{i < j} v_ij . v_ji of (n, m, m, rank); the slope of v_ij is v_ji, by hand as above."""

    @staticmethod
    def forward(ctx: Any, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(v)
        own = v.diagonal(dim1=1, dim2=2).square().sum(dim=(1, 2))
        return 0.5 * ((v * v.transpose(1, 2)).sum(dim=(1, 2, 3)) - own)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> torch.Tensor:
        (v,) = ctx.saved_tensors
        out: torch.Tensor = v.transpose(1, 2) * slopes[0][:, None, None, None]
        out.diagonal(dim1=1, dim2=2).zero_()
        return out


class RaFM(Baseline):
    """z = sum_j w[x_j] + sum_{i < j} v_i^(k) . v_j^(k), k = min(k_i, k_j)

    A category has a vector of every rank up to its level k_j: of all ranks that are at most the
    number of times it was seen, and at least of the first. A pair of categories uses the highest
    rank both have. With P_l(k) the pairs, in rank l, of categories of level k and above,

        B_1 = P_1(1)        B_l = B_{l-1} - P_{l-1}(l) + P_l(l)        z = sum_j w[x_j] + B_L

    B_l is the score of levels up to l: pairs in rank l replace those in rank l - 1. Vectors of
    lower ranks are also trained to imitate the higher: each B_l to be near B_{l+1}.
    rows: w, v^(1), v^(2), ...
    """

    level: torch.Tensor  # (d + m,) of categories, from 0; unseen ones have the lowest

    def __init__(
        self, layout: Layout, counts: np.ndarray, ranks: Sequence[int] = (32, 64, 128)
    ) -> None:
        super().__init__()
        self.ranks = tuple(ranks)
        self.width = 1 + sum(ranks)
        level = np.maximum(np.searchsorted(ranks, counts, side="right") - 1, 0)
        level = np.concatenate([level, np.zeros(layout.n_fields, level.dtype)])
        self.register_buffer("level", torch.from_numpy(level))

    def expand(self, taken: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """w, then for every rank the vectors of levels that have it, then those of levels above."""
        w, *vectors = torch.split(taken, [1, *self.ranks], dim=-1)
        level = self.level[rows][..., None]
        has = [v * (level >= k) for k, v in enumerate(vectors)]
        above = [v * (level > k) for k, v in enumerate(vectors[:-1])]
        return torch.cat([w, *has, *above], dim=-1)

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        """(n, L): the scores of levels up to each l; the last is the score"""
        w, *vectors = torch.split(taken, [1, *self.ranks, *self.ranks[:-1]], dim=-1)
        n = len(self.ranks)
        scores = [w.sum(dim=(1, 2)) + pairs(vectors[0])]
        for k in range(1, n):
            scores.append(scores[-1] - pairs(vectors[n + k - 1]) + pairs(vectors[k]))
        return torch.stack(scores, dim=1)

    def aside(self, scores: torch.Tensor) -> torch.Tensor:
        return (scores[:, :-1] - scores[:, 1:].detach()).square().sum(dim=1)

    def n_parameters(self, layout: Layout) -> int:
        each = 1 + np.cumsum(self.ranks)
        return int(each[self.level[: layout.n_rows].cpu().numpy()].sum())


class LLFM(Baseline):
    """z = sum_a c_a(x) FM_a(x): an FM for every anchor point, weighted by how near x is to it

    c(x) = softmax_a(-|x - anchor_a|^2), which for a one-hot x is that of
    2 sum_j anchor_a[x_j] - |anchor_a|^2; the squared length is a separate weight, so that a step
    touches only the batch's rows. rows: for every anchor its coordinate, w, v (rank)
    """

    def __init__(self, layout: Layout, rank: int, anchors: int) -> None:
        super().__init__()
        self.width = anchors * (2 + rank)
        self.anchors = anchors
        self.lengths = nn.Parameter(torch.zeros(anchors))

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        n, m, _ = taken.shape
        rows = taken.reshape(n, m, self.anchors, -1)
        near = torch.softmax(2 * rows[..., 0].sum(dim=1) - self.lengths, dim=1)
        v = rows[..., 2:].transpose(1, 2).flatten(0, 1)  # (n anchors, m, rank)
        local = rows[..., 1].sum(dim=1) + pairs(v).view(n, self.anchors)
        return (near * local).sum(dim=1)
