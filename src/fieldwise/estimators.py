"""scikit-learn estimators: a table of strings, numbers and times in, predictions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, replace
from dataclasses import fields as dataclass_fields
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ._estimator import ClassEstimator, TableEstimator
from .callbacks import Callback, heard
from .crossing import Crosses, Crossing, Parts, decide, fit_crossed, layout_for
from .data.encoder import FieldEncoder
from .data.schema import Target
from .data.shuffle import Rows
from .data.vocabulary import Vocabulary
from .errors import DataError, SettingError
from .explain.categories import CategoryCard, Comparison
from .explain.fields import FieldImportance
from .explain.rows import Explanation
from .layout import Layout
from .losses import LOSSES, check_target
from .model import FieldwiseModel
from .objective import Head, Objective
from .problem import Problem
from .train import (
    Fit,
    Running,
    TrainSettings,
    grown,
    on_distinct_rows,
    train,
)

__all__ = ["FieldwiseClassifier", "FieldwiseRegressor"]

EPOCHS_UNJUDGED = 10  # without validation rows


PARAMETERS = """
Parameters
----------
preset : "fast", the field-wise model alone; "glass", with the evidence of crosses, every prediction
    still a sum that explanations take apart; or "best", with boosted trees on top (needs LightGBM).
    It decides `crosses`, `combine`, `rank` and `learning_rate` where they are not given.
crosses : "auto" finds useful combinations of fields, "none" has none, or a list such as
    [("user", "item")]; see docs/accuracy.md.
rank : rank of every field's models (at most its number of categories); None is 32, and 16 or 8
    where the table would be large.
rank_base : instead of `rank`: ranks grow as the logarithm, to this base, of a field's size.
learning_rate : Adagrad's step; None tries several and keeps the best on held-out rows.
shrinkage : how strongly weights are pulled to 0, more strongly for rarer categories. None is 1
    (under 50,000 rows 10 is tried as well), or 0 where `weight_decay` is set.
weight_decay : the paper's decay, the same for every row in a batch; None is 0.
penalty : how strongly the models of a field are pulled to their mean, and the mean to 0.
max_variance : a hard upper bound on every field's variance, the squared distance of its models
    from their mean; None is no bound.
max_mean : a hard upper bound on the squared norm of that mean; None is no bound.
batch_size : rows per step; None is 2,048, or fewer for small tables.
reg_every : steps between two applications of the penalty; None is 1,000, or an epoch if shorter.
averages : how many snapshots from an epoch's second half to average; 1 keeps the last, as in the
    paper.
epochs : the maximum number of epochs.
patience : training stops after this many epochs without gain on the held-out rows.
validation_fraction : share of the rows to hold out where `fit` gets no `eval_set`.
loss : for a regressor "squared" (the default), "absolute", "huber" or "poisson"; leave it out for
    a classifier.
delta : with `loss="huber"`, the error beyond which the loss is linear, in units of y.
combine : how the fields' scores become a prediction: "sum", "weighted" (by learned weights, none
    below 0), "vote" (every field is trained by itself; see `predict`), "weighted_vote" (for
    classes; votes are weighted, on held-out rows if there are any) or "boosted" (by trees, which
    read evidence and numbers too). None is "sum", or the preset's choice.
component : what a category's model is: "linear" over the other fields, or "fm", a small
    factorisation machine, which also sees pairs of them; slow, see docs/tasks.md.
n_members : how many models, with different starting values, to train at once and average.
bagging : each member is trained on rows drawn with replacement.
aggregate : train on each distinct row once, with its weight and mean target.
sampling_rate : the share of rows of the first class that was kept, if negatives were downsampled;
    probabilities are corrected for it.
kinds : the kinds of columns guessed wrong: a dict of column to "category", "numeric",
    "time", "quantile", "log2", "linear" or "list:|".
drop : columns to leave out.
min_count : categories seen less often share the rare row of their field.
unseen : how a value never seen in training is scored: "mean" of its field, "rare", or "error".
n_bins : the maximum number of bins of a number.
fields : settings of single fields, such as {"age": {"edges": (18, 65)}}; see `Field`.
warm_start : continue from the last `fit`; new categories are added.
random_state : a whole number; None is 0. The same seed gives the same bits.
device : "cpu", "cuda", or "auto": a GPU where there is one and the table is large.
half : keep the table of parameters in bfloat16, on a GPU: 16 bytes per parameter in training
    instead of 20; see docs/gpu.md.
n_jobs : threads; None is all cores. The result does not depend on it.
callbacks : functions called with every epoch's record, a dict; returning True ends training.
    `fieldwise.callbacks` has some that write to MLflow and TensorBoard.
verbose : 1 shows a progress bar and a line per epoch.

Attributes
----------
model_ : FieldwiseModel, which saves, loads and scores raw rows.
n_features_in_, feature_names_in_ : the columns of X.
history_ : the record of every epoch, a dict.

"""


class _FieldwiseEstimator(TableEstimator):
    """What classifier and regressor share. Subclasses say what y means."""

    def __init__(
        self,
        *,
        preset: str = "fast",
        crosses: Crosses | None = None,
        rank: int | None = None,
        rank_base: float | None = None,
        learning_rate: float | None = None,
        shrinkage: float | None = None,
        weight_decay: float | None = None,
        penalty: float = 1e-5,
        max_variance: float | None = None,
        max_mean: float | None = None,
        batch_size: int | None = None,
        reg_every: int | None = None,
        epochs: int = 30,
        patience: int = 2,
        averages: int = 8,
        validation_fraction: float = 0.1,
        loss: str | None = None,
        delta: float = 1.0,
        combine: str | None = None,
        component: str = "linear",
        n_members: int = 1,
        bagging: bool = False,
        aggregate: bool = False,
        sampling_rate: float = 1.0,
        kinds: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        min_count: int = 2,
        unseen: str = "mean",
        n_bins: int = 32,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        warm_start: bool = False,
        random_state: int | None = None,
        device: str = "auto",
        half: bool = False,
        n_jobs: int | None = None,
        callbacks: Sequence[Callback] = (),
        verbose: int = 0,
    ) -> None:
        self.preset = preset
        self.crosses = crosses
        self.rank = rank
        self.rank_base = rank_base
        self.learning_rate = learning_rate
        self.shrinkage = shrinkage
        self.weight_decay = weight_decay
        self.penalty = penalty
        self.max_variance = max_variance
        self.max_mean = max_mean
        self.batch_size = batch_size
        self.reg_every = reg_every
        self.epochs = epochs
        self.patience = patience
        self.averages = averages
        self.validation_fraction = validation_fraction
        self.loss = loss
        self.delta = delta
        self.combine = combine
        self.component = component
        self.n_members = n_members
        self.bagging = bagging
        self.aggregate = aggregate
        self.sampling_rate = sampling_rate
        self.kinds = kinds
        self.drop = drop
        self.min_count = min_count
        self.unseen = unseen
        self.n_bins = n_bins
        self.fields = fields
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.half = half
        self.n_jobs = n_jobs
        self.callbacks = callbacks
        self.verbose = verbose

    _fit_kept: Fit
    _layout: Layout

    def _named_targets(self) -> tuple[Target, ...]:
        raise NotImplementedError

    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        eval_set: tuple[Any, Any] | None,
        n_trials: Any = None,
    ) -> None:
        settings, crossing = self._settings(), self._crossing()
        going_on = self.warm_start and hasattr(self, "model_")
        target, weight = self._checked(X, y, sample_weight, n_trials, reset=not going_on)
        if going_on:
            coded = self._learned_on(X)
        else:
            given = self._encoder_settings()
            if crossing is not None:  # made of all categories; rare ones are merged later
                given |= {"min_count": 1, "resolutions": True}
            self._encoder = FieldEncoder(**given)
            coded = self._encoder.fit_codes(X)
        codes, values = self._matched(coded, target)
        self._take_names()
        rows = Rows(codes=codes, values=values, target=target, weight=weight)
        parts = self._parts(target, weight, eval_set)
        if not parts:
            settings = replace(settings, epochs=min(settings.epochs, EPOCHS_UNJUDGED))
        with heard(self.callbacks) as close:
            if crossing is None:
                self._train(rows, settings, going_on=going_on, **parts)
            else:
                self._train_crossed(rows, settings, crossing, parts)
            close(self.model_)

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> None:
        if self._crossing() is not None:
            raise SettingError("crosses are learned from all rows at once; fit with crosses='none'")
        settings = replace(self._settings(), epochs=1, averages=1)
        going_on = hasattr(self, "model_")
        if not going_on:
            self._encoder = FieldEncoder(**self._encoder_settings())
        target, weight = self._checked(X, y, sample_weight, None, reset=reset)
        codes, values = self._matched(self._learned_on(X), target)
        self._take_names()
        rows = Rows(codes=codes, values=values, target=target, weight=weight)
        with heard(self.callbacks) as close:
            self._train(rows, settings, going_on=going_on)
            close(self.model_)

    def _learned_on(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Codes and values of more rows, by an encoder that has learned from them too."""
        if hasattr(self, "model_") and self.model_.vocabulary.evidence is not None:
            raise SettingError(
                "the last fit learned crosses, which are learned from all rows at once; fit anew, "
                "with warm_start=False"
            )
        self._encoder = copy(self._encoder).partial_fit(X)
        return self._encoder.codes(X)

    def _crossing(self) -> Crossing | None:
        """The crosses that `preset`, `crosses` and `combine` ask for together; None for none."""
        return self._decided()[0]

    def _objective(self) -> Objective:
        return Objective(self._heads(), self.n_members, self._decided()[1])

    def _decided(self) -> tuple[Crossing | None, str]:
        return decide(
            *(self.preset, self.crosses, self.combine),
            floor=self.min_count,
            warm_start=self.warm_start,
            aggregate=self.aggregate,
        )

    def _settings(self) -> TrainSettings:
        names = {f.name for f in dataclass_fields(TrainSettings)}
        shared = {k: v for k, v in self.get_params(deep=False).items() if k in names}
        return TrainSettings(**shared, seed=int(self.random_state or 0))

    def _words(self) -> Vocabulary:
        """The encoder's vocabulary of X, with the columns of y as targets."""
        words = self._encoder.vocabulary_
        return Vocabulary(replace(words.schema, targets=self._named_targets()), words.fields)

    def _train(self, rows: Rows, settings: TrainSettings, *, going_on: bool, **parts: Any) -> None:
        words = self._words()
        objective = self._objective()
        start = None
        if going_on:
            layout = replace(self._layout, sizes=tuple(words.sizes))
            last = self._fit_kept
            table = grown(last.table, self._layout, layout, settings)
            state = grown(last.state, self._layout, layout, None)
            state[state == 0] = settings.initial_state
            start = replace(last, table=table, state=state)
        else:
            layout = self._layout_of(words, objective)
        problem = Problem(
            layout=layout,
            rows=rows,
            counts=words.counts(),
            valued=words.schema.valued,
            objective=objective,
            sampling_rate=self.sampling_rate,
            **parts,
        )
        trained = problem
        if self.aggregate:
            trained, settings = on_distinct_rows(problem, settings)
        fit = train(trained, settings, self._running(), start)
        self.model_ = FieldwiseModel.of(words, problem, fit, asdict(fit.settings))
        self._fit_kept = fit
        self._layout = layout
        self.history_ = fit.history

    def _train_crossed(
        self, rows: Rows, settings: TrainSettings, crossing: Crossing, parts: dict[str, Any]
    ) -> None:
        self.model_, fit = fit_crossed(
            self._words(),
            Parts.of(rows, parts),
            crossing,
            layout_of=self._layout_of,
            objective=self._objective(),
            settings=settings,
            running=self._running(),
            sampling_rate=self.sampling_rate,
        )
        self._encoder.vocabulary_ = self.model_.vocabulary  # type: ignore[assignment]
        self.history_ = fit.history

    def _layout_of(self, words: Vocabulary, objective: Objective) -> Layout:
        return layout_for(
            *(words, objective),
            rank=self.rank,
            rank_base=self.rank_base,
            component=self.component,
        )

    def _running(self) -> Running:
        return Running(
            device=self.device,
            n_jobs=self.n_jobs,
            show=None if self.verbose else False,
            callbacks=[*self.callbacks, *([_print_epoch] if self.verbose else [])],
        )

    def _target_names(self, n: int) -> list[str]:
        """Names for the columns of y, none of which is a column of X."""
        y = "y"
        while any(column.startswith(y) for column in self._encoder.schema_.columns):
            y = f"_{y}"
        return [y] if n == 1 else [f"{y}_{k + 1}" for k in range(n)]

    def _scores(self, X: Any) -> np.ndarray:
        """Scores of X, (n, K)"""
        check_is_fitted(self)
        codes, values = self._encoder.codes(X)
        z = self.model_.score_codes(codes, values, self.n_jobs).astype(np.float64)
        return z.reshape(len(z), -1)

    def explain(self, X: Any) -> Explanation:
        """What every field and pair of fields adds to the score of each row, and exact Shapley
        values; see `Explanation`."""
        check_is_fitted(self)
        return self.model_.explain_codes(*self._encoder.codes(X))

    def explain_fields(self, output: str | None = None) -> FieldImportance:
        """How much every field and pair of fields matters; see `FieldImportance`."""
        check_is_fitted(self)
        return self.model_.explain_fields(output)

    def explain_category(
        self, field: str, value: Any, *, n: int = 3, output: str | None = None
    ) -> CategoryCard:
        """The model of a category; see `CategoryCard`."""
        check_is_fitted(self)
        return self.model_.explain_category(field, value, n=n, output=output)

    def compare_categories(
        self, field: str, first: Any, second: Any, *, n: int = 10, output: str | None = None
    ) -> Comparison:
        """Where the models of two categories differ most; see `Comparison`."""
        check_is_fitted(self)
        return self.model_.compare_categories(field, first, second, n=n, output=output)

    def field_scores(self, X: Any) -> np.ndarray:
        """f_i(x), the score of every field's model: (n, m) for one output, else (n, outputs, m)."""
        check_is_fitted(self)
        return self.model_.field_scores_of(*self._encoder.codes(X), self.n_jobs)


class FieldwiseClassifier(ClassEstimator, _FieldwiseEstimator):
    __doc__ = f"""Field-wise learning of classes: every category has a model over the other fields.

y holds two or more classes of any kind, or is a matrix of 0 and 1 with a column for each label.
{PARAMETERS}
classes_ : the classes, sorted.
"""

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
        n_trials: Any = None,
    ) -> FieldwiseClassifier:
        """Learn from a table and its classes.

        Parameters
        ----------
        X : anything that holds a table: a frame, an array, a dict of columns, a path.
        y : the class of every row; or a matrix of 0 and 1 with a column for each label.
        sample_weight : (n,), how much each row counts.
        eval_set : (X, y), rows for early stopping instead of a random part of X.
        n_trials : (n,), trials (impressions) of each row; y then counts successes (clicks).
        """
        with self._whole():
            self._fit(X, y, sample_weight, eval_set, n_trials)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, *, sample_weight: Any = None
    ) -> FieldwiseClassifier:
        """Train one epoch on more rows. New categories get rows of their own.

        `classes` lists all classes on the first call, if y may lack some.
        """
        with self._whole():
            if not hasattr(self, "model_"):
                shape = np.shape(y)
                self._n_labels = shape[1] if len(shape) == 2 else 1
                known = [0, 1] if self._n_labels > 1 else y if classes is None else classes
                self.classes_ = self._checked_classes(np.unique(known))
            self._partial_fit(X, y, sample_weight, reset=False)
        return self

    def _heads(self) -> tuple[Head, ...]:
        if self.loss not in (None, "logistic", "softmax"):
            raise SettingError(f"loss={self.loss!r} does not fit classes; leave it out")
        return super()._heads()

    def _named_targets(self) -> tuple[Target, ...]:
        # As in tables, where the classes of a boolean column are lower case.
        texts = [str(c).lower() if isinstance(c, bool) else str(c) for c in self.classes_.tolist()]
        classes = tuple(texts)
        names = self._target_names(self._n_labels)
        return tuple(Target(column=name, dtype="string", classes=classes) for name in names)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class; for a vote the one most fields choose, of ties the likelier."""
        check_is_fitted(self)
        chosen = self.model_.choices(*self._encoder.codes(X), self.n_jobs)
        if self._n_labels > 1:
            return np.stack(chosen, axis=1)
        return self.classes_[chosen[0]]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class FieldwiseRegressor(RegressorMixin, _FieldwiseEstimator):  # type: ignore[misc]
    __doc__ = f"""Field-wise learning of numbers and counts; y may have several columns.
{PARAMETERS}"""

    def fit(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        eval_set: tuple[Any, Any] | None = None,
    ) -> FieldwiseRegressor:
        """Learn from a table and its numbers.

        Parameters
        ----------
        X : anything that holds a table: a frame, an array, a dict of columns, a path.
        y : the number to learn for every row, or a matrix with a column for each target.
        sample_weight : (n,), how much each row counts.
        eval_set : (X, y), rows for early stopping instead of a random part of X.
        """
        with self._whole():
            self._fit(X, y, sample_weight, eval_set)
        return self

    def partial_fit(self, X: Any, y: Any, *, sample_weight: Any = None) -> FieldwiseRegressor:
        """Train one epoch on more rows. New categories get rows of their own."""
        with self._whole():
            self._partial_fit(X, y, sample_weight, reset=not hasattr(self, "model_"))
        return self

    def _targets(self, y: Any, *, reset: bool) -> np.ndarray:
        y = np.asarray(y)
        y = y if y.ndim == 2 and y.shape[1] > 1 else column_or_1d(y, warn=True)[:, None]
        try:
            y = y.astype(np.float64)
        except ValueError as error:
            raise DataError(f"y must be numbers: {error}") from error
        if not np.isfinite(y).all():
            raise DataError("Input y contains NaN or infinity")
        if reset:
            self._n_targets = y.shape[1]
        if y.shape[1] != self._n_targets:
            raise DataError(f"y has {y.shape[1]} columns, but had {self._n_targets} before")
        for k, head in enumerate(self._heads()):
            check_target(head.loss, y[:, k])
        return y

    def _heads(self) -> tuple[Head, ...]:
        loss = self.loss or "squared"
        if loss in ("logistic", "softmax"):
            raise SettingError(f"loss={loss!r} is for classes; use FieldwiseClassifier")
        return (Head(loss, delta=self.delta),) * self._n_targets

    def _named_targets(self) -> tuple[Target, ...]:
        names = self._target_names(self._n_targets)
        return tuple(Target(column=name, kind="numeric", dtype="float") for name in names)

    def predict(self, X: Any) -> np.ndarray:
        """Predicted numbers, (n,) or (n, targets)"""
        z = self._scores(X)
        found = LOSSES[self._heads()[0].loss].prediction(z)
        return found[:, 0] if found.shape[1] == 1 else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags


def _print_epoch(record: dict[str, Any]) -> None:
    words = [f"epoch {record['epoch']}", f"train {record['train_loss']:.4f}"]
    if "loss" in record:
        words += [f"validation {record['loss']:.4f}"]
    if "auc" in record:
        words += [f"AUC {record['auc']:.4f}"]
    print(", ".join(words), f"({record['seconds']:.1f} s)", flush=True)
