"""LR, FM (Rendle 2010), FFM (Juan et al. 2016) and LLFM (Liu et al. 2017). v_j is the row of the
category in field j."""

from __future__ import annotations

import torch
from torch import nn

from ..layout import Layout
from .engine import Baseline

__all__ = ["FFM", "FM", "LLFM", "LR"]


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
    return 0.5 * (v.sum(dim=1).square() - v.square().sum(dim=1)).sum(dim=1)


class FFM(Baseline):
    """z = sum_j w[x_j] + sum_{i < j} v_i^(j) . v_j^(i)        rows: w, v (fields x rank)"""

    def __init__(self, layout: Layout, rank: int) -> None:
        super().__init__()
        self.width = 1 + layout.n_fields * rank

    def forward(self, taken: torch.Tensor) -> torch.Tensor:
        n, m, _ = taken.shape
        v = taken[:, :, 1:].reshape(n, m, m, -1)
        products = (v * v.transpose(1, 2)).sum(dim=3)
        both = products.sum(dim=(1, 2)) - products.diagonal(dim1=1, dim2=2).sum(dim=1)
        return taken[:, :, 0].sum(dim=1) + 0.5 * both


class LLFM(Baseline):
    """z = sum_a c_a(x) FM_a(x): an FM for every anchor point, weighed by how near x is to it

    c(x) = softmax_a(-|x - anchor_a|^2), of which a one-hot x leaves
    2 sum_j anchor_a[x_j] - |anchor_a|^2; the squared length is a weight of its own, so that a step
    touches only the rows it has. rows: for every anchor its coordinate, w, v (rank)
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
