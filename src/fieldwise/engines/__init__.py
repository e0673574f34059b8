"""Engines: an engine holds the table of parameters, takes steps and computes scores, nothing else.

Initialisation, early stopping and checks for NaN are in `train`, shuffling is in `data.shuffle`,
once for all engines.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import SettingError, not_one_of
from ..layout import Layout
from ..objective import Objective

__all__ = [
    "DEVICES",
    "ENGINES",
    "Engine",
    "StepSettings",
    "empty_like",
    "engine_for",
    "fill",
    "gpu_is_here",
    "host",
    "make_engine",
]

ENGINES = {"reference": ".reference", "cpu": ".cpu", "gpu": ".gpu"}
DEVICES = ("auto", "cpu", "cuda")
WORTH_A_GPU = 5e10  # entries of rows read in an epoch: a quarter of a minute on two cores


@dataclass(frozen=True)
class StepSettings:
    """Settings of a step: Adagrad's learning rate, the decay of rows in the batch, and every
    `reg_every` steps the penalty with weight `penalty`, then the bounds of variance and mean."""

    learning_rate: float = 0.1
    weight_decay: float = 1e-6
    penalty: float = 1e-5
    reg_every: int = 1000
    batch_size: int = 2048
    max_variance: float | None = None
    max_mean: float | None = None

    def is_due(self, n_steps: int) -> bool:
        """Whether step `n_steps` (counted from 1) has the penalty or bounds, and so all rows."""
        bounded = self.max_variance is not None or self.max_mean is not None
        return bool(self.penalty or bounded) and n_steps % self.reg_every == 0

    def until_due(self, n_steps: int) -> int:
        """How many plain steps follow `n_steps` before one that is due; 0: the next is due."""
        if not self.is_due(self.reg_every):
            return 1 << 40
        return self.reg_every - 1 - n_steps % self.reg_every


class Engine(Protocol):
    """What every engine has. table and state are (d, R + K); codes (n, S) are numbers within
    fields, -1 for unseen.

    Arrays are NumPy's or tensors on a device; `fill`, `host` and `empty_like` take both. `run` may
    return before its steps are done; reading an array waits for them.
    """

    layout: Layout
    objective: Objective
    offsets: np.ndarray  # (K,) the outputs' intercepts
    table: np.ndarray
    state: np.ndarray
    decay: np.ndarray  # (d + m,) of each row when it is in a batch; initially `weight_decay`
    field_weights: np.ndarray  # (m,) of "weighted"; field_state is their Adagrad state
    field_state: np.ndarray
    totals: np.ndarray  # (2,) sums of weighted losses and of weights; the reader resets it
    n_steps: int  # taken so far; determines when the penalty is due

    def run(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        target: np.ndarray,
        weight: np.ndarray | None,
    ) -> None:
        """Take steps over all rows, in order.

        target (n, heads), weight (n, 1) or (n, members x heads)
        """
        ...

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        """z of every row, (n, K), or for a vote (n, K, m); call `set_means` for unseen values."""
        ...

    def set_means(self, counts: np.ndarray) -> None:
        """Set each field's row for unseen values: its mean row, weighted by counts (d,)."""
        ...


def fill(array: Any, content: Any) -> None:
    """Set an engine's array, NumPy's or a tensor on a device, from either kind."""
    if isinstance(array, np.ndarray):
        array[:] = content if np.isscalar(content) else host(content)
    elif np.isscalar(content):
        array.fill_(content)
    else:
        import torch

        given = (
            content
            if torch.is_tensor(content)
            else torch.from_numpy(np.require(content, requirements="W"))
        )
        array.copy_(given)


def host(array: Any) -> np.ndarray:
    """An engine's array as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    wide = array.float() if array.element_size() < 4 else array
    found: np.ndarray = wide.cpu().numpy()
    return found


def empty_like(array: Any) -> Any:
    """A new array of the same kind, shape and device."""
    return np.empty_like(array) if isinstance(array, np.ndarray) else array.new_empty(array.shape)


def gpu_is_here() -> bool:
    """Whether there are an NVIDIA GPU, torch and Triton; imports nothing."""
    driver = Path("/proc/driver/nvidia/version").exists()
    return driver and all(find_spec(name) is not None for name in ("torch", "triton"))


def _why_not(layout: Layout) -> str:
    """The reason why the GPU cannot train such a model; empty if it can."""
    return str(import_module(ENGINES["gpu"], __name__).why_not(layout))


def engine_for(device: str, layout: Layout, n_rows: int) -> str:
    """The engine for a device. "auto" is a GPU if there is one and an epoch is large enough."""
    if device not in DEVICES:
        raise not_one_of(f"device={device!r}", device, DEVICES)
    if device == "auto":
        large = n_rows * layout.n_slots * layout.width >= WORTH_A_GPU
        wanted = large and layout.component == "linear" and gpu_is_here()
        device = "cuda" if wanted and not _why_not(layout) else "cpu"
    if device == "cuda":
        return "gpu"
    return "cpu" if layout.component == "linear" else "reference"


def make_engine(
    name: str,
    layout: Layout,
    settings: StepSettings,
    *,
    objective: Objective | None = None,
    offsets: np.ndarray | None = None,
    **options: Any,
) -> Engine:
    """The engine of that name."""
    objective = objective or Objective()
    if objective.n_outputs != layout.n_outputs:
        raise SettingError(
            f"the objective has {objective.n_outputs} outputs and the layout {layout.n_outputs}"
        )
    if name not in ENGINES:
        raise not_one_of(f"engine={name!r}", name, ENGINES)
    module = import_module(ENGINES[name], __name__)
    offsets = np.zeros(layout.n_outputs) if offsets is None else np.asarray(offsets, np.float64)
    engine: Engine = module.make(layout, settings, objective, offsets, **options)
    return engine
