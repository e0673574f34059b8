"""What to train on and what to validate on, as engines take it; scores and metrics of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from .data.shuffle import Rows, Table, gathered, row_weights, wide_values
from .engines import Engine, fill
from .errors import SettingError
from .layout import Layout
from .metrics import measure
from .objective import Objective
from .targets import Scale, weights_of

__all__ = [
    "EngineRows",
    "Problem",
    "Scorer",
    "evaluate",
    "judge_rows",
    "scored",
    "value_moments",
    "with_voices",
]

SCORE_ROWS = 1 << 16
MOST_GATHERED = 1 << 20  # validation rows that are copied into memory, at most
VOICE_ROWS = 1 << 17  # enough to find the weights of a vote on


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What to train on, and what to validate on: `validation`, or the rows of `rows` where
    `held_out` is true, or nothing."""

    layout: Layout
    rows: Table
    counts: np.ndarray  # (d,) how often each category was seen
    only: np.ndarray | None = None  # true for the rows to train on; None: all
    validation: Table | None = None
    held_out: np.ndarray | None = None
    valued: Sequence[int] = ()  # slots that carry values, the columns of the rows' values
    ordered: Sequence[int] = ()  # slots that stand for a number; trees make use of it
    objective: Objective = field(default_factory=Objective)
    sampling_rate: float = 1.0  # the share of the first class's rows that was kept
    names: Sequence[str] = ()  # of several targets, for their metrics

    def __post_init__(self) -> None:
        plain = [head.loss for head in self.objective.heads] == ["logistic"]
        if not 0 < self.sampling_rate <= 1 or (self.sampling_rate != 1 and not plain):
            raise SettingError(
                f"sampling_rate={self.sampling_rate} must be more than 0 and at most 1, "
                "and needs a target with two classes"
            )

    @property
    def n_counted(self) -> int:
        """How many rows the counts cover: if training is continued, those of earlier runs too"""
        by_field = np.add.reduceat(self.counts, self.layout.offsets[:-1])
        plain = by_field[np.array(self.layout.slots) == 1]  # lists count values, not rows
        return max(int((plain if len(plain) else by_field).max()), 1)

    @property
    def judge(self) -> tuple[Table, np.ndarray | None] | None:
        """The table to validate on, and which of its rows (None: all); None without any."""
        if self.validation is not None:
            return self.validation, None
        return None if self.held_out is None else (self.rows, self.held_out)


class EngineRows:
    """A table whose rows are as engines take them: with a value for every slot, scaled targets,
    and weights."""

    def __init__(
        self, rows: Table, problem: Problem, scale: Scale, *, bagging: bool, seed: int
    ) -> None:
        self._rows, self._scale = rows, scale
        self._objective, self._bagging, self._seed = problem.objective, bagging, seed
        self._valued = problem.valued
        self.n_rows = rows.n_rows
        kept = [name for name in rows.names if name != "values" or problem.valued]
        drawn = bagging and problem.objective.n_members > 1 and "weight" not in kept
        self.names = [*kept, "weight"] if drawn else kept

    def read(self, start: int, stop: int) -> dict[str, np.ndarray]:
        found = dict(self._rows.read(start, stop))
        if self._valued:
            wide = wide_values(found["codes"], found["values"], self._valued)
            found["values"] = np.asarray(wide)
        found["target"] = (found["target"] - self._scale.center) / self._scale.spread
        weight = weights_of(found, self._objective, bagging=self._bagging, seed=self._seed)
        if weight is not None:
            found["weight"] = weight
        return {name: found[name] for name in self.names}


def judge_rows(problem: Problem) -> tuple[Table, np.ndarray | None] | None:
    """`problem.judge`, with the rows it selects copied into memory if they are few enough."""
    judge = problem.judge
    if judge is None or judge[1] is None or np.count_nonzero(judge[1]) > MOST_GATHERED:
        return judge
    return Rows(**gathered(*judge)), None


class Scorer(Protocol):
    """Anything that scores rows the way an `Engine` does."""

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray: ...


def scored(
    scorer: Scorer, problem: Problem, rows: Table, only: np.ndarray | None, scale: Scale
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield scores (n, K), of a vote (n, K, m), targets and weights of the rows where `only` is
    true, in batches, in the targets' own units."""
    center, spread = scale.of_outputs(problem.objective)
    if problem.objective.is_vote:
        center, spread = center[:, None], spread[:, None]
    for start in range(0, rows.n_rows, SCORE_ROWS):
        batch = rows.read(start, min(start + SCORE_ROWS, rows.n_rows))
        if only is not None:
            batch = {k: a[only[start : start + SCORE_ROWS]] for k, a in batch.items()}
        if not len(batch["codes"]):
            continue
        values = wide_values(batch["codes"], batch.get("values"), problem.valued)
        z = scorer.scores(batch["codes"], values) * spread + center
        yield z, batch["target"], row_weights(batch)


def evaluate(
    engine: Engine, problem: Problem, rows: Table, only: np.ndarray | None, scale: Scale
) -> dict[str, float]:
    """Metrics on the rows where `only` is true, in the targets' own units."""
    objective = problem.objective
    found = scored(engine, problem, rows, only, scale)
    parts = [(*objective.merged(z), y, w) for z, y, w in found]
    *z, y, w = map(np.concatenate, zip(*parts, strict=True))
    return measure(objective.heads, z, y, w, problem.names)


def with_voices(
    engine: Engine,
    problem: Problem,
    judge: tuple[Table, np.ndarray | None] | None,
    scale: Scale,
    table: np.ndarray,
) -> Objective:
    """The objective with weights for its voices, found on validation rows, or without any on
    training rows."""
    fill(engine.table, table)
    engine.set_means(problem.counts)
    rows, only = judge or (problem.rows, problem.only)
    parts, n = [], 0
    for part in scored(engine, problem, rows, only, scale):
        parts.append(part)
        n += len(part[0])
        if n >= VOICE_ROWS:
            break
    z, y, w = map(np.concatenate, zip(*parts, strict=True))
    return problem.objective.with_voices(z, y, w)


def value_moments(problem: Problem) -> np.ndarray:
    """(d, 2) the mean over all rows of every category's value and of its square; like the counts,
    without the rows' weights"""
    layout, rows = problem.layout, problem.rows
    sums, total = np.zeros((layout.n_rows, 2)), 0
    for start in range(0, rows.n_rows, SCORE_ROWS):
        batch = rows.read(start, min(start + SCORE_ROWS, rows.n_rows))
        codes = batch["codes"]
        wide = wide_values(codes, batch.get("values"), problem.valued)
        x = np.ones(codes.shape) if wide is None else wide.astype(np.float64)
        seen, at = codes >= 0, layout.rows(codes)
        for power in (1, 2):
            found = np.bincount(at[seen], (x**power)[seen], minlength=layout.n_rows)
            sums[:, power - 1] += found
        total += len(codes)
    out: np.ndarray = sums / total
    return out
