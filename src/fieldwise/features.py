"""`FieldwiseFeatures`: field-wise scores and evidence of crosses as columns for any other model.

    X, y -> Evidence and a field-wise model -> score | evidence of fields and crosses | seen

Columns for the training rows are cross-fitted: a row's own label is in none of its columns.
Columns for other rows are made from all training rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import TransformerMixin
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from ._estimator import TableEstimator
from .crosses import CrossedVocabulary
from .crosses.evidence import FOLDS, Fitted
from .crosses.vocabulary import parents_of, unlike
from .crossing import Crosses, Crossing, as_trained, cross_fitted_scores, learn_evidence
from .data.encoder import FieldEncoder
from .data.shuffle import Rows
from .errors import DataError, SettingError
from .estimators import EPOCHS_UNJUDGED, FieldwiseClassifier, FieldwiseRegressor
from .model import FieldwiseModel
from .objective import Head, Objective
from .problem import Problem
from .train import train

__all__ = ["FieldwiseFeatures"]

TASKS = {"classes": FieldwiseClassifier, "numbers": FieldwiseRegressor}
GUESSED = {"binary": "classes", "multiclass": "classes", "continuous": "numbers"}
SHARED = ("rank", "learning_rate", "epochs", "random_state", "device", "n_jobs", "verbose")


class FieldwiseFeatures(TransformerMixin, TableEstimator):  # type: ignore[misc]
    """Field-wise scores and the evidence of fields and crosses, as float32 columns.

    `fit(X, y).transform(X)` does not equal `fit_transform(X, y)`. `fit_transform` is cross-fitted:
    a row's evidence comes from the rows of other folds, and its score from a model which did not
    see it, so that a model trained on these columns does not see the labels it is to learn. Use it,
    or a pipeline, which does, for the training rows, and `transform` for all others. Which crosses
    "auto" finds, and the step and epochs of the field-wise model, are chosen once, with the labels
    of all rows.

    Parameters
    ----------
    crosses : "auto" finds useful combinations of fields, "none" (or None) uses single fields only,
        or a list such as [("user", "item")].
    scores : whether the score of a field-wise model is a column (one per class where there are more
        than two). It takes most of the time.
    counts : whether log(1 + the weight of the rows behind the evidence) is a column too.
    task : "classes" or "numbers"; None guesses as scikit-learn's `type_of_target` does, which takes
        whole numbers for classes.
    rank, learning_rate, epochs : of the field-wise model; see `FieldwiseClassifier`.
    kinds, drop, unseen, n_bins, fields : see `FieldEncoder`.
    min_count : categories seen less often share the rare row in the field-wise model. Evidence
        keeps them apart.
    random_state : a whole number; None is 0. The same seed gives the same bits.
    device : "cpu", "cuda", or "auto": a GPU where there is one and the table is large.
    n_jobs : threads; None is all cores. The result does not depend on it.
    verbose : 1 shows a progress bar and a line per epoch.

    Attributes
    ----------
    crosses_ : the fields and crosses with evidence, each a tuple of field names; single fields
        first. Binned numbers also have finer bins ("price.fine") and values ("visits.value").
    evidence_ : Evidence, by the codes of fields.
    task_ : "classes" or "numbers".
    classes_ : the classes, sorted, if y holds classes.
    n_features_in_, feature_names_in_

    Examples
    --------
    Whether a user likes an item depends on both together; neither alone says anything.

    >>> import numpy as np, polars as pl
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from fieldwise import FieldwiseFeatures
    >>> rng = np.random.default_rng(0)
    >>> user, item = rng.integers(0, 20, (2, 6000))
    >>> X = pl.DataFrame({"user": [f"u{k}" for k in user], "item": [f"i{k}" for k in item]})
    >>> y = (user * item) % 7 < 3
    >>> features = FieldwiseFeatures(scores=False)
    >>> model = make_pipeline(features, LogisticRegression()).fit(X[:5000], y[:5000])
    >>> bool(model.score(X[5000:], y[5000:]) > 0.95)
    True
    >>> features.get_feature_names_out().tolist()[:3]
    ['evidence user', 'evidence item', 'evidence user x item']
    """

    validation_fraction = 0.1  # of the rows, to find the field-wise model's step and epochs
    _learner: FieldwiseClassifier | FieldwiseRegressor  # knows what y means, and how to train
    _model: FieldwiseModel | None
    _words: CrossedVocabulary

    def __init__(
        self,
        *,
        crosses: Crosses | None = "auto",
        scores: bool = True,
        counts: bool = True,
        task: str | None = None,
        rank: int | None = None,
        learning_rate: float | None = None,
        epochs: int = 30,
        kinds: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        min_count: int = 2,
        unseen: str = "mean",
        n_bins: int = 32,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        random_state: int | None = None,
        device: str = "auto",
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.crosses = crosses
        self.scores = scores
        self.counts = counts
        self.task = task
        self.rank = rank
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.kinds = kinds
        self.drop = drop
        self.min_count = min_count
        self.unseen = unseen
        self.n_bins = n_bins
        self.fields = fields
        self.random_state = random_state
        self.device = device
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FieldwiseFeatures:
        """Learn from y and X, anything that holds a table, to `transform` other rows."""
        with self._whole():
            self._learn(X, y, sample_weight, cross_fitted=False)
        return self

    def fit_transform(self, X: Any, y: Any, sample_weight: Any = None) -> np.ndarray:
        """Learn, and return the cross-fitted columns of these same rows; see above."""
        with self._whole():
            scores, fitted = self._learn(X, y, sample_weight, cross_fitted=True)
        assert fitted is not None
        return self._columns(scores, fitted)

    def transform(self, X: Any) -> np.ndarray:
        """Columns for rows other than the training rows, made from all of those, (n, columns)"""
        check_is_fitted(self)
        codes, values = self._encoder.codes(X)
        found = self.evidence_.of(codes)
        if self._model is None:
            return self._columns(None, found)
        z = self._model.score_codes(*self._words.extended(codes, values, found), self.n_jobs)
        return self._columns(z, found)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the columns: "score", "evidence user x item", "seen user x item"; scores and
        evidence end with the class where there are more than two."""
        check_is_fitted(self)
        _check_feature_names_in(self, input_features)
        size = self._heads()[0].size
        ends = [f" ({c})" for c in self.classes_.tolist()] if size > 1 else [""]
        crosses = [" x ".join(names) for names in self.crosses_]
        names = [f"score{end}" for end in ends] if self._model else []
        names += [f"evidence {cross}{end}" for cross in crosses for end in ends]
        names += [f"seen {cross}" for cross in crosses] if self.counts else []
        taken: set[str] = set()  # a field may have the name of a cross
        return np.asarray([unlike(name, taken) for name in names], dtype=object)

    def _columns(self, scores: np.ndarray | None, found: Fitted) -> np.ndarray:
        n = len(found.seen)
        parts = [] if scores is None else [scores.reshape(n, -1)]
        parts.append(found.evidence.reshape(n, -1))
        if self.counts:
            parts.append(np.log1p(found.seen))
        return np.concatenate([np.asarray(p, np.float32) for p in parts], axis=1)

    def _learn(
        self, X: Any, y: Any, sample_weight: Any, *, cross_fitted: bool
    ) -> tuple[np.ndarray | None, Fitted | None]:
        """Learn from all rows; if `cross_fitted`, return their scores and evidence."""
        target, weight = self._checked(X, y, sample_weight, None, reset=True)
        n, head = len(target), self._heads()[0]
        if n < FOLDS:
            raise DataError(f"n_samples={n} is fewer than the {FOLDS} folds of evidence")
        # Crosses are made of all categories; rare ones are merged later.
        given = self._encoder_settings() | {"min_count": 1, "resolutions": True}
        self._encoder = FieldEncoder(**given)
        codes, values = self._matched(self._encoder.fit_codes(X), target)
        self._take_names()
        known = {"codes": codes, "values": values, "target": target}
        if weight is not None:
            known["weight"] = weight
        words, running = self._encoder.vocabulary_, self._learner._running()
        crossing = Crossing(crosses="none" if self.crosses is None else self.crosses)
        seed, copies = int(self.random_state or 0), 1 if cross_fitted else 0
        self.evidence_, fitted = learn_evidence(
            words.schema, known, head, crossing, running, seed, copies
        )
        self.crosses_ = parents_of(words.schema, self.evidence_.crosses)
        if not self.crosses_ and not self.scores:
            raise DataError("every field is linear or a list, and has no evidence; set scores=True")
        self._words = CrossedVocabulary(words, self.evidence_, floor=self.min_count)
        self._model, z = None, None
        if self.scores:
            parts = self._parts(target, weight, None)
            z = self._fit_scores(known, head, parts, cross_fitted=cross_fitted)
        return z, fitted[0] if fitted else None

    def _fit_scores(
        self, known: dict[str, np.ndarray], head: Head, parts: dict[str, Any], *, cross_fitted: bool
    ) -> np.ndarray | None:
        """Train a field-wise model on all rows; if `cross_fitted`, return their scores (n, K)."""
        words, running, settings = self._words, self._learner._running(), self._learner._settings()
        nothing = self.evidence_.of(known["codes"][:0])  # the model itself reads no evidence
        codes, values = words.extended(known["codes"], known["values"], nothing)
        objective = Objective((head,))
        whole = Problem(
            layout=self._learner._layout_of(words, objective),
            rows=Rows(**{**known, "codes": codes, "values": values}),
            counts=words.counts(),
            valued=words.schema.valued,
            objective=objective,
        )
        if parts:  # settings are found with held-out rows first, then all rows are trained on
            judged = train(replace(whole, **parts), settings, running)
            settings = as_trained(judged)
            running = replace(running, callbacks=(), show=False)
        else:
            settings = replace(settings, epochs=min(settings.epochs, EPOCHS_UNJUDGED))
        fit = train(whole, settings, running)
        self._model = FieldwiseModel.of(words, whole, fit, {})
        return cross_fitted_scores(words, whole, fit, running) if cross_fitted else None

    def _targets(self, y: Any, *, reset: bool) -> np.ndarray:
        if self.task not in (None, *TASKS):
            raise SettingError(f"task={self.task!r} is not one of {', '.join(TASKS)} or None")
        y = np.asarray(y)
        if y.ndim == 2 and y.shape[1] > 1:
            raise DataError(f"y has {y.shape[1]} columns; evidence is of one target at a time")
        task = self.task
        if task is None:
            kind = type_of_target(y, input_name="y")
            if kind not in GUESSED:
                raise DataError(f"Unknown label type: y is {kind!r}; it must be classes or numbers")
            task = GUESSED[kind]
        self.task_ = task
        self._learner = TASKS[task](**{name: getattr(self, name) for name in SHARED})
        found = self._learner._targets(y, reset=reset)
        if task == "classes":
            self.classes_ = self._learner.classes_
        elif hasattr(self, "classes_"):
            del self.classes_
        return found

    def _heads(self) -> tuple[Head, ...]:
        return self._learner._heads()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []
        return tags
