"""Fits with crosses: find them, learn their evidence, train on it, let trees combine the scores.

    rows -> find_crosses -> Evidence -> the field-wise model with evidence as fields       (glass)
                                     -> field-wise scores, cross-fitted, and trees on top  (boosted)

Everything a row is trained with is cross-fitted: evidence from other folds, scores by models that
did not see the row. Validation rows, and all others, get both from all training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from .blas import one_blas_thread
from .boosted import Examples, fit_boosted, judged, need_trees
from .crosses import Evidence, draw_folds, find_crosses
from .crosses.evidence import FOLDS, Fitted, Observed
from .data.schema import Schema, slot_positions
from .data.shuffle import Rows, gathered
from .errors import DataError, SettingError, not_one_of, unknown_column
from .layout import Layout
from .model import FieldwiseModel
from .objective import Head, Objective
from .problem import Problem
from .targets import scale_of
from .train import Fit, Running, TrainSettings, train

if TYPE_CHECKING:
    from .crosses.vocabulary import CrossedVocabulary
    from .data.vocabulary import Vocabulary
    from .data.words import StoredWords

__all__ = [
    "Crosses",
    "Crossing",
    "Parts",
    "as_trained",
    "cross_fitted_scores",
    "decide",
    "evidence_targets",
    "fit_crossed",
    "layout_for",
    "learn_evidence",
    "n_copies",
    "tree_examples",
]

PRESETS = ("fast", "glass", "best")
FLOOR = 30  # least min_count of a model that reads evidence, which covers rarer categories
FEW, COPIES = 50_000, 3  # fewer rows are used three times, each time with different folds
SCORE_FOLDS = 5
# Evidence is informative from the start, so steps are small and shrinkage strong; found on the
# validation rows of seven tables. With many rows one epoch shows which step is best, and it may be
# a larger one.
GLASS_SHRINKAGE = 30.0
GLASS_RATES, MANY_RATES = (0.003, 0.01, 0.03), (0.01, 0.03, 0.1)

Crosses = str | Sequence[Sequence[str]]
LayoutOf = Callable[["Vocabulary", Objective], Layout]


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """Which crosses, and whether trees combine the scores."""

    crosses: Crosses = "auto"
    boosted: bool = False
    floor: int = 2  # categories seen less often have no row of their own

    def __post_init__(self) -> None:
        if not isinstance(self.floor, Integral) or self.floor < 1:
            raise SettingError(f"min_count={self.floor!r} must be a whole number of at least 1")

    def chosen(self, schema: Schema, known: Observed, running: Running, seed: int) -> list[Any]:
        """What to learn evidence of, each a tuple of slots: single fields first, then crosses."""
        singles = crossable(schema)
        if self.crosses == "none":
            crosses: list[tuple[int, ...]] = []
        elif self.crosses == "auto":
            jobs, show = running.n_jobs, running.show
            crosses = find_crosses(known, list(singles.values()), seed=seed, n_jobs=jobs, show=show)
        elif isinstance(self.crosses, str):
            raise SettingError(f"crosses={self.crosses!r} is not auto, none or a list of fields")
        else:
            crosses = [_slots(cross, schema, singles) for cross in self.crosses]
        return [*((slot,) for slot in singles.values()), *crosses]


def decide(
    preset: str, crosses: Crosses | None, combine: str | None, *, floor: int = 2, **apart: bool
) -> tuple[Crossing | None, str]:
    """The crossing that these ask for together, or None, and how the fields' scores combine.

    `apart` are settings, by name, that do not go with crosses.
    """
    if preset not in PRESETS:
        raise not_one_of(f"preset={preset!r}", preset, PRESETS)
    if combine is None:
        combine = "boosted" if preset == "best" else "sum"
    boosted = combine == "boosted"
    if crosses is None:
        crosses = "auto" if boosted or preset != "fast" else "none"
    if not boosted and isinstance(crosses, str) and crosses == "none":
        return None, combine
    for name, is_on in apart.items():
        if is_on:
            raise SettingError(f"{name}=True does not go with crosses; set crosses='none'")
    crossing = Crossing(crosses=crosses, boosted=boosted, floor=floor)
    return crossing, "sum" if boosted else combine


def layout_for(
    words: Vocabulary | StoredWords,
    objective: Objective,
    *,
    rank: int | None = None,
    rank_base: float | None = None,
    ranks: Mapping[str, int] | None = None,
    component: str = "linear",
) -> Layout:
    """The layout of a vocabulary's fields, including those made of evidence."""
    schema = words.schema
    # Evidence has no models of its own: every category's model weighs it.
    overrides = {i: 0 for i, f in enumerate(schema.fields) if f.is_linear or f.cross}
    for name, value in (ranks or {}).items():
        overrides[schema.names.index(schema[name].name)] = value
    return Layout.of(
        words.sizes,
        rank=rank,
        rank_base=rank_base,
        overrides=overrides,
        n_outputs=objective.n_outputs,
        slots=schema.slots,
        component=component,
    )


def crossable(schema: Schema) -> dict[str, int]:
    """Slots of the fields that can be crossed, by name: those with one category in every row."""
    places = zip(schema.fields, slot_positions(schema.slots), strict=True)
    return {f.name: place.start for f, place in places if not f.is_linear and not f.is_list}


def _slots(cross: Sequence[str], schema: Schema, singles: dict[str, int]) -> tuple[int, ...]:
    names = list(cross)
    for name in names:
        if name not in schema.names:
            raise unknown_column(str(name), schema.names, what="field of a cross")
        if name not in singles:
            raise SettingError(f"field {name!r} is linear or a list; it cannot be crossed")
    if isinstance(cross, str) or len(set(names)) < len(names) or len(names) < 2:
        raise SettingError(f"cross {cross!r} must name two different fields or more")
    return tuple(sorted(singles[name] for name in names))


@dataclass
class Parts:
    """Coded rows to train on (`known`) and to validate on (`judge`)."""

    known: dict[str, np.ndarray]
    judge: dict[str, np.ndarray] | None

    @classmethod
    def of(cls, rows: Any, parts: dict[str, Any]) -> Parts:
        known = _valued(gathered(rows, parts.get("only")))
        if parts.get("validation") is not None:
            return cls(known, _valued(gathered(parts["validation"], None)))
        held_out = parts.get("held_out")
        return cls(known, None if held_out is None else _valued(gathered(rows, held_out)))


def _valued(part: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Add an array of values, without columns, where it is left out: no field carries any."""
    return {"values": np.zeros((len(part["codes"]), 0), np.float32), **part}


def fit_crossed(
    words: Vocabulary,
    parts: Parts,
    crossing: Crossing,
    *,
    layout_of: LayoutOf,
    objective: Objective,
    settings: TrainSettings,
    running: Running,
    sampling_rate: float = 1.0,
) -> tuple[FieldwiseModel, Fit]:
    """A model with crosses, and the fit of its field-wise part."""
    head = _only_head(objective)
    if crossing.boosted:
        need_trees()
    if not crossable(words.schema):
        raise SettingError("lists and linear fields have no evidence; set preset='fast'")
    n, seed = len(parts.known["codes"]), settings.seed
    if n < FOLDS:
        raise DataError(f"{n} rows are fewer than the {FOLDS} folds of crosses; set crosses='none'")
    copies = n_copies(n)
    evidence, fitted = learn_evidence(
        words.schema, parts.known, head, crossing, running, seed, copies
    )
    crossed = _vocabulary(words, evidence, fitted, crossing)
    known = _stacked(crossed, parts.known, fitted)
    judge = None
    if parts.judge is not None:
        judge = _stacked(crossed, parts.judge, [evidence.of(parts.judge["codes"])])
    # Without evidence among its fields a row is the same in every copy.
    n_fitted = n if crossing.boosted else known.n_rows
    problem = Problem(
        layout=layout_of(crossed, objective),
        rows=_plain(crossed, known, n_fitted),
        counts=crossed.counts(),
        validation=None if judge is None else _plain(crossed, judge, judge.n_rows),
        valued=crossed.schema.valued,
        objective=objective,
        sampling_rate=sampling_rate,
    )
    rates = None
    if not crossing.boosted:
        rates = GLASS_RATES if n < FEW else MANY_RATES
        if settings.weight_decay is None and settings.shrinkage is None:
            settings = replace(settings, shrinkage=GLASS_SHRINKAGE)
    probe = not crossing.boosted and n >= FEW
    fit = train(problem, settings, _kept_apart(running, "fields"), rates=rates, probe=probe)
    model = FieldwiseModel.of(crossed, problem, fit, asdict(fit.settings))
    model = replace(model, settings={**model.settings, "rows": n})
    if crossing.boosted:
        scores = cross_fitted_scores(crossed, problem, fit, running)
        model = _with_trees(model, known, judge, np.concatenate([scores] * copies), running)
    return model, fit


def n_copies(n_rows: int) -> int:
    """How often each of so many rows is used, each time with evidence from different folds."""
    return COPIES if n_rows < FEW else 1


def _vocabulary(
    words: Vocabulary, evidence: Evidence, fitted: Sequence[Fitted], crossing: Crossing
) -> CrossedVocabulary:
    from .crosses.vocabulary import CrossedVocabulary, evidence_fields

    if crossing.boosted:
        return CrossedVocabulary(words, evidence, floor=crossing.floor, with_extras=True)
    own = evidence_fields(words.schema, evidence.crosses, fitted)
    return CrossedVocabulary(words, evidence, floor=max(crossing.floor, FLOOR), own=own)


def _kept_apart(running: Running, name: str) -> Running:
    """The same, with its own folder for checkpoints."""
    return replace(running, checkpoint=running.checkpoint and running.checkpoint / name)


@one_blas_thread()
def learn_evidence(
    schema: Schema,
    known: dict[str, np.ndarray],
    head: Head,
    crossing: Crossing,
    running: Running,
    seed: int,
    copies: int,
) -> tuple[Evidence, list[Fitted]]:
    """The evidence of fields and crosses, and its values for these rows, cross-fitted `copies`
    times with different folds."""
    scale_of(Rows(**known), None, Objective((head,)))  # raises where training would
    rows = Observed.of(known["codes"], evidence_targets(head, known["target"]), known.get("weight"))
    crosses = crossing.chosen(schema, rows, running, seed)
    folds = [draw_folds(len(rows.y), seed + 1000 * k) for k in range(copies)]
    return Evidence.learn(rows, crosses, folds, n_jobs=running.n_jobs)


def _stacked(words: CrossedVocabulary, part: dict[str, Any], fitted: Sequence[Fitted]) -> Rows:
    """Rows with their evidence, once for every assignment to folds."""
    coded = [words.extended(part["codes"], part["values"], found) for found in fitted]
    codes, values = map(np.concatenate, zip(*coded, strict=True))
    again = {
        name: np.concatenate([part[name]] * len(fitted))
        for name in ("target", "weight")
        if name in part
    }
    return Rows(codes=codes, values=values, **again)


def _plain(words: CrossedVocabulary, rows: Rows, n: int) -> Rows:
    """The first n rows, without the columns after the fields' values."""
    found = rows.read(0, n)
    return Rows(**{**found, "values": found["values"][:, : len(words.schema.valued)]})


def _with_trees(
    model: FieldwiseModel, known: Rows, judge: Rows | None, scores: np.ndarray, running: Running
) -> FieldwiseModel:
    """The model with trees over its scores; `scores` are cross-fitted, of the rows `known`."""
    head, n_values = model.objective.heads[0], len(model.schema.valued)
    to_judge = None
    if judge is not None:
        whole = judge.read(0, judge.n_rows)
        z = model.score_codes(whole["codes"], whole["values"], running.n_jobs)
        to_judge = tree_examples(whole, z, n_values)
    boosted = fit_boosted(
        tree_examples(known.read(0, known.n_rows), scores, n_values),
        to_judge,
        head,
        copies=known.n_rows // model.settings["rows"],
        seed=model.settings["seed"],
        n_jobs=running.n_jobs,
        shift=float(np.log(model.settings.get("sampling_rate", 1.0))),
        show=running.show,
    )
    metrics = model.metrics if to_judge is None else judged(boosted, to_judge, head)
    return replace(model, boosted=boosted, metrics=metrics)


def tree_examples(rows: Mapping[str, np.ndarray], z: np.ndarray, n_values: int) -> Examples:
    """What trees learn from: scores z, (n,) or (n, K), and beside them the columns of the rows
    after the first `n_values`, which are the fields' values."""
    scores = z.reshape(len(z), -1).astype(np.float32)
    features = np.concatenate([scores, rows["values"][:, n_values:]], axis=1)
    weight = rows["weight"][:, 0] if "weight" in rows else None
    return Examples(features, rows["target"][:, 0], weight)


def as_trained(fit: Fit) -> TrainSettings:
    """The settings of a fit, with the best number of epochs, so that no validation is needed."""
    epochs = fit.best_epoch + 1 if fit.best_epoch >= 0 else fit.settings.epochs
    return replace(fit.settings, epochs=epochs)


def cross_fitted_scores(
    words: CrossedVocabulary, problem: Problem, fit: Fit, running: Running
) -> np.ndarray:
    """(n, K) scores of the rows by models with the same settings that did not see them"""
    n = problem.rows.n_rows
    fold = draw_folds(n, fit.settings.seed + 1, SCORE_FOLDS)
    settings = as_trained(fit)
    quiet = replace(running, callbacks=(), show=False)
    whole = problem.rows.read(0, n)
    out = np.zeros((n, problem.objective.heads[0].size), np.float32)
    for k in np.unique(fold).tolist():  # of few rows some folds are empty
        without = replace(problem, only=fold != k, validation=None, held_out=None)
        found = train(without, settings, _kept_apart(quiet, f"fold-{k}"))
        model = FieldwiseModel.of(words, without, found, {})
        left = fold == k
        values = whole["values"][left] if "values" in whole else None
        z = model.score_codes(whole["codes"][left], values, running.n_jobs)
        out[left] = z.reshape(len(z), -1)
    return out


def _only_head(objective: Objective) -> Head:
    if len(objective.heads) != 1 or objective.is_vote:
        raise SettingError(
            "crosses learn one target whose fields' scores are added up; leave out combine='vote' "
            "or set crosses='none'"
        )
    return objective.heads[0]


def evidence_targets(head: Head, target: np.ndarray) -> np.ndarray:
    """(n, T) the values whose means are the evidence: the number, or an indicator of each class"""
    if head.loss != "softmax":
        return target[:, :1].astype(np.float64)
    return (target[:, :1] == np.arange(head.size)).astype(np.float64)
