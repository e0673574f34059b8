"""scikit-learn estimators: a table of strings, numbers and times in, probabilities out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from .data.encoder import FieldEncoder
from .data.schema import Target
from .data.shuffle import Rows
from .data.vocabulary import Vocabulary
from .errors import DataError, SettingError
from .layout import Layout
from .losses import sigmoid
from .model import FieldwiseModel
from .train import Fit, Problem, Running, TrainSettings, initialise, train

__all__ = ["FieldwiseClassifier", "grown"]

FEWEST_HELD_OUT = 100  # rows; with fewer there is nothing to stop early on
EPOCHS_UNJUDGED = 10  # without validation rows


class FieldwiseClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Field-wise learning of two classes: a linear model over the other fields for every category.

    Parameters
    ----------
    rank : rank of every field's models (at most its number of categories); None is 32, and 16 or 8
        where the table would be large.
    rank_base : ranks grow as the logarithm of a field's size to this base instead.
    learning_rate : Adagrad's step; None tries some and keeps the one that is best on held-out rows.
    weight_decay, penalty : the decay of rows present in a batch, and the weight of the variance and
        mean-norm constraints.
    batch_size, reg_every : rows a step and steps between penalties; None adapts them to the table.
    averages : tables of an epoch's second half whose mean is kept; 1 is its last, as in the paper.
    epochs, patience : at most so many epochs, fewer once so many brought nothing on held-out rows.
    validation_fraction : share of the rows held out for that where `eval_set` is not given.
    kinds, drop, min_count, unseen, n_bins, fields : see `FieldEncoder`.
    warm_start : go on from the last `fit`; new categories are added.
    random_state : a whole number; None is 0. The same seed gives the same bits.
    n_jobs : threads; None is all cores. The result does not depend on it.
    verbose : 1 shows a bar and a line an epoch.

    Attributes
    ----------
    model_ : FieldwiseModel, which saves, loads and scores raw rows.
    classes_, n_features_in_, feature_names_in_, history_
    """

    def __init__(
        self,
        *,
        rank: int | None = None,
        rank_base: float | None = None,
        learning_rate: float | None = None,
        weight_decay: float = 1e-5,
        penalty: float = 1e-5,
        batch_size: int | None = None,
        reg_every: int | None = None,
        epochs: int = 30,
        patience: int = 2,
        averages: int = 8,
        validation_fraction: float = 0.1,
        kinds: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        min_count: int = 2,
        unseen: str = "mean",
        n_bins: int = 32,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        warm_start: bool = False,
        random_state: int | None = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.rank = rank
        self.rank_base = rank_base
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.penalty = penalty
        self.batch_size = batch_size
        self.reg_every = reg_every
        self.epochs = epochs
        self.patience = patience
        self.averages = averages
        self.validation_fraction = validation_fraction
        self.kinds = kinds
        self.drop = drop
        self.min_count = min_count
        self.unseen = unseen
        self.n_bins = n_bins
        self.fields = fields
        self.warm_start = warm_start
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    _encoder: FieldEncoder

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
    ) -> FieldwiseClassifier:
        """Learn from X, anything that holds a table, and y, two classes of any kind."""
        settings = self._settings()
        going_on = self.warm_start and hasattr(self, "model_")
        target, weight = self._targets(X, y, sample_weight, reset=not going_on)
        if going_on:
            self._encoder.partial_fit(X)
            codes, values = self._coded(X)
        else:
            self._encoder = FieldEncoder(**self._encoder_settings())
            out = self._encoder.fit_transform(X)
            codes, values = self._split(out)
        self._take_names()
        rows = Rows(codes=codes, values=values, target=target, weight=weight)
        judge, only, held_out = None, None, None
        if eval_set is not None:
            judge = self._judge(*eval_set)
        else:
            held_out = self._hold_out(target, weight)
            only = None if held_out is None else ~held_out
            if held_out is None:
                settings = replace(settings, epochs=min(settings.epochs, EPOCHS_UNJUDGED))
        parts = {"validation": judge, "only": only, "held_out": held_out}
        self._train(rows, settings, going_on=going_on, **parts)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, *, sample_weight: Any = None
    ) -> FieldwiseClassifier:
        """One epoch over more rows. Categories never seen before get rows of their own."""
        settings = replace(self._settings(), epochs=1, averages=1)
        going_on = hasattr(self, "model_")
        if not going_on:
            self.classes_ = self._two(np.unique(y if classes is None else classes))
            self._encoder = FieldEncoder(**self._encoder_settings())
        target, weight = self._targets(X, y, sample_weight, reset=False)
        self._encoder.partial_fit(X)
        self._take_names()
        codes, values = self._coded(X)
        rows = Rows(codes=codes, values=values, target=target, weight=weight)
        self._train(rows, settings, going_on=going_on)
        return self

    def _settings(self) -> TrainSettings:
        if not 0 < self.validation_fraction < 1:
            raise SettingError(
                f"validation_fraction={self.validation_fraction} must lie between 0 and 1"
            )
        names = {f.name for f in dataclass_fields(TrainSettings)}
        shared = {k: v for k, v in self.get_params(deep=False).items() if k in names}
        return TrainSettings(**shared, seed=int(self.random_state or 0))

    def _encoder_settings(self) -> dict[str, Any]:
        names = ("kinds", "drop", "min_count", "unseen", "n_bins", "fields")
        return {name: getattr(self, name) for name in names}

    def _two(self, classes: np.ndarray) -> np.ndarray:
        if len(classes) != 2:
            kinds = f"{len(classes)} class{'es' * (len(classes) != 1)}"
            raise DataError(
                f"y has {kinds}; Only binary classification is supported, with two classes"
            )
        return classes

    def _targets(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """y as 0 and 1, and the weights."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        y = column_or_1d(y.to_numpy() if isinstance(y, pl.Series) else y, warn=True)
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise DataError("Input y contains NaN or infinity")
        check_classification_targets(y)
        if reset:
            self.classes_ = self._two(np.unique(y))
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise DataError(
                f"y holds {y[unknown].tolist()[0]!r}, which is not one of {self.classes_}"
            )
        rows = getattr(X, "shape", (None,))[0]
        if rows is not None and rows != len(y):
            raise DataError(
                f"Found input variables with inconsistent numbers of samples: "
                f"X has {rows} rows and y {len(y)}"
            )
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, y, ensure_non_negative=True)
            weight = weight.astype(np.float64)
        return (y == self.classes_[1]).astype(np.float64), weight

    def _split(self, out: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """What the encoder gives, as codes and values."""
        linear = self._encoder.schema_.linear
        if not linear:
            return out, None
        values = out[:, linear].astype(np.float32)
        codes = out.copy()
        codes[:, linear] = np.isnan(values)
        return codes.astype(np.int32), np.where(np.isnan(values), np.float32(1), values)

    def _coded(self, X: Any) -> tuple[np.ndarray, np.ndarray | None]:
        return self._split(np.asarray(self._encoder.transform(X)))

    def _judge(self, X: Any, y: Any) -> Rows:
        target, _ = self._targets(X, y, None, reset=False)
        codes, values = self._coded(X)
        return Rows(codes=codes, values=values, target=target)

    def _hold_out(self, target: np.ndarray, weight: np.ndarray | None) -> np.ndarray | None:
        """Rows for early stopping; None where they would be too few, or leave one class."""
        n = len(target)
        wanted = int(n * self.validation_fraction)
        if wanted < FEWEST_HELD_OUT:
            return None
        key = np.random.SeedSequence([int(self.random_state or 0), 202])
        order = np.argsort(np.random.Philox(key).random_raw(n), kind="stable")
        held_out = np.zeros(n, dtype=bool)
        held_out[order[:wanted]] = True
        kept = target[~held_out] if weight is None else target[~held_out & (weight > 0)]
        return held_out if 0 < kept.mean() < 1 else None

    def _take_names(self) -> None:
        self.n_features_in_ = self._encoder.n_features_in_
        if hasattr(self._encoder, "feature_names_in_"):
            self.feature_names_in_ = self._encoder.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _train(self, rows: Rows, settings: TrainSettings, *, going_on: bool, **parts: Any) -> None:
        words = self._encoder.vocabulary_
        sizes = words.sizes
        linear = words.schema.linear
        start = None
        if going_on:
            layout = Layout(tuple(sizes), self.model_.layout.ranks)
            table = grown(self.model_.table, self.model_.layout, layout, settings)
            state = grown(self._state, self.model_.layout, layout, None)
            state[state == 0] = settings.initial_state
            start = (table, state, self.model_.intercept)
        else:
            ranks = dict.fromkeys(linear, 0)
            layout = Layout.of(sizes, rank=self.rank, rank_base=self.rank_base, overrides=ranks)
        problem = Problem(layout=layout, rows=rows, counts=words.counts(), linear=linear, **parts)
        running = Running(
            n_jobs=self.n_jobs,
            show=None if self.verbose else False,
            callbacks=[_print_epoch] if self.verbose else [],
        )
        fit = train(problem, settings, running, start)
        self._keep(fit, words, layout)

    def _keep(self, fit: Fit, words: Vocabulary, layout: Layout) -> None:
        classes = tuple(str(c) for c in self.classes_.tolist())
        target = Target(column="y", dtype="string", classes=classes)
        if "y" not in words.schema.columns:
            words = Vocabulary(replace(words.schema, target=target), words.fields)
        self.model_ = FieldwiseModel.of(words, layout, fit, asdict(fit.settings))
        self._state = np.asarray(fit.state)
        self.history_ = fit.history

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of the second class, (n,)"""
        check_is_fitted(self)
        codes, values = self._coded(X)
        return self.model_.score_codes(codes, values, self.n_jobs).astype(np.float64)

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, 2)"""
        chance = sigmoid(self.decision_function(X))
        return np.stack([1 - chance, chance], axis=1)

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return self.classes_[(self.decision_function(X) > 0).astype(int)]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags


def _print_epoch(record: dict[str, Any]) -> None:
    words = [f"epoch {record['epoch']}", f"train {record['train_loss']:.4f}"]
    if "logloss" in record:
        words += [f"validation {record['logloss']:.4f}", f"AUC {record['auc']:.4f}"]
    print(", ".join(words), f"({record['seconds']:.1f} s)", flush=True)


def grown(
    table: np.ndarray, old: Layout, new: Layout, settings: TrainSettings | None
) -> np.ndarray:
    """The table with rows for new categories: random where `settings` are given, else zero.

    Fields only grow at their end and ranks stay, so columns keep their place.
    """
    out = np.zeros((new.n_rows, new.n_columns + 1), dtype=np.float32)
    if settings is not None:
        initialise(out, settings.seed + 1, settings.init_scale)
    for i in range(old.n_fields):
        mine = table[old.offsets[i] : old.offsets[i + 1]]
        out[new.offsets[i] : new.offsets[i] + len(mine)] = mine
    return out
