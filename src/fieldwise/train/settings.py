"""How to train (`TrainSettings`), where and how to run it (`Running`), and the result (`Fit`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..callbacks import Callback
from ..engines import Engine
from ..errors import SettingError
from ..objective import Objective
from ..targets import Scale

__all__ = ["RATES", "Fit", "Running", "TrainSettings", "Watch"]

# Tried in ascending order while each is better than the last. The smallest generalises best with
# many rare categories, the largest where pairs of categories repeat often (flights, Frappe).
RATES = (0.05, 0.15, 0.4)


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How to train. None means: chosen to suit the table.

    Parameters
    ----------
    learning_rate : Adagrad's step; None tries 0.05, 0.15 and 0.4 on the held-out rows.
    weight_decay : the paper's decay, the same for every row in a batch; None is 0.
    shrinkage : decay by count, stronger for rarer categories; None is 1, or 0 with `weight_decay`.
    penalty : the weight of the penalty that holds a field's models together.
    reg_every : steps between two applications of the penalty; None is 1,000, or an epoch if that is
        shorter.
    batch_size : rows per step; None is 2,048, and fewer for small tables.
    epochs : the most epochs to train.
    patience : training stops after this many epochs without gain on the held-out rows.
    max_variance : a hard upper bound on every field's variance; None: no bound.
    max_mean : a hard upper bound on the squared norm of every field's mean model; None: no bound.
    bagging : train every member of an ensemble on rows drawn with replacement.
    averages : how many snapshots of an epoch's second half are averaged; 1: none, its last table.
    half : store the table of parameters in bfloat16, on a GPU.
    init_scale : `U` and `V` start uniform within plus and minus this.
    initial_state : what Adagrad's accumulators start at.
    seed : the same seed gives the same model.
    """

    learning_rate: float | None = None
    weight_decay: float | None = None
    shrinkage: float | None = None
    penalty: float = 1e-5
    reg_every: int | None = None
    batch_size: int | None = None
    epochs: int = 30
    patience: int = 2
    max_variance: float | None = None
    max_mean: float | None = None
    bagging: bool = False
    averages: int = 8
    half: bool = False
    init_scale: float = 0.02
    initial_state: float = 1e-6
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, strict in (
            ("learning_rate", 0, True),
            ("weight_decay", 0, False),
            ("shrinkage", 0, False),
            ("penalty", 0, False),
            ("reg_every", 1, False),
            ("batch_size", 1, False),
            ("epochs", 1, False),
            ("patience", 1, False),
            ("averages", 1, False),
            ("init_scale", 0, False),
            ("initial_state", 0, False),
            ("seed", 0, False),
            ("max_variance", 0, True),
            ("max_mean", 0, True),
        ):
            value = getattr(self, name)
            if value is None and getattr(TrainSettings, name) is None:
                continue
            good = isinstance(value, (int, float, np.number)) and np.isfinite(value)
            if not good or value < least or (strict and value == least):
                word = "more than" if strict else "at least"
                raise SettingError(f"{name}={value!r} must be a number of {word} {least}")

    def settled(self, n_rows: int) -> TrainSettings:
        """The settings with batch size, decays and `reg_every` decided for a table of `n_rows`."""
        batch = self.batch_size or int(min(2048, max(32, 2 ** int(np.log2(max(n_rows, 1) / 64)))))
        steps = -(-n_rows // batch)
        every = self.reg_every or max(1, min(1000, steps))
        shrinkage = self.shrinkage
        if shrinkage is None:
            shrinkage = 1.0 if self.weight_decay is None else 0.0
        decay = self.weight_decay or 0.0
        return replace(
            self, batch_size=batch, reg_every=every, weight_decay=decay, shrinkage=shrinkage
        )


@dataclass(frozen=True)
class Watch:
    """Calls `look` with the engine about every `every` steps, and after every epoch. When it
    returns True the run ends with the engine's current table."""

    look: Callable[[Engine], bool]
    every: int

    def ends(self, engine: Engine, before: int, *, is_last: bool) -> bool:
        """Whether the run ends now; `before` is the engine's step count before its last steps."""
        is_due = is_last or before // self.every < engine.n_steps // self.every
        return is_due and self.look(engine)


@dataclass(frozen=True, kw_only=True)
class Running:
    """Where and how to run. None of it changes the result, except that another device may differ in
    the last digits, and that a callback or `watch` may end the run.

    Parameters
    ----------
    device : "cpu", "cuda", or "auto": a GPU if there is one and the table is large.
    engine : the name of an engine, whatever the device; or a function that makes one from a layout,
        step settings, an objective and offsets. None: chosen by `device`.
    resident : whether a GPU holds all rows; None: if they fit.
    n_jobs : threads; None is all cores.
    callbacks : functions that get each epoch's record, a dict; one that returns True stops the run.
    watch : inspects the engine every few steps and may end the run; see `Watch`.
    checkpoint : the folder for checkpoints; None writes none.
    checkpoint_minutes : the time between two checkpoints within an epoch.
    resume : continue from the checkpoint, if there is one.
    show : a progress bar; None shows one on a terminal.
    keeps_best : Ctrl-C ends training with the best so far; if false it raises.
    """

    device: str = "auto"
    engine: str | Callable[..., Engine] | None = None
    resident: bool | None = None
    n_jobs: int | None = None
    callbacks: Sequence[Callback] = ()
    watch: Watch | None = None
    checkpoint: Path | None = None
    checkpoint_minutes: float = 10.0
    resume: bool = False
    show: bool | None = False
    keeps_best: bool = True

    def __post_init__(self) -> None:
        if self.n_jobs is not None and self.n_jobs < 1:  # scikit-learn's -1: all cores
            object.__setattr__(self, "n_jobs", None)


@dataclass
class Fit:
    """The result of training: the best table, and the history of the run."""

    table: np.ndarray
    state: np.ndarray
    history: list[dict[str, Any]]
    best_epoch: int
    metrics: dict[str, float]  # of the best epoch on the validation rows; empty without any
    settings: TrainSettings  # with nothing left open
    scale: Scale
    field_weights: np.ndarray  # (m,) ones, except for combine="weighted"
    objective: Objective  # the problem's; of a weighted vote with its weights
    was_stopped: bool = False  # by Ctrl-C or a callback
