"""F = boosted trees: LightGBM over field-wise scores, evidence and numbers, another way to turn the
fields' scores into a prediction. Trees add up to scores, and their contributions are exact."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .errors import MissingExtra, ModelError
from .metrics import measure
from .objective import Head
from .progress import Progress, progress
from .tree_text import check_trees

__all__ = [
    "Boosted",
    "Examples",
    "fit_boosted",
    "freshened",
    "judged",
    "need_trees",
    "refitted",
]

OBJECTIVES = {
    "logistic": "binary",
    "softmax": "multiclass",
    "squared": "regression",
    "absolute": "regression_l1",
    "huber": "huber",
    "poisson": "poisson",
}
# Found on the validation rows of six tables; the plateau is wide. Evidence is noisy for rare
# categories, so leaves are large and every tree sees only some of the features.
SETTINGS: dict[str, Any] = {
    "num_leaves": 31,
    "feature_fraction": 0.4,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 5.0,
}
LEAF = 50  # rows, at least
FEW = 100_000  # with fewer rows, smaller steps cost little
MOST_TREES, PATIENCE, UNJUDGED, MEMBERS = 2000, 80, 200, 3
DECAYS = (0.9, 0.5)  # weights of the leaves' old values when trees are refitted


@dataclass(frozen=True)
class Examples:
    """features (n, F), targets (n,) and weights (n,)"""

    features: np.ndarray
    y: np.ndarray
    w: np.ndarray | None = None


@dataclass
class Boosted:
    """Fitted trees, as text by LightGBM, and a shift that is added to their scores. Several
    members are averaged."""

    members: Sequence[str]
    n_outputs: int = 1
    shift: float = 0.0

    @cached_property
    def _trees(self) -> list[Any]:
        lightgbm = need_trees()
        try:
            return [lightgbm.Booster(model_str=text) for text in self.members]
        except (lightgbm.basic.LightGBMError, ValueError, TypeError) as error:
            raise ModelError(f"the boosted trees are damaged: {error}") from error

    def check(self, n_features: int, n_outputs: int) -> None:
        """Raise unless these are trees of so many features and outputs; call it before LightGBM
        reads them, which some texts would crash."""
        is_whole = type(self.members) is list and self.members
        if not is_whole or self.n_outputs != n_outputs or not _is_number(self.shift):
            raise ModelError(
                f"the boosted trees are damaged: {self.n_outputs} outputs, shift {self.shift!r}"
            )
        for text in self.members:
            check_trees(text, n_features, n_outputs)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Boosted:
        return cls(**json.loads(text))

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_trees"}

    def scores(self, features: np.ndarray, n_jobs: int | None = None) -> np.ndarray:
        """Scores (n, K) of features (n, F)"""
        found = self._of_each(features, raw_score=True, num_threads=_threads(n_jobs))
        out: np.ndarray = np.mean(found, axis=0).reshape(len(features), -1) + self.shift
        return out

    def _of_each(self, features: np.ndarray, **options: Any) -> list[np.ndarray]:
        """The predictions of every member."""
        trees = self._trees
        try:
            return [np.asarray(one.predict(features, **options)) for one in trees]
        except need_trees().basic.LightGBMError as error:  # they take other features
            raise ModelError(f"the boosted trees do not fit the model: {error}") from error

    def span(self) -> float:
        """The highest possible score less the lowest, the most over outputs: the sum over trees of
        the highest leaf less the lowest."""
        spans = np.zeros(self.n_outputs)
        for text in self.members:
            leaves = [line[11:] for line in text.splitlines() if line.startswith("leaf_value=")]
            for n, line in enumerate(leaves):
                values = np.array(line.split(), np.float64)
                spans[n % self.n_outputs] += (values.max() - values.min()) / len(self.members)
        return float(spans.max())

    def contributions(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Exact Shapley values of the trees (n, K, F), and the score they start from (n, K)."""
        n_features = features.shape[1]
        each = self._of_each(features, pred_contrib=True)
        found = np.mean(each, axis=0).reshape(len(features), self.n_outputs, n_features + 1)
        return found[:, :, :-1], found[:, :, -1] + self.shift


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def fit_boosted(
    known: Examples,
    judge: Examples | None,
    head: Head,
    *,
    copies: int = 1,
    seed: int = 0,
    n_jobs: int | None = None,
    shift: float = 0.0,
    start: Boosted | None = None,
    show: bool | None = False,
) -> Boosted:
    """Train trees until the rows of `judge` see no gain for a while. `copies` is how often every
    row occurs in `known`; `start` are trees to add more to."""
    lightgbm = need_trees()
    settings = _settings(known, head, copies, n_jobs)

    def sets() -> list[Any]:
        data = lightgbm.Dataset(known.features, known.y, weight=known.w, params=settings)
        if judge is None:
            return [data]
        return [data, lightgbm.Dataset(judge.features, judge.y, weight=judge.w, reference=data)]

    data, *judges = sets()
    callbacks = [lightgbm.early_stopping(PATIENCE, verbose=False)] if judges else []
    n_trees = MOST_TREES if judges else UNJUDGED
    members = []
    firsts = [None] * MEMBERS if start is None else start._trees
    for member, first in enumerate(firsts):
        if first is not None and member:  # a dataset keeps the scores of the trees added to
            data, *judges = sets()
        with progress(f"trees {member + 1}", n_trees, show=show) as tell:
            trees = lightgbm.train(
                {**settings, "seed": seed + member},
                data,
                n_trees,
                valid_sets=judges,
                callbacks=[*callbacks, _teller(tell)],
                init_model=first,
            )
        best = trees.best_iteration if judges else trees.current_iteration()
        members.append(trees.model_to_string(num_iteration=best))
    return Boosted(members, head.size, shift)


def _settings(known: Examples, head: Head, copies: int, n_jobs: int | None) -> dict[str, Any]:
    """LightGBM's parameters, for examples in which every row occurs `copies` times."""
    n_rows = len(known.y) // copies
    settings = {
        **SETTINGS,
        "learning_rate": 0.03 if n_rows < FEW else 0.05,
        "objective": OBJECTIVES[head.loss],
        "min_data_in_leaf": max(1, min(LEAF, n_rows // 20)) * copies,
        "num_threads": _threads(n_jobs),
        "deterministic": True,
        "force_row_wise": True,
        "verbosity": -1,
    }
    if head.loss == "logistic" and ((known.y > 0) & (known.y < 1)).any():
        settings["objective"] = "cross_entropy"  # shares of trials
    if head.loss == "softmax":
        settings["num_class"] = head.size
    if head.loss == "huber":
        settings["alpha"] = head.delta
    return settings


def _threads(n_jobs: int | None) -> int:
    from .engines._numba import threads  # Numba is there wherever trees are trained and scored

    return threads(n_jobs)


def refitted(trees: Boosted, known: Examples, decay: float, n_jobs: int | None = None) -> Boosted:
    """The same trees with new leaf values: `decay` times the old ones, and the rest from these
    rows."""
    quiet = {"num_threads": _threads(n_jobs), "verbosity": -1}
    members = [
        one.refit(*(known.features, known.y, decay), weight=known.w, dataset_params=quiet, **quiet)
        for one in trees._trees
    ]
    return Boosted([one.model_to_string() for one in members], trees.n_outputs, trees.shift)


def judged(
    trees: Boosted, rows: Examples, head: Head, n_jobs: int | None = None
) -> dict[str, float]:
    """Metrics of the trees on some rows."""
    z = trees.scores(rows.features, n_jobs)
    return measure([head], [z if head.size > 1 else z[:, 0]], rows.y[:, None], rows.w)


def freshened(
    trees: Boosted,
    known: Examples,
    judge: Examples,
    head: Head,
    *,
    seed: int = 0,
    n_jobs: int | None = None,
    show: bool | None = False,
) -> tuple[Boosted, str, dict[str, float]]:
    """The trees as they are, refitted to new rows or added to, whichever is best on the rows of
    `judge`; which it was, and its metrics there."""
    more = fit_boosted(
        *(known, judge, head),
        seed=seed,
        n_jobs=n_jobs,
        shift=trees.shift,
        start=trees,
        show=show,
    )
    options = [("kept", trees), ("added to", more)]
    options += [(f"refitted, {d:g}", refitted(trees, known, d, n_jobs)) for d in DECAYS]
    found = [(judged(one, judge, head, n_jobs), how, one) for how, one in options]
    metrics, how, best = min(found, key=lambda option: option[0]["loss"])
    return best, how, metrics


def _teller(tell: Progress) -> Any:
    def after(env: Any) -> None:
        loss = env.evaluation_result_list[0][2] if env.evaluation_result_list else None
        tell(env.iteration + 1, "" if loss is None else f"loss {loss:.4f}")

    return after


def need_trees() -> Any:
    """LightGBM; call it early, so that a missing package is found before most of the work."""
    try:
        import lightgbm
    except ImportError:
        raise MissingExtra("lightgbm", "boost") from None
    return lightgbm
