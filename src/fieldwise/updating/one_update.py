"""One update of a model: its table with rows for new categories, steps as small as training's last
ones, the better of both tables on held-out rows, evidence and trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from .. import maths
from ..boosted import Boosted, Examples, freshened, judged
from ..crosses.evidence import Observed
from ..crosses.vocabulary import CrossedVocabulary
from ..crossing import evidence_targets, n_copies, tree_examples
from ..data.encoding import load_vocabulary
from ..data.shuffle import Rows, Table, gathered, wide_values
from ..data.store import Store
from ..data.vocabulary import Vocabulary
from ..errors import SchemaError, SettingError
from ..held_out import default_share, held_out_rows
from ..layout import Layout
from ..losses import LOSSES
from ..model import FieldwiseModel
from ..objective import Objective
from ..problem import Problem, evaluate, judge_rows
from ..targets import Scale, scale_of
from ..train import Fit, Running, TrainSettings, fitted_engine, grown, train

__all__ = ["Update", "UpdateSettings", "grown_table"]

# One pass over the new rows, with steps smaller than training's: of 0.2, 0.4 and 1 times, and 1, 2
# and 4 epochs, the one that is best or close to it on six tables. More overfits the new rows.
EPOCHS, STEP = 1, 0.4
FEWEST_HELD_OUT = 100  # rows; with fewer none are held out
SAMPLE, SAMPLES = 64, 8  # rows per sample, and samples, to measure the size of gradients on
PIECE = 1 << 16  # rows counted at a time


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """The settings of an update; see `update`."""

    forget: float = 0.0
    epochs: int | None = None
    learning_rate: float | None = None
    validation: float | None = None
    min_count: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.forget <= 1:
            raise SettingError(f"forget={self.forget} must lie between 0 and 1")
        if self.validation is not None and not 0 <= self.validation < 1:
            raise SettingError(f"validation={self.validation} must be at least 0 and less than 1")
        if self.min_count is not None and self.min_count < 1:
            raise SettingError(f"min_count={self.min_count} must be at least 1")

    @property
    def keep(self) -> float:
        """The factor of old counts and sums."""
        return 1 - self.forget

    def held_out(self, store: Store, words: Vocabulary, seed: int) -> np.ndarray | None:
        """(n,) true for the rows to hold out; None if there are to be none, or too few."""
        share = default_share(store) if self.validation is None else self.validation
        if share == 0 or (self.validation is None and share * store.n_rows < FEWEST_HELD_OUT):
            return None
        found = held_out_rows(store, words, "random", share, seed)
        return found if found.any() and not found.all() else None


def grown_table(model: FieldwiseModel, words: Any, layout: Layout) -> np.ndarray:
    """The table with rows for new categories, which score as before: a category that was rare
    starts as the rare row, one that was never seen as the mean of its field's rows."""
    old = model.layout
    out = grown(model.table, old, layout, None)
    known: Any = model.vocabulary
    for i, (mine, before) in enumerate(zip(words.fields, known.fields, strict=True)):
        fresh = mine.entries.filter(pl.col("code") >= old.sizes[i])
        rare = before.entries.filter(pl.col("code") == 0).select("category")
        was_rare = fresh.join(rare, on="category", how="semi", nulls_equal=True)["code"]
        out[layout.offsets[i] + old.sizes[i] : layout.offsets[i + 1]] = model.rows[old.n_rows + i]
        out[layout.offsets[i] + was_rare.to_numpy()] = model.table[old.offsets[i]]
    return out


class Update:
    """One update of `model` with the encoded rows of `store`, step by step; `updated` runs all."""

    def __init__(
        self,
        model: FieldwiseModel,
        store: Store,
        asked: UpdateSettings,
        running: Running,
        seed: int,
    ) -> None:
        self.model, self.asked, self.running, self.seed = model, asked, running, seed
        self.store = store
        words, base = model.vocabulary, load_vocabulary(store)
        self._codes_of: Mapping[int, np.ndarray] = {}
        if isinstance(words, CrossedVocabulary):
            if base.schema.slots != words.base.schema.slots:
                raise SchemaError(
                    "lists are longer than those the model was trained on, which a model with "
                    "crosses cannot take; train a new one"
                )
            base, self._codes_of = words.grown(base)
        self.words = base
        self.layout = replace(model.layout, sizes=tuple(base.sizes), slots=tuple(base.schema.slots))
        self.held_out = asked.held_out(store, base, seed)

    @cached_property
    def crossed(self) -> dict[str, np.ndarray]:
        """All rows in memory, for a model with crosses: codes of the table's own fields (`own`),
        and codes and values of all fields, with evidence from the old rows."""
        words: Any = self.words
        rows = dict(gathered(self.store, None))
        own = rows["codes"].copy()
        for slot, codes in self._codes_of.items():
            own[:, slot] = codes[own[:, slot]]
        values = rows.get("values", np.zeros((len(own), 0), np.float32))
        codes, values = words.extended(own, values, words.evidence.of(own))
        return {**rows, "own": own, "codes": codes, "values": values}

    @cached_property
    def rows(self) -> Table:
        if not isinstance(self.words, CrossedVocabulary):
            return self.store
        kept = {k: v for k, v in self.crossed.items() if k != "own"}
        kept["values"] = kept["values"][:, : len(self.words.schema.valued)]
        return Rows(**kept)

    @cached_property
    def problem(self) -> Problem:
        held_out = self.held_out
        objective: Objective = self.model.objective
        if objective.combine == "weighted_vote":  # the weights of votes stay
            objective = replace(objective, combine="vote")
        return Problem(
            layout=self.layout,
            rows=self.rows,
            counts=self.words.counts(),
            only=None if held_out is None else ~held_out,
            held_out=held_out,
            valued=self.words.schema.valued,
            objective=objective,
            sampling_rate=self.model.settings.get("sampling_rate", 1.0),
            names=[target.column for target in self.words.schema.targets],
        )

    @cached_property
    def seen(self) -> np.ndarray:
        """(d,) how often each category occurs in the new rows"""
        out = np.zeros(self.layout.n_rows, np.int64)
        for start in range(0, self.rows.n_rows, PIECE):
            part = self.rows.read(start, min(start + PIECE, self.rows.n_rows))
            at = self.layout.rows(part["codes"])
            wide = wide_values(part["codes"], part.get("values"), self.problem.valued)
            several = self.layout.n_slots > self.layout.n_fields and wide is not None
            at = at[wide != 0] if several else at
            out += np.bincount(at.reshape(-1), minlength=self.layout.n_rows)
        return out

    def settings(self) -> TrainSettings:
        """The model's training settings, but smaller steps, and smaller batches for few rows."""
        known = {f.name for f in fields(TrainSettings)} - {"half", "bagging", "reg_every"}
        kept = {k: v for k, v in self.model.settings.items() if k in known}
        given = {"epochs": self.asked.epochs, "learning_rate": self.asked.learning_rate}
        rate = kept.get("learning_rate")
        usual = {
            "learning_rate": STEP * rate if rate else None,
            "epochs": EPOCHS,
            "patience": 1,
            "seed": self.seed,
        }
        told = {k: v for k, v in given.items() if v is not None}
        settings = TrainSettings(**{**kept, **usual, **told})
        n_rows = self.rows.n_rows if self.held_out is None else np.count_nonzero(~self.held_out)
        smaller = replace(settings, batch_size=None).settled(int(n_rows)).batch_size
        batch = min(settings.batch_size or 2048, smaller or 1)
        return replace(settings, batch_size=batch).settled(int(n_rows))

    def scale(self) -> Scale:
        """The scale of targets: the one of training, or if unknown that of the new rows."""
        model, objective = self.model, self.problem.objective
        spread = np.array(model.settings.get("spread", []), np.float64)
        if not len(spread) and any(head.is_scaled for head in objective.heads):
            spread = scale_of(self.rows, None, objective).spread
        spread = spread if len(spread) else np.ones(len(objective.heads))
        offsets = model.offsets - np.log(self.problem.sampling_rate)
        first = [outputs.start for outputs in objective.outputs]
        scaled = [head.is_scaled for head in objective.heads]
        center = np.where(scaled, offsets[first], 0.0)
        scale = Scale(offsets, center, spread)
        centers, spreads = scale.of_outputs(objective)
        return replace(scale, offsets=(offsets - centers) / spreads)

    def start(self) -> Fit:
        """The model as training would have left it: its table in the engine's scale, and steps as
        small as they would be by now."""
        scale, settings, layout = self.scale(), self.settings(), self.layout
        table = grown_table(self.model, self.words, layout)
        _, spreads = scale.of_outputs(self.problem.objective)
        if (spreads != 1).any():
            table = maths.fold(table, layout, np.repeat(1 / spreads[:, None], layout.n_fields, 1))
        state = self._state(table, scale, settings)
        weights = np.ones(layout.n_fields)
        return Fit(table, state, [], -1, {}, settings, scale, weights, self.problem.objective)

    def _state(self, table: np.ndarray, scale: Scale, settings: TrainSettings) -> np.ndarray:
        """Adagrad's accumulators (d, R + K), which models do not keep, estimated as

        initial + passes x count of the row x mean squared gradient of a sample / batch size^2

        A row's gradient is a mean over the batch, and a row that occurs hardly ever twice in a
        batch gains the square of one sample's each time.
        """
        layout, batch = self.layout, settings.batch_size or 1
        squares = self._passes() / batch**2 * self._gradient_squares(table, scale)
        count = self._known_counts().astype(np.float32)
        state = np.full(table.shape, self._initial_state(settings), np.float32)
        for i in range(layout.n_fields):
            own = layout.own(i)
            state[own] += count[own, None] * squares[i].astype(np.float32)
        return state

    def _gradient_squares(self, table: np.ndarray, scale: Scale) -> np.ndarray:
        """(m, R + K) the mean squared gradient of a new row with respect to its rows of the table,
        measured on a sample"""
        layout, objective, rows = self.layout, scale.scaled(self.problem.objective), self.rows
        starts = np.linspace(0, max(rows.n_rows - SAMPLE, 0), SAMPLES).astype(int)
        found = []
        for start in np.unique(starts).tolist():
            some = rows.read(start, min(start + SAMPLE, rows.n_rows))
            wide = wide_values(some["codes"], some.get("values"), self.problem.valued)
            y = (some["target"] - scale.center) / scale.spread
            w = some.get("weight", np.ones((len(y), 1)))
            small, at = maths.local(table, layout.rows(some["codes"]))
            f = maths.field_scores(small, layout, at, wide)
            df = objective.slopes(f, scale.offsets, y, w, np.ones(layout.n_fields))[1] * len(y)
            found.append(maths.gradient_squares(small, layout, at, df, wide))
        return np.mean(found, axis=0)

    def _known_counts(self) -> np.ndarray:
        """(d,) how often each category was seen before the new rows, after forgetting"""
        counts = self.words.counts()
        if not isinstance(self.words, CrossedVocabulary):
            return counts - self.seen
        first = self.layout.offsets[len(self.words.base.fields)]
        return np.concatenate([(counts - self.seen)[:first], self.asked.keep * counts[first:]])

    def _initial_state(self, settings: TrainSettings) -> float:
        """The accumulator of a category never seen. It makes its steps as large as training's first
        ones, although the rate and the batch are smaller now."""
        known, batch = self.model.settings, settings.batch_size or 1
        rate = settings.learning_rate or 1.0
        smaller = min(1.0, rate / known.get("learning_rate", rate))
        return float(
            settings.initial_state * (smaller * known.get("batch_size", batch) / batch) ** 2
        )

    def _passes(self) -> int:
        """The number of passes of training over every row."""
        n_rows, epochs = self.model.settings.get("rows"), max(1, len(self.model.history))
        if self.words.evidence is None or n_rows is None:
            return epochs
        return n_copies(n_rows) * epochs

    def _metrics(self, fit: Fit) -> dict[str, float]:
        """The metrics of a fit on the held-out rows; empty if there are none."""
        judge = judge_rows(self.problem)
        if judge is None:
            return {}
        engine = fitted_engine(self.problem, fit, self.running)
        return evaluate(engine, self.problem, *judge, fit.scale)

    def updated(self) -> FieldwiseModel:
        start = self.start()
        before = self._metrics(start)
        fit = train(self.problem, start.settings, self.running, start)
        is_better = not before or fit.metrics["loss"] < before["loss"]
        judged = {"before": before, "after": dict(fit.metrics) if is_better else before}
        trees = None
        if self.model.boosted is not None:
            trees, is_better, judged = self._trees(start, fit)
        about = {
            "rows": self.rows.n_rows,
            "forget": self.asked.forget,
            "learning_rate": start.settings.learning_rate,
            "epochs": len(fit.history),
            "new_categories": self._n_new(),
            "table": "trained on" if is_better else "kept",
            **judged,
        }
        new = self._model(fit if is_better else start, self._final_words())
        return replace(
            new,
            metrics=judged["after"] or dict(self.model.metrics),
            boosted=trees,
            lineage=[*self.model.lineage, about],
        )

    def _n_new(self) -> dict[str, int]:
        grown = zip(
            self.words.schema.names, self.layout.sizes, self.model.layout.sizes, strict=True
        )
        return {name: now - was for name, now, was in grown if now > was}

    def _model(self, fit: Fit, words: Any) -> FieldwiseModel:
        model, n_old = self.model, self.asked.keep * self.model.settings.get("rows", 0)
        new = FieldwiseModel.of(words, self.problem, fit, {})
        moments = new.moments
        if moments is not None and model.moments is not None:
            before = grown(model.moments, model.layout, self.layout, None)
            share = n_old / (n_old + self.rows.n_rows)
            moments = share * before + (1 - share) * moments
        return replace(
            new,
            objective=model.objective,
            settings={**model.settings, "rows": round(n_old) + self.rows.n_rows},
            history=list(model.history),
            moments=moments,
        )

    def _final_words(self) -> Vocabulary:
        """The vocabulary of the updated model; with crosses, its evidence includes the new rows."""
        words = self.words
        if not isinstance(words, CrossedVocabulary):
            return words
        head, rows, evidence = self.model.objective.heads[0], self.crossed, words.evidence
        offsets = self.model.offsets - np.log(self.problem.sampling_rate)
        mean = evidence.mean
        if mean is None:  # of a model made before it was kept
            mean = np.atleast_1d(LOSSES[head.loss].prediction(offsets[None])[0])
        known = Observed.of(rows["own"], evidence_targets(head, rows["target"]), rows.get("weight"))
        jobs = self.running.n_jobs
        joined = evidence.joined(known, mean, keep=self.asked.keep, n_jobs=jobs)
        own = self.seen[self.layout.offsets[len(words.base.fields)] :]
        return words.learned_more(joined, own, self.asked.keep)

    def _trees(self, start: Fit, fit: Fit) -> tuple[Boosted, bool, dict[str, Any]]:
        """The new trees, whether the new table is better with the old ones, and what was done."""
        trees, rows, jobs = self.model.boosted, self.crossed, self.running.n_jobs
        assert trees is not None
        held_out = self.held_out
        if held_out is None:
            return trees, True, {"trees": "kept", "before": {}, "after": {}}
        head, n_values = self.model.objective.heads[0], len(self.words.schema.valued)

        def examples(model: FieldwiseModel, part: np.ndarray) -> Examples:
            some = {name: array[part] for name, array in rows.items() if name != "own"}
            z = model.score_codes(some["codes"], some["values"][:, :n_values], jobs)
            return tree_examples(some, z, n_values)

        both = [self._model(one, self.words) for one in (start, fit)]
        judges = [examples(model, held_out) for model in both]
        before, after = (judged(trees, judge, head, jobs) for judge in judges)
        is_better = after["loss"] < before["loss"]
        # Scores of the old table, which did not see the rows: the new one has seen their labels.
        known = examples(both[0], ~held_out)
        chosen, how, after = freshened(
            *(trees, known, judges[is_better], head),
            seed=self.seed,
            n_jobs=jobs,
            show=self.running.show,
        )
        return chosen, is_better, {"trees": how, "before": before, "after": after}
