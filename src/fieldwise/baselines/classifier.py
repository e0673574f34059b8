"""The other methods as scikit-learn classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._estimator import ClassEstimator
from ..data.encoder import FieldEncoder
from ..data.shuffle import Rows, wide_values
from ..errors import SettingError
from ..layout import Layout
from ..objective import Objective
from ..problem import Problem
from ..train import Running, TrainSettings
from .methods import METHODS, OURS, Method, chosen_methods

__all__ = ["BaselineClassifier"]

GIVEN = sorted({name for m in METHODS.values() if m.name != OURS for name in m.grid})


class BaselineClassifier(ClassEstimator):
    """Another method on the same tables, with the same encoding, held-out rows and early stopping.

    Parameters
    ----------
    kind : "LR", "GBDT", "FM", "FFM", "RaFM", "LLFM", "DeepFM", "IPNN", "OPNN", "CatBoost" or
        "HistGradientBoosting". Trees learn two classes or more, the others two. Settings that are
        None have the method's default.
    learning_rate : Adagrad's step; for CatBoost and HistGradientBoosting their own.
    weight_decay : of rows in a batch.
    rank : the length of vectors of FM, FFM, LLFM, DeepFM, IPNN and OPNN.
    anchors : how many anchor points LLFM has, each with a factorisation machine.
    dropout : the share of units left out by DeepFM, IPNN and OPNN.
    max_depth : of the trees of GBDT.
    num_leaves : of the trees of GBDT.
    depth : of the trees of CatBoost.
    max_leaf_nodes : of the trees of HistGradientBoosting.
    epochs, patience, batch_size, validation_fraction, random_state, device, n_jobs : see
        `FieldwiseClassifier`.
    kinds, drop, min_count, unseen, n_bins, fields : see `FieldEncoder`.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
    n_parameters_ : the number of parameters, or of trees.
    """

    def __init__(
        self,
        kind: str = "FM",
        *,
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        rank: int | None = None,
        anchors: int | None = None,
        dropout: float | None = None,
        max_depth: int | None = None,
        num_leaves: int | None = None,
        depth: int | None = None,
        max_leaf_nodes: int | None = None,
        epochs: int = 40,
        patience: int = 2,
        batch_size: int | None = None,
        validation_fraction: float = 0.1,
        kinds: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        min_count: int = 2,
        unseen: str = "mean",
        n_bins: int = 32,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        random_state: int | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.kind = kind
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.rank = rank
        self.anchors = anchors
        self.dropout = dropout
        self.max_depth = max_depth
        self.num_leaves = num_leaves
        self.depth = depth
        self.max_leaf_nodes = max_leaf_nodes
        self.epochs = epochs
        self.patience = patience
        self.batch_size = batch_size
        self.validation_fraction = validation_fraction
        self.kinds = kinds
        self.drop = drop
        self.min_count = min_count
        self.unseen = unseen
        self.n_bins = n_bins
        self.fields = fields
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs

    def _method(self) -> Method:
        (method,) = chosen_methods([self.kind])
        if method.name == OURS:
            raise SettingError("kind='fieldwise' is not a baseline; use FieldwiseClassifier")
        return method

    def _settings(self, method: Method) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in GIVEN}
        given = {name: value for name, value in given.items() if value is not None}
        strange = [name for name in given if name not in method.grid]
        if strange:
            words = ", ".join(method.grid)
            raise SettingError(f"{strange[0]} is not a setting of {method.name}; it has {words}")
        return {**method.start, **given}

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
    ) -> BaselineClassifier:
        """Learn from X, anything that holds a table, and the classes y."""
        with self._whole():
            self._fit(X, y, sample_weight, eval_set)
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, eval_set: tuple[Any, Any] | None) -> None:
        method = self._method()
        settings = self._settings(method)
        training = TrainSettings(
            epochs=self.epochs,
            patience=self.patience,
            batch_size=self.batch_size,
            seed=int(self.random_state or 0),
        )
        target, weight = self._checked(X, y, sample_weight, None, reset=True)
        if self._n_labels > 1:
            raise SettingError(f"{method.name} learns one target, and y has {self._n_labels}")
        self._encoder = FieldEncoder(**self._encoder_settings())
        codes, values = self._matched(self._encoder.fit_codes(X), target)
        self._take_names()
        words = self._encoder.vocabulary_
        why = method.why_not(len(words.sizes), len(self.classes_))
        if why:
            raise SettingError(f"{method.name}: {why}")
        objective = Objective(self._heads())
        problem = Problem(
            layout=Layout.of(
                words.sizes, rank=0, n_outputs=objective.n_outputs, slots=words.schema.slots
            ),
            rows=Rows(codes=codes, values=values, target=target, weight=weight),
            counts=words.counts(),
            valued=words.schema.valued,
            ordered=words.schema.ordered,
            objective=objective,
            **self._parts(target, weight, eval_set),
        )
        running = Running(device=self.device, n_jobs=self.n_jobs)
        fitted = method.fit(problem, settings, training, running)
        self._scorer, self._valued = fitted.scorer, tuple(problem.valued)
        self.n_parameters_ = fitted.size

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        codes, values = self._encoder.codes(X)
        z = self._scorer.scores(codes, wide_values(codes, values, self._valued))
        return z.astype(np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class."""
        chosen = np.argmax(self.predict_proba(X), axis=1)
        return self.classes_[chosen]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        with suppress(SettingError):  # `fit` raises it
            tags.classifier_tags.multi_class = self._method().many_classes
        return tags
