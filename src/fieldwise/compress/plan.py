"""The search for the smallest model whose loss on a table stays within bounds, and its result."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..blas import one_blas_thread, weighted_sum
from ..data.labels import target_values, weight_values
from ..errors import DataError, ModelError, SettingError
from ..losses import LOSSES
from ..model import FieldwiseModel
from ..packed import STORAGE, Packed
from ..progress import Progress, progress
from .certificate import certificate
from .choice import STEPS, Choice, Prices
from .factors import Factors
from .smaller import Coded, smaller

__all__ = ["Compression", "Step", "compress", "folder_bytes"]

BISECTIONS = 14
ERRORS = 2.0  # standard errors that are added to the loss, for rows to come
ROUNDS = 3  # of timing, of which the fastest counts


@dataclass(frozen=True)
class Step:
    """The size, loss and speed of a model after a step: bytes of its folder, loss and rows scored
    per second on the validation table."""

    name: str
    n_bytes: int
    loss: float
    rows_per_second: float

    def kept(self) -> dict[str, Any]:
        """The part that does not depend on the machine."""
        return {"step": self.name, "bytes": self.n_bytes, "loss": self.loss}


@dataclass(frozen=True)
class Compression:
    """The smaller model, and how it was made.

    Attributes
    ----------
    model : the smaller model; the given one if nothing could be left out.
    steps : size, loss and speed after every step, the first being the model as it was.
    certificate : bounds on the change of scores; `largest_change` holds for any row.
    times_smaller : how many times smaller the files are.
    loss_added : how much the loss on the table `validation` rose.
    """

    model: FieldwiseModel
    steps: list[Step]
    certificate: Mapping[str, Any] = field(default_factory=lambda: {"largest_change": 0.0})

    @property
    def times_smaller(self) -> float:
        return self.steps[0].n_bytes / self.steps[-1].n_bytes

    @property
    def loss_added(self) -> float:
        return self.steps[-1].loss - self.steps[0].loss


@one_blas_thread()
def compress(
    model: FieldwiseModel,
    validation: Any,
    *,
    max_loss: float = 0.0005,
    show: bool | None = False,
    **options: Any,
) -> Compression:
    """The smallest model whose loss on a table is at most `max_loss` above the model's own, two
    standard errors of the difference included.

    Parameters
    ----------
    model : a model that is not compressed yet.
    validation : a table with the target, of rows that the model was not trained on.
    max_loss : how much its loss there may rise; 0 gives the model itself.
    show : a progress bar; None shows one on a terminal.
    options : how text is read, as `encode` takes it: `format`, `separator`, `quote`, `null_words`.
    """
    _check(model, max_loss)
    judge = _Judge.read(model, validation, **options)
    before = judge.step("as it is", model)
    if max_loss == 0:
        return Compression(model, [before])
    factors = Factors(model)
    prices = Prices(model, factors)
    total = len(STORAGE) + BISECTIONS + len(STEPS) + 2
    with progress("compress", total, show=show) as tell:
        search = _Search(model, factors, prices, judge, max_loss, tell)
        choice = search.best()
        if choice is None:  # even float16 adds too much loss
            return Compression(model, [before])
        steps = [before, *search.steps(choice)]
        made = smaller(model, factors, choice)
        proof = certificate(model, factors, choice, made)
    proof |= judge.changes(model, made, choice)
    about = {"steps": [s.kept() for s in steps], "max_loss": max_loss, "certificate": proof}
    assert isinstance(made.stored, Packed)
    made.stored = replace(made.stored, about=about)
    return Compression(made, steps, proof)


def _check(model: FieldwiseModel, max_loss: float) -> None:
    if not (math.isfinite(max_loss) and max_loss >= 0):
        raise SettingError(f"max_loss={max_loss} must be a number of at least 0")
    if isinstance(model.stored, Packed):
        raise ModelError("the model is compressed already; compress the one it was made from")
    if model.layout.component != "linear":
        raise ModelError(
            f"the component {model.layout.component!r} has products of three rows, which cannot be "
            "compressed; train with component='linear'"
        )
    if model.objective.is_vote:
        raise ModelError(
            "the scores of a vote are not added up, as compression needs; train with combine='sum'"
        )


@dataclass
class _Search:
    model: FieldwiseModel
    factors: Factors
    prices: Prices
    judge: _Judge
    max_loss: float
    tell: Progress
    done: int = 0

    def _allowed(self, choice: Choice) -> bool:
        made = smaller(self.model, self.factors, choice)
        added, error = self.judge.added(made, choice)
        self.done += 1
        self.tell(self.done, f"{choice.kind}, loss {added:+.5f}")
        return added + ERRORS * error <= self.max_loss

    def best(self) -> Choice | None:
        """The choice at the highest price whose loss is allowed, with the smallest kind of entries
        allowed; None if none is."""
        for kind in STORAGE:
            found = self.prices.whole(kind)
            if self._allowed(found):
                break
        else:
            return None
        low, high = self.prices.limits(kind)
        for price in (low, high):
            at_end = self.prices.chosen(price, kind)
            if not self._allowed(at_end):
                break
            found = at_end
        else:
            return found
        for _ in range(BISECTIONS if price == high else 0):
            middle = math.sqrt(low * high)
            chosen = self.prices.chosen(middle, kind)
            if self._allowed(chosen):
                low, found = middle, chosen
            else:
                high = middle
        return found

    def steps(self, choice: Choice) -> list[Step]:
        """The steps that lead to a choice, without those that change nothing."""
        whole, out = self.prices.whole(choice.kind), []
        for name in (choice.kind, *STEPS):
            part = choice.up_to(name, whole)
            if name in STEPS and _same(getattr(part, name), getattr(whole, name)):
                continue
            made = smaller(self.model, self.factors, part)
            out.append(self.judge.step(name, made, part))
            self.done += 1
            self.tell(self.done, name)
        return out


def _same(these: Any, those: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(these, those, strict=True))


class _Judge:
    """The validation table, in the codes of a model's own fields."""

    def __init__(self, model: FieldwiseModel, coded: Coded, y: np.ndarray, w: np.ndarray) -> None:
        self._schema = model.base_vocabulary.schema
        self._coded, self._y, self._w = coded, y, w
        self._before = self._losses(model, self._codes(model))

    @classmethod
    def read(cls, model: FieldwiseModel, data: Any, **options: Any) -> _Judge:
        words = model.base_vocabulary
        parts = []
        for chunk, coded in model.coded_chunks(data, **options):
            if words is not model.vocabulary:
                coded = words.encode(chunk)
            truth = target_values(chunk, model.schema), weight_values(chunk, model.schema)
            parts.append((*coded, *truth))
        if not parts or not sum(part[3].sum() for part in parts) > 0:
            raise DataError("the validation table has no rows, or none with a weight")
        codes, values, y, w = map(np.concatenate, zip(*parts, strict=True))
        return cls(model, Coded(codes, values), y.astype(np.float64), w.astype(np.float64))

    def _codes(
        self, model: FieldwiseModel, choice: Choice | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The codes and values that a model takes, which `choice` left of the whole one."""
        if choice is None:
            n_fields = len(self._schema.fields)
            sizes = model.base_vocabulary.sizes
            same = tuple(np.arange(d) for d in sizes)
            choice = Choice("float32", (), (True,) * n_fields, same, ())
        return self._coded.seen_by(model, self._schema, choice)

    def _losses(self, model: FieldwiseModel, coded: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        """(n,) the loss of every row, summed over targets"""
        out = np.zeros(len(self._y))
        pairs = zip(model.objective.heads, model.scores_by_target(*coded), strict=True)
        for k, (head, z) in enumerate(pairs):
            out += LOSSES[head.loss].value(z.astype(np.float64), self._y[:, k], head.delta)
        return out

    def added(self, model: FieldwiseModel, choice: Choice) -> tuple[float, float]:
        """The mean loss less the whole model's, and the standard error of that"""
        w, away = self._w, self._losses(model, self._codes(model, choice)) - self._before
        mean = float(weighted_sum(w, away) / w.sum())
        return mean, float(np.sqrt(np.sum((w * (away - mean)) ** 2)) / w.sum())

    def step(self, name: str, model: FieldwiseModel, choice: Choice | None = None) -> Step:
        coded = self._codes(model, choice)
        loss = float(weighted_sum(self._w, self._losses(model, coded)) / self._w.sum())
        seconds = _fastest(lambda: model.score_codes(*coded))
        return Step(name, folder_bytes(model), loss, len(self._y) / seconds)

    def changes(
        self, before: FieldwiseModel, after: FieldwiseModel, choice: Choice
    ) -> dict[str, float]:
        """How much the scores of these rows changed."""
        old = before.score_codes(*self._codes(before))
        away = after.score_codes(*self._codes(after, choice)) - old
        return {
            "largest_on_validation": float(np.abs(away).max()),
            "mean_square_on_validation": float(np.mean(away.astype(np.float64) ** 2)),
        }


def _fastest(work: Callable[[], Any]) -> float:
    found = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return max(min(found), 1e-9)


def folder_bytes(model: FieldwiseModel) -> int:
    """The bytes of a model on disk."""
    with tempfile.TemporaryDirectory() as folder:
        saved = model.save(Path(folder) / "model")
        return sum(file.stat().st_size for file in saved.iterdir())
