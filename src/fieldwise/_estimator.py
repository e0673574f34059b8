"""Base of our scikit-learn estimators: encodes X, checks y, holds out validation rows; classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import polars as pl
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from .data.encoder import FieldEncoder
from .data.frames import is_missing
from .data.shuffle import Rows
from .data.values import half_characters
from .errors import DataError, SettingError
from .losses import check_weight, sigmoid, softmax
from .objective import Head

__all__ = ["ClassEstimator", "TableEstimator"]

FEWEST_HELD_OUT = 100  # rows; with fewer there is no early stopping
ENCODER_NAMES = ("kinds", "drop", "min_count", "unseen", "n_bins", "fields")


class TableEstimator(BaseEstimator):  # type: ignore[misc]
    """Encodes X and checks y. Subclasses have the parameters of `FieldEncoder`,
    `validation_fraction` and `random_state`, and say what y means and how rows are scored."""

    _encoder: FieldEncoder
    validation_fraction: float
    random_state: int | None

    def _targets(self, y: Any, *, reset: bool) -> np.ndarray:
        """y as numbers, (n, targets); `reset` learns what they mean."""
        raise NotImplementedError

    def _heads(self) -> tuple[Head, ...]:
        raise NotImplementedError

    def _scores(self, X: Any) -> np.ndarray:
        """Scores of X, (n, K)"""
        raise NotImplementedError

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is learned in here is learned whole: after an error, or Ctrl-C, all is as before."""
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _encoder_settings(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ENCODER_NAMES}

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, n_trials: Any, *, reset: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Check the input; returns the targets as numbers, and the weights."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None")
        if isinstance(y, (pl.Series, pl.DataFrame)):
            y = y.to_numpy()
        if np.ma.is_masked(y) or np.ma.is_masked(sample_weight):
            raise DataError("y or sample_weight has values that are masked; leave out such rows")
        if n_trials is not None:
            target, trials = self._shares(y, n_trials, reset=reset)
        else:
            target, trials = self._targets(y, reset=reset), None
        if shape := getattr(X, "shape", ()):
            _same_rows(shape[0], target)
        weight = trials
        if sample_weight is not None:
            given = np.asarray(sample_weight)
            if given.dtype.kind in "fiu" and given.size:
                check_weight(given.reshape(-1).astype(np.float64))
            weight = _check_sample_weight(sample_weight, target, ensure_non_negative=True)
            weight = weight.astype(np.float64) * (1 if trials is None else trials)
        return target, weight

    def _shares(self, y: Any, n_trials: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        raise SettingError("n_trials needs a classifier of two classes")

    @staticmethod
    def _matched(
        coded: tuple[np.ndarray, np.ndarray], target: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes and values of X, whose rows are as many as those of y: that of a file or a query is
        known once it is read."""
        _same_rows(len(coded[0]), target)
        return coded

    def _parts(
        self, target: np.ndarray, weight: np.ndarray | None, eval_set: tuple[Any, Any] | None
    ) -> dict[str, Any]:
        """The validation and the training rows, as arguments of `Problem`; empty if there are no
        validation rows."""
        if not 0 < self.validation_fraction < 1:
            raise SettingError(
                f"validation_fraction={self.validation_fraction} must lie between 0 and 1"
            )
        if eval_set is not None:
            if not isinstance(eval_set, (tuple, list)) or len(eval_set) != 2:
                raise SettingError("eval_set must be a pair (X, y): rows to judge by, and theirs")
            return {"validation": self._judge(*eval_set)}
        held_out = self._hold_out(target, weight)
        return {} if held_out is None else {"only": ~held_out, "held_out": held_out}

    def _judge(self, X: Any, y: Any) -> Rows:
        target, _ = self._checked(X, y, None, None, reset=False)
        codes, values = self._matched(self._encoder.codes(X), target)
        return Rows(codes=codes, values=values, target=target)

    def _hold_out(self, target: np.ndarray, weight: np.ndarray | None) -> np.ndarray | None:
        """A mask of rows for early stopping; None if too few, or if only they had some class."""
        n = len(target)
        wanted = int(n * self.validation_fraction)
        if wanted < FEWEST_HELD_OUT:
            return None
        key = np.random.SeedSequence([int(self.random_state or 0), 202])
        order = np.argsort(np.random.Philox(key).random_raw(n), kind="stable")
        held_out = np.zeros(n, dtype=bool)
        held_out[order[:wanted]] = True
        kept = ~held_out if weight is None else ~held_out & (weight > 0)
        for k, head in enumerate(self._heads()):
            chosen = target[:, k] > 0.5 if head.size == 1 else target[:, k]
            if head.is_class and not np.array_equal(np.unique(chosen[kept]), np.unique(chosen)):
                return None
        return held_out

    def _take_names(self) -> None:
        self.n_features_in_ = self._encoder.n_features_in_
        if hasattr(self._encoder, "feature_names_in_"):
            self.feature_names_in_ = self._encoder.feature_names_in_
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags


class ClassEstimator(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """For y of classes: two or more, or a matrix of 0 and 1 with a column for each label."""

    classes_: np.ndarray
    _n_labels: int

    @staticmethod
    def _checked_classes(classes: np.ndarray) -> np.ndarray:
        """The same classes, checked to be two or more and to be writable in a model."""
        if len(classes) < 2:
            raise DataError(f"y has {len(classes)} class; a classifier needs two or more")
        with half_characters("y"):
            "".join(str(c) for c in classes.tolist()).encode()
        return classes

    def _targets(self, y: Any, *, reset: bool) -> np.ndarray:
        y = np.asarray(y)
        if y.ndim == 2 and y.shape[1] > 1:
            return self._labels(y, reset=reset)
        y = column_or_1d(y, warn=True)
        if y.dtype.kind == "f" and not np.isfinite(y).all():
            raise DataError("Input y contains NaN or infinity")
        if y.dtype == object:
            _check_objects(y.tolist())
        check_classification_targets(y)
        if reset:
            self._n_labels = 1
            self.classes_ = self._checked_classes(np.unique(y))
        self._same_labels(1)
        unknown = ~np.isin(y, self.classes_)
        if unknown.any():
            raise DataError(
                f"y holds {y[unknown].tolist()[0]!r}, which is not one of {self.classes_}"
            )
        return np.searchsorted(self.classes_, y).astype(np.float64)[:, None]

    def _labels(self, y: np.ndarray, *, reset: bool) -> np.ndarray:
        if not np.isin(y, (0, 1)).all():
            raise DataError("y has several columns; each must hold only 0 and 1")
        if reset:
            self._n_labels = y.shape[1]
            self.classes_ = np.array([0, 1])
        self._same_labels(y.shape[1])
        return y.astype(np.float64)

    def _same_labels(self, n: int) -> None:
        if n != self._n_labels:
            raise DataError(f"y has {n} columns, and had {self._n_labels} before")

    def _shares(self, y: Any, n_trials: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray]:
        y, trials = (np.asarray(a, dtype=np.float64).reshape(-1) for a in (y, n_trials))
        if len(y) != len(trials):
            raise DataError(f"y has {len(y)} rows and n_trials {len(trials)}")
        wrong = ~(np.isfinite(y) & np.isfinite(trials) & (y >= 0) & (y <= trials))
        if wrong.any():
            row = int(np.argmax(wrong))
            raise DataError(
                f"row {row}: {y[row]:g} successes of {trials[row]:g} trials; there must be at "
                "least 0 and at most all"
            )
        if reset:
            self._n_labels, self.classes_ = 1, np.array([0, 1])
        if len(self._heads()) > 1 or len(self.classes_) > 2:
            raise DataError("n_trials goes with two classes, and there were more before")
        return (y / np.maximum(trials, 1e-300))[:, None], trials

    def _heads(self) -> tuple[Head, ...]:
        k = len(self.classes_)
        return (Head("softmax", k),) if k > 2 else (Head(),) * self._n_labels

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of the second class, (n,), or a score for each class or label, (n, K)"""
        z = self._scores(X)
        return z[:, 0] if z.shape[1] == 1 else z

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of the classes, (n, classes), or of the labels, (n, labels)"""
        z = self._scores(X)
        if self._n_labels > 1:
            return sigmoid(z)
        if z.shape[1] > 1:
            return softmax(z)
        return np.stack([1 - sigmoid(z[:, 0]), sigmoid(z[:, 0])], axis=1)


def _same_rows(n_rows: int, target: np.ndarray) -> None:
    if n_rows != len(target):
        raise DataError(
            f"Found input variables with inconsistent numbers of samples: "
            f"X has {n_rows} rows and y {len(target)}"
        )


def _check_objects(y: list[Any]) -> None:
    """Refuse classes that are missing, or cannot be sorted."""
    try:
        distinct = set(y)
        if any(map(is_missing, distinct)):
            row = next(row for row, value in enumerate(y, 1) if is_missing(value))
            raise DataError(f"Input y contains NaN: row {row:,} is missing; leave out such rows")
        sorted(distinct)
    except TypeError as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in y})[:4])
        raise DataError(
            f"y holds values of several kinds, {kinds}; make them all texts or all numbers"
        ) from error
