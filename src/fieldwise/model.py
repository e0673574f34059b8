"""A trained model: schema, vocabulary and table. Scores raw rows and explains its scores."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import maths
from .boosted import Boosted
from .data.schema import Schema, check_names
from .data.shuffle import wide_values
from .errors import ModelError
from .layout import Layout
from .losses import LOSSES
from .model_folder import read_model, write_model
from .objective import Head, Objective
from .packed import Packed
from .problem import Problem, value_moments
from .targets import folded
from .train import Fit

if TYPE_CHECKING:
    import polars as pl

    from .data.chunks import Chunk, Source
    from .data.single import RowCoder
    from .data.vocabulary import Vocabulary
    from .data.words import StoredWords
    from .explain.bound import Bound
    from .explain.categories import CategoryCard, Comparison
    from .explain.fields import FieldImportance
    from .explain.learned import Learned
    from .explain.rows import Explanation

__all__ = ["FieldwiseModel"]


class _Rows:
    """A model's table as float32. A packed table is decoded on first access."""

    def __get__(self, model: FieldwiseModel, owner: type) -> np.ndarray:
        return model.decoded if isinstance(model.stored, Packed) else model.stored

    def __set__(self, model: FieldwiseModel, rows: np.ndarray | Packed) -> None:
        model.stored = rows
        model.__dict__.pop("decoded", None)


@dataclass
class FieldwiseModel:
    """A trained model. It comes from an estimator's `model_`, from `train_table`, or from `load`.

    `rows` is the whole table, with the means of fields at its end; `table` leaves those out.
    `stored` is what scoring reads: `rows`, or a packed table if the model is compressed.

    Attributes
    ----------
    schema : the columns it reads, with their kinds, and its targets.
    metrics : metrics on the rows held out of training, such as "logloss" and "auc"; empty if none
        were held out.
    settings : the training settings, with all adaptive ones decided.
    history : the record of every epoch, a dict.
    lineage : the record of every update, a dict.
    layout : which rows and columns of its table belong to which field.
    """

    vocabulary: Vocabulary | StoredWords
    layout: Layout
    rows: np.ndarray
    objective: Objective
    offsets: np.ndarray  # (K,)
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    moments: np.ndarray | None = None  # (d, 2), where fields carry values
    boosted: Boosted | None = None  # trees that combine the scores, where they are not added up
    lineage: list[dict[str, Any]] = field(default_factory=list)  # an entry for each update
    _told: set[str] = field(default_factory=set, repr=False)  # fields already warned about

    @classmethod
    def of(
        cls,
        vocabulary: Vocabulary | StoredWords,
        problem: Problem,
        fit: Fit,
        settings: Mapping[str, Any],
        room: Callable[..., np.ndarray] = np.empty,
    ) -> FieldwiseModel:
        """The model of a fit. `room` allocates the array for its rows, given a shape and dtype."""
        table, layout, objective, offsets = folded(
            fit.table, problem.layout, fit.objective, fit.scale, fit.field_weights
        )
        table = np.asarray(table, dtype=np.float32)
        rows = room((layout.n_rows + layout.n_fields, layout.width), dtype=np.float32)
        rows[: layout.n_rows] = table
        rows[layout.n_rows :] = maths.mean_rows(table, layout, vocabulary.counts())
        trained_on = problem.rows.n_rows if problem.only is None else np.count_nonzero(problem.only)
        about = {**settings, "rows": int(trained_on)}
        if "weight" in problem.rows.names:
            about["weighted"] = True
        if problem.sampling_rate != 1:
            about["sampling_rate"] = problem.sampling_rate
        if (fit.scale.spread != 1).any():
            about["spread"] = fit.scale.spread.tolist()
        weights = fit.objective.voices or tuple(fit.field_weights.tolist())
        if problem.objective.combine in ("weighted", "weighted_vote"):
            about["field_weights"] = dict(zip(vocabulary.schema.names, weights, strict=True))
        return cls(
            *(vocabulary, layout, rows, objective, offsets + np.log(problem.sampling_rate)),
            *(about, dict(fit.metrics), list(fit.history)),
            value_moments(problem) if problem.valued else None,
        )

    stored: np.ndarray | Packed = field(init=False, repr=False, compare=False)

    @cached_property
    def decoded(self) -> np.ndarray:
        """A packed table as float32."""
        assert isinstance(self.stored, Packed)
        return self.stored.decoded()

    @property
    def compression(self) -> Mapping[str, Any]:
        """How the model was compressed (steps, certificate); empty where it was not."""
        return self.stored.about if isinstance(self.stored, Packed) else {}

    @property
    def schema(self) -> Schema:
        return self.vocabulary.schema

    @property
    def table(self) -> np.ndarray:
        """The table of parameters, (d, R + K): a row for each category."""
        return self.rows[: self.layout.n_rows]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes of the target, sorted; empty where it is a number."""
        return self.schema.target.classes if self.schema.target else ()

    def importance(self) -> dict[str, float]:
        """The paper's importance of every field, highest first."""
        found = maths.importance(self.table, self.layout)
        found[[f.is_linear for f in self.schema.fields]] = 0.0  # one model has no differences
        pairs = zip(self.schema.names, found.tolist(), strict=True)
        return dict(sorted(pairs, key=lambda pair: -pair[1]))

    def score_codes(
        self, codes: np.ndarray, values: np.ndarray | None, n_jobs: int | None = None
    ) -> np.ndarray:
        """z of coded rows, (n,) for one output or (n, K); codes (n, S), values (n, valued slots).

        For a vote it is the score whose prediction is the mean of the fields' predictions.
        """
        by_field = self.objective.is_vote
        found = self._score(codes, values, n_jobs, by_field=by_field)
        if self.boosted is not None:
            found = self.boosted.scores(self._features(found, values), n_jobs)
        if by_field:
            merged = self.objective.merged(found + self.offsets[:, None])
            found = np.concatenate([z.reshape(len(codes), -1) for z in merged], axis=1)
        return found[:, 0] if found.shape[1] == 1 else found

    def _features(self, scores: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        """The trees' inputs, (n, F): field-wise scores and the columns after the fields' values."""
        assert values is not None
        extras = values[:, len(self.schema.valued) :]
        return np.concatenate([scores.astype(np.float32), extras], axis=1)

    def choices(
        self, codes: np.ndarray, values: np.ndarray | None, n_jobs: int | None = None
    ) -> list[np.ndarray]:
        """Predicted values of coded rows for each target, (n,): the index of the likeliest class
        (for a vote, of the one most fields choose), or a number."""
        if self.objective.is_vote and all(h.is_class for h in self.objective.heads):
            f = self._score(codes, values, n_jobs, by_field=True) + self.offsets[:, None]
            return [votes.argmax(axis=1) for votes in self.objective.votes(f)]
        found = self.scores_by_target(codes, values, n_jobs)
        out = []
        for head, z in zip(self.objective.heads, found, strict=True):
            if head.loss == "softmax":
                out.append(z.argmax(axis=1))
            else:
                out.append((z > 0).astype(int) if head.is_class else self._meaning(head, z))
        return out

    def scores_by_target(
        self, codes: np.ndarray, values: np.ndarray | None, n_jobs: int | None = None
    ) -> list[np.ndarray]:
        """Scores of coded rows for each target, (n,) or (n, classes)."""
        return self.objective.by_head(self.score_codes(codes, values, n_jobs))

    @staticmethod
    def _meaning(head: Head, z: np.ndarray) -> np.ndarray:
        return LOSSES[head.loss].prediction(z.astype(np.float64))

    def predictions(self, z: np.ndarray) -> Any:
        """Scores to probabilities, numbers or rates; a dict by name for several targets."""
        pairs = zip(self.objective.heads, self.objective.by_head(z), strict=True)
        return self._named([self._meaning(head, part) for head, part in pairs])

    def _named(self, found: list[np.ndarray]) -> Any:
        """One value per target to a dict by name, or the only value."""
        names = [target.column for target in self.schema.targets]
        return found[0] if len(found) == 1 else dict(zip(names, found, strict=True))

    def _score(
        self,
        codes: np.ndarray,
        values: np.ndarray | None,
        n_jobs: int | None = None,
        *,
        by_field: bool,
    ) -> np.ndarray:
        wide = self._wide(codes, values)
        if self.layout.component != "linear":
            return self._score_slowly(codes, wide, by_field=by_field)
        from .engines.cpu import score

        return score(self.stored, self.layout, codes, wide, self.offsets, n_jobs, by_field)

    def _wide(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray | None:
        valued = self.schema.valued
        return wide_values(codes, None if values is None else values[:, : len(valued)], valued)

    def _score_slowly(
        self, codes: np.ndarray, wide: np.ndarray | None, *, by_field: bool
    ) -> np.ndarray:
        """`_score` by the definition, for components without kernels."""
        from .engines.reference import by_pieces

        f = by_pieces(self.rows, self.layout, self.layout.rows_or_unseen(codes), wide)
        return f if by_field else np.asarray(f.sum(axis=2) + self.offsets, np.float32)

    def field_scores(self, data: Any) -> np.ndarray:
        """f_i(x) of raw rows, without the offsets: (n, m) for one output, else (n, K, m)."""
        return np.concatenate([self.field_scores_of(*coded) for coded in self._coded(data)])

    def field_scores_of(
        self, codes: np.ndarray, values: np.ndarray | None, n_jobs: int | None = None
    ) -> np.ndarray:
        """The same for coded rows."""
        found = self._score(codes, values, n_jobs, by_field=True)
        return found[:, 0] if found.shape[1] == 1 else found

    def explain(self, data: Any) -> Explanation:
        """What every field and pair of fields adds to the score of raw rows, and exact Shapley
        values; see `Explanation`."""
        return self.explain_codes(*map(np.concatenate, zip(*self._coded(data), strict=True)))

    def explain_codes(self, codes: np.ndarray, values: np.ndarray) -> Explanation:
        """The same for coded rows."""
        plain = self.learned.rows(codes, values[:, : len(self.schema.valued)])
        if self.boosted is None:
            return plain
        from .explain.trees import tree_explanation

        words: Any = self.vocabulary
        scores = self._score(codes, values, by_field=False)
        features = self._features(scores, values)
        return tree_explanation(self.boosted, features, words.extra_parents, plain)

    def explain_fields(self, output: str | None = None) -> FieldImportance:
        """How much every field and pair of fields matters; see `FieldImportance`. `output` is a
        class, or one of several targets."""
        return self.learned.fields(output)

    def explain_category(
        self, field: str, value: Any, *, n: int = 3, output: str | None = None
    ) -> CategoryCard:
        """The model of a category: its bias, its `n` strongest partners for and against in every
        other field, its neighbours; see `CategoryCard`."""
        return self.learned.category(field, value, n=n, output=output)

    def compare_categories(
        self, field: str, first: Any, second: Any, *, n: int = 10, output: str | None = None
    ) -> Comparison:
        """Where the models of two categories of a field differ most; see `Comparison`."""
        return self.learned.compare(field, first, second, n=n, output=output)

    def rank(
        self,
        context: Mapping[str, Any],
        *,
        over: str,
        k: int = 20,
        output: str | None = None,
    ) -> pl.DataFrame:
        """The k highest-scoring categories of the field `over`, all else being as in `context` (a
        dict of raw values): category (null is missing), score, prediction.

        All categories are ranked, exactly; ties are in the order of codes. `output` is a class, or
        one of several targets; the last unless set.
        """
        from .ranking import rank

        return rank(self, context, over=over, k=k, output=output)

    def learn_category(self, field: str, value: Any, rows: Any) -> FieldwiseModel:
        """The model with one more category of a field, learned from a table of rows that all have
        it (the field's column may be left out) and their target, in milliseconds.

        Everything else is fixed, so all other predictions stay as they are, bit for bit; see
        `one_category`.
        """
        from .one_category import with_category

        return with_category(self, field, value, rows)

    def plot_importance(self, ax: Any = None) -> Any:
        """Plot each field's share of the score's variance with matplotlib; returns the axes."""
        return self.explain_fields().plot(ax)

    def plot_history(self, ax: Any = None) -> Any:
        """Plot the loss over the epochs with matplotlib; returns the axes."""
        from .explain.figures import plot_history

        return plot_history(self.history, ax)

    def bound(self, **settings: Any) -> Bound:
        """The paper's bound on the loss on new rows; `settings` are those of `explain.bound.Bound`:
        delta, lipschitz, loss_bound."""
        from .explain.bound import bound_of, check_bounded

        check_bounded(self.layout, self.objective)
        judged = [record for record in self.history if "loss" in record]
        last = self.history[-1] if self.history else {}
        kept = min(judged, key=lambda record: record["loss"], default=last)
        n_rows = self.settings.get("rows") or int(self.vocabulary.fields[0].counts().sum())
        return bound_of(
            self.table,
            self.layout,
            self.schema.names,
            n_rows,
            train_loss=kept.get("train_loss", float("nan")),
            marginals=self.learned.explainer.marginals,
            **settings,
        )

    def _noise(self) -> list[float | None]:
        """The root mean square error of every target; None if unknown."""
        names = [target.column for target in self.schema.targets]
        if len(names) == 1:
            return [self.metrics.get("rmse")]
        known = self.metrics  # by name, or numbered
        return [
            known.get(f"rmse_{name}", known.get(f"rmse_{k}")) for k, name in enumerate(names, 1)
        ]

    @cached_property
    def learned(self) -> Learned:
        """The source of all explanations; computed once, on first use."""
        from .explain.learned import Learned

        return Learned(
            self.vocabulary,
            self.layout,
            self.rows,
            self.objective,
            self.offsets,
            moments=self.moments,
            noise=self._noise(),
            weighted=bool(self.settings.get("weighted")),
            shift=float(np.log(self.settings.get("sampling_rate", 1.0))),
        )

    def coded_chunks(
        self, data: Any, n_unseen: np.ndarray | None = None, **options: Any
    ) -> Iterator[tuple[Chunk, tuple[np.ndarray, np.ndarray]]]:
        """Chunks of a table of any size and kind, each with its codes and values.

        Adds to `n_unseen` (m,) the rows in which a field has a value never seen in training.
        """
        from .data.readers import open_source

        source = open_source(data, schema=self.schema, **options)
        self._check_columns(source)
        for chunk in source.chunks():
            yield chunk, self.vocabulary.encode(chunk, n_unseen)

    def _check_columns(self, source: Source) -> None:
        check_names(self.schema.columns, source.columns, "column")
        known = {*self.schema.columns, *self.schema.dropped, *self.schema.roles}
        extra = [c for c in source.columns if c not in known]
        if extra:
            warnings.warn(
                f"columns the model does not know are ignored: {', '.join(extra[:5])}",
                stacklevel=5,
            )

    def decision_function(self, data: Any) -> np.ndarray:
        """Scores of raw rows: one dict, a frame, a path, anything that can be read.

        Log-odds for two classes; (n, K) for more classes or several targets; for a number the
        prediction, or of Poisson loss its logarithm.
        """
        return np.concatenate([self.score_codes(*coded) for coded in self._coded(data)])

    def _coded(self, data: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Codes and values of raw rows of any kind; warns of values never seen in training."""
        from .data.single import is_row

        if is_row(data, self.schema):
            yield self._row_coder(data)
            return
        n_unseen = np.zeros(self.layout.n_fields, np.int64)
        n_rows = 0
        for _, (codes, values) in self.coded_chunks(data, n_unseen):
            n_rows += len(codes)
            yield codes, values
        self._tell_unseen(self.unseen_shares(n_unseen, n_rows))

    def unseen_shares(self, n_unseen: np.ndarray, n_rows: int) -> dict[str, float]:
        """The share of rows with a value never seen in training, for each field that has any."""
        pairs = zip(self.schema.names, n_unseen.tolist(), strict=True)
        return {name: count / n_rows for name, count in pairs if count}

    def _tell_unseen(self, shares: Mapping[str, float]) -> None:
        """Warn of values never seen in training, once per field."""
        fresh = [name for name in shares if name not in self._told]
        self._told.update(fresh)
        if fresh:
            parts = ", ".join(f"{name} {shares[name]:.2%} of rows" for name in fresh)
            warnings.warn(f"values never seen in training: {parts}", stacklevel=5)

    def predict_proba(self, data: Any) -> Any:
        """The probability of the second of two classes, (n,), or of every class, (n, K).

        `data` is a frame, a path or anything that holds a table; or a dict of the raw values of one
        row. With several targets the result is a dict by name.
        """
        if not all(head.is_class for head in self.objective.heads):
            raise ModelError("the model predicts numbers, not classes; use predict")
        return self.predictions(self.decision_function(data))

    def predict(self, data: Any) -> Any:
        """The number for every row, or the likeliest class as text (for a vote, the one most fields
        choose); `data` as for `predict_proba`. With several targets a dict by name."""
        parts = [self.choices(*coded) for coded in self._coded(data)]
        found = [np.concatenate(pieces) for pieces in zip(*parts, strict=True)]
        pairs = zip(self.schema.targets, found, strict=True)
        return self._named([np.array(t.classes)[a] if t.classes else a for t, a in pairs])

    @property
    def base_vocabulary(self) -> Any:
        """The vocabulary of the table's own fields, without the fields made of evidence."""
        words: Any = self.vocabulary
        return words if words.evidence is None else words.base

    @cached_property
    def base_coder(self) -> RowCoder:
        """Turns one raw row into the codes of the table's own fields."""
        from .data.single import RowCoder

        return RowCoder(self.base_vocabulary)

    @cached_property
    def _row_coder(self) -> Any:
        if self.vocabulary.evidence is None:
            return self.base_coder
        words: Any = self.vocabulary
        coder = self.base_coder

        def crossed(row: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
            codes, values = coder(row)
            return words.extended(codes, values, words.evidence.of(codes))

        return crossed

    def _repr_html_(self) -> str:
        from .explain.html import model_html

        importance = self.importance()
        sizes = zip(self.schema.fields, self.layout.sizes, self.layout.ranks, strict=True)
        fields = [
            {"name": f.name, "kind": f.shown_kind, "categories": size,
             "rank": rank, "importance": importance[f.name]}
            for f, size, rank in sizes
        ]  # fmt: skip
        about = {
            "target": ", ".join(target.column for target in self.schema.targets),
            "fields": self.layout.n_fields,
            "categories": self.layout.n_rows,
            "parameters": self.layout.n_parameters,
            "metrics": self.metrics,
        }
        return model_html(about, fields)

    def __getstate__(self) -> dict[str, Any]:
        left = ("_row_coder", "base_coder", "learned", "decoded")
        return {k: v for k, v in self.__dict__.items() if k not in left}

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model into the folder `path`, completely or not at all. An existing model is an
        error, or is replaced with `overwrite=True`."""
        return write_model(self, Path(path), overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> FieldwiseModel:
        """Load the model in a folder. Its files are checked, and its table is memory-mapped."""
        return cls(**read_model(Path(path)))


# Not in the class body, where the dataclass would take it for the field's default.
FieldwiseModel.rows = _Rows()  # type: ignore[assignment]
