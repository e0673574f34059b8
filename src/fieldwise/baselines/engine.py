"""Torch modules as an engine, so that the same loop trains them and our model.

A baseline is a function of the rows of one embedding, one per category, and of a few dense weights.
A batch touches only the rows it has: each distinct row's gradient is the sum over the batch, and
decay is added before Adagrad squares it, as in the engines of the field-wise model.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as logistic
from torch.nn.functional import embedding

from ..engines import StepSettings, fill, host
from ..errors import SettingError
from ..layout import Layout
from ..maths import EPSILON, category_shares
from ..objective import Head, Objective

__all__ = ["Baseline", "BaselineEngine"]

SCORE_ROWS = 1 << 14


class Baseline(nn.Module):
    """A method: `width` floats per category, and the score of samples from their rows.

    forward(taken (n, m, width)) -> (n,), or (n, L) with the score last
    """

    width: int
    first_step = inf  # of a dense weight: at most so many times its slope

    def expand(self, taken: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """The input of `forward` from rows and their numbers, (k, width) -> (k, any)"""
        return taken

    def aside(self, scores: torch.Tensor) -> torch.Tensor | None:
        """(n,) an additional loss, from the result of `forward`"""
        return None

    def n_parameters(self, layout: Layout) -> int:
        """The number of learned parameters."""
        return layout.n_rows * self.width + sum(p.numel() for p in self.parameters())


def _last(scores: torch.Tensor) -> torch.Tensor:
    return scores if scores.dim() == 1 else scores[:, -1]


class BaselineEngine:
    """An `Engine` with all weights in one column: the embedding's rows, then the dense ones."""

    def __init__(
        self,
        layout: Layout,
        settings: StepSettings,
        objective: Objective | None = None,
        offsets: np.ndarray | None = None,
        *,
        make: Callable[[Layout], Baseline],
        device: str = "cpu",
    ) -> None:
        self.objective = objective or Objective()
        if self.objective != Objective((Head(),)):
            raise SettingError("the baselines learn two classes, one model at a time")
        self.layout, self.settings = layout, settings
        self.offsets = np.zeros(1) if offsets is None else offsets
        self.device = torch.device(device)
        self.n_steps = 0
        self._make = make
        self.module = make(layout).to(self.device)
        self._dense = list(self.module.parameters())
        self._seed, self._draws = 0, torch.Generator(self.device)
        for part in self.module.modules():
            if hasattr(part, "draws"):  # of dropout
                vars(part)["draws"] = self._draws
        self.name = f"{type(self.module).__name__}, {self.module.width} floats a category"
        n_rows = layout.n_rows + layout.n_fields  # the last rows stand for unseen values
        sizes = [n_rows * self.module.width, *(p.numel() for p in self._dense)]
        self.table = torch.zeros((sum(sizes), 1), device=self.device)
        self.state = torch.zeros_like(self.table)
        self._rows, *views = self._views(self.table, sizes)
        self._row_state, *self._dense_state = self._views(self.state, sizes)
        for parameter, view in zip(self._dense, views, strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        self.field_weights = np.ones(layout.n_fields, np.float32)
        self.field_state = np.ones(layout.n_fields, np.float32)
        self.totals = torch.zeros(2, dtype=torch.float64, device=self.device)
        self._owner = torch.tensor(layout.slot_owner, device=self.device)
        self._first = torch.tensor(layout.offsets[layout.slot_owner], device=self.device)

    def __getstate__(self) -> dict[str, Any]:
        """For pickling: the constructor's arguments, and the weights."""
        about = {k: getattr(self, k) for k in ("layout", "settings", "objective", "offsets")}
        about |= {"make": self._make, "device": str(self.device)}
        return {"about": about, "table": host(self.table), "state": host(self.state)}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__init__(**kept["about"])  # type: ignore[misc]
        fill(self.table, kept["table"])
        fill(self.state, kept["state"])

    def _views(self, flat: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
        """The embedding (rows, width) and every dense weight, as parts of the one column."""
        parts = torch.split(flat[:, 0], sizes)
        shapes = [(-1, self.module.width), *(p.shape for p in self._dense)]
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def initialise(self, seed: int, scale: float) -> None:
        """The embedding uniform in +-scale; layers as torch draws them."""
        self._seed = seed
        draw = torch.Generator().manual_seed(seed)
        self._rows.copy_((2 * torch.rand(self._rows.shape, generator=draw) - 1) * scale)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            drawn = self._make(self.layout)  # on the CPU: the same on every device
        for parameter, value in zip(self._dense, drawn.parameters(), strict=True):
            parameter.data.copy_(value.detach())

    def run(self, codes: Any, values: Any, target: Any, weight: Any) -> None:
        self.module.train()
        # Draws depend on seed and step alone, so that a run can be resumed.
        self._draws.manual_seed((self._seed << 32) + self.n_steps)
        size = self.settings.batch_size
        for low in range(0, len(codes), size):
            batch = slice(low, low + size)
            x, w = (None if a is None else self._sent(a[batch]) for a in (values, weight))
            self._step(self._numbers(codes[batch]), x, self._sent(target[batch])[:, 0], w)
            self.n_steps += 1

    def _sent(self, array: Any) -> torch.Tensor:
        return torch.as_tensor(np.asarray(array, np.float32), device=self.device)

    def _numbers(self, codes: Any) -> torch.Tensor:
        """Rows of the embedding; those of unseen codes come after all others."""
        codes = torch.as_tensor(np.asarray(codes, np.int64), device=self.device)
        return torch.where(codes < 0, self.layout.n_rows + self._owner, codes + self._first)

    def _found(
        self, taken: torch.Tensor, distinct: torch.Tensor, at: torch.Tensor, values: Any
    ) -> torch.Tensor:
        """The module's result for a batch with these distinct rows, of which `at` are indices."""
        brought = embedding(at, self.module.expand(taken, distinct))  # (n, S, any)
        if values is not None:
            brought = brought * values[:, :, None]
        if self.layout.n_slots != self.layout.n_fields:  # the rows of a list are added up
            shape = (len(at), self.layout.n_fields, brought.shape[2])
            brought = brought.new_zeros(shape).index_add(1, self._owner, brought)
        found: torch.Tensor = self.module(brought)
        return found

    def _step(self, rows: torch.Tensor, values: Any, y: torch.Tensor, w: Any) -> None:
        distinct, at = torch.unique(rows, return_inverse=True)
        taken = self._rows[distinct].requires_grad_()
        found = self._found(taken, distinct, at, values)
        z = _last(found) + float(self.offsets[0])
        weight = torch.ones_like(y) if w is None else w[:, 0]
        total = weight.sum()
        loss = (weight * logistic(z, y, reduction="none")).sum()
        aside = self.module.aside(found)
        whole = loss if aside is None else loss + (weight * aside).sum()
        slopes = torch.autograd.grad(whole / total.clamp(min=1e-30), [taken, *self._dense])
        start = (self.settings.learning_rate / self.module.first_step) ** 2
        with torch.no_grad():
            row, square = taken.detach(), self._row_state[distinct]
            self._adagrad(row, square, slopes[0])
            self._rows[distinct], self._row_state[distinct] = row, square
            for parameter, state, slope in zip(
                self._dense, self._dense_state, slopes[1:], strict=True
            ):
                self._adagrad(parameter, state, slope, start)
        self.totals += torch.stack([loss.detach(), total]).double()

    def _adagrad(
        self, weight: torch.Tensor, state: torch.Tensor, slope: torch.Tensor, start: float = 0.0
    ) -> None:
        slope = slope.add(weight, alpha=self.settings.weight_decay)
        state.addcmul_(slope, slope)
        root = (state + start if start else state).sqrt().add_(EPSILON)
        weight.addcdiv_(slope, root, value=-self.settings.learning_rate)

    @torch.no_grad()
    def scores(self, codes: Any, values: Any) -> np.ndarray:
        self.module.eval()
        parts = [np.empty((0, 1), np.float32)]
        for low in range(0, len(codes), SCORE_ROWS):
            part = slice(low, low + SCORE_ROWS)
            x = None if values is None else self._sent(values[part])
            distinct, at = torch.unique(self._numbers(codes[part]), return_inverse=True)
            z = _last(self._found(self._rows[distinct], distinct, at, x))
            parts.append((z + float(self.offsets[0])).cpu().numpy()[:, None])
        return np.concatenate(parts)

    def set_means(self, counts: np.ndarray) -> None:
        shares = self._sent(category_shares(self.layout, counts))
        for i in range(self.layout.n_fields):
            own = self.layout.own(i)
            self._rows[self.layout.n_rows + i] = shares[own] @ self._rows[own]
