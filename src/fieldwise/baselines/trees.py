"""Boosted trees over the same codes: LightGBM (the paper's GBDT), CatBoost, and scikit-learn's.

Every field is a categorical feature, and so is every slot of a list; linear fields and the numbers
of bins are numeric features. Trees are added until the validation rows see no gain for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from ..data.shuffle import gathered, wide_values
from ..errors import SettingError
from ..losses import LOSSES
from ..problem import Problem

__all__ = ["Trees", "fit_catboost", "fit_hist", "fit_lightgbm"]

MOST_TREES = 2000
PATIENCE = 30  # trees without gain at the end
MOST_CATEGORIES = 254  # of a field, for scikit-learn's trees; the rarest share one
TINY = 1e-15
Tell = Callable[[dict[str, Any]], bool]  # gets every tree's number and loss; True ends the fit


@dataclass
class Trees:
    """Fitted trees, which score as an engine does."""

    chances: Callable[[np.ndarray], Any]  # (n, S) -> (n,) of the second class, or (n, K)
    features: Features
    n_trees: int
    loss: float  # on the validation rows

    def scores(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        chance = np.clip(self.chances(self.features(codes, values)), TINY, 1 - TINY)
        z = np.log(chance) if chance.ndim == 2 else np.log(chance / (1 - chance))[:, None]
        return np.asarray(z, np.float64)


class Features:
    """Codes and values as trees take them, (n, S): NaN where a value was never seen."""

    def __init__(self, problem: Problem, most: int | None = None) -> None:
        slots = np.arange(problem.layout.n_slots)
        is_number = np.isin(slots, problem.ordered)
        self.categorical = np.flatnonzero(~is_number).tolist()
        self._linear = np.flatnonzero(is_number & np.isin(slots, problem.valued))
        self._groups = None if most is None else _groups(problem, most)

    def __call__(self, codes: np.ndarray, values: np.ndarray | None) -> np.ndarray:
        found = codes.astype(np.float32)  # exact up to 16 million categories
        found[codes < 0] = np.nan
        if self._groups is not None:
            for s in self.categorical:
                group = self._groups[s]
                found[:, s] = np.where(codes[:, s] < 0, np.nan, group[codes[:, s]])
        if values is not None:
            for at in self._linear:
                found[:, at] = np.where(codes[:, at] == 0, values[:, at], np.nan)
        return found


def _groups(problem: Problem, most: int) -> list[np.ndarray]:
    """For every slot the new code of each code of its field: the most frequent categories keep one
    each, the others share the last."""
    layout, out = problem.layout, []
    for i in layout.slot_owner.tolist():
        counts = problem.counts[layout.own(i)]
        place = np.empty(len(counts), np.int64)
        place[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
        out.append(np.minimum(place, most - 1))
    return out


@dataclass
class _Parts:
    """Training and validation rows for trees."""

    features: Features
    X: np.ndarray
    y: np.ndarray
    w: np.ndarray | None
    judge: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None
    n_classes: int

    @property
    def is_share(self) -> bool:
        """Whether the target is a share of trials rather than one of two classes."""
        return self.n_classes == 2 and bool(((self.y > 0) & (self.y < 1)).any())

    @classmethod
    def of(cls, problem: Problem, most: int | None = None) -> _Parts:
        features = Features(problem, most)

        def part(rows: Any, only: np.ndarray | None) -> Any:
            found = gathered(rows, only)
            values = wide_values(found["codes"], found.get("values"), problem.valued)
            weight = found["weight"][:, 0] if "weight" in found else None
            return features(found["codes"], values), found["target"][:, 0], weight

        X, y, w = part(problem.rows, problem.only)
        judge = None if problem.judge is None else part(*problem.judge)
        return cls(features, X, y, w, judge, max(2, problem.objective.heads[0].size))

    def loss(self, chance: np.ndarray) -> float:
        """The mean loss on the validation rows."""
        assert self.judge is not None
        _, y, w = self.judge
        w = np.ones(len(y)) if w is None else w
        chance = np.clip(chance.astype(np.float64), TINY, 1 - TINY)
        if self.n_classes > 2:
            value = LOSSES["softmax"].value(np.log(chance), y, 0.0)
        else:
            value = LOSSES["logistic"].value(np.log(chance / (1 - chance)), y, 0.0)
        return float(np.sum(w * value) / np.sum(w))


def fit_lightgbm(
    problem: Problem, settings: Mapping[str, Any], *, seed: int, n_jobs: int | None, tell: Tell
) -> Trees:
    """LightGBM with native categories."""
    import lightgbm

    parts = _Parts.of(problem)
    # Bins for the 8,192 most frequent categories; the pool bounds the memory of many leaves.
    fixed: dict[str, Any] = {"max_bin": 8192, "histogram_pool_size": 2048, "verbosity": -1}
    fixed |= {"deterministic": True, "force_row_wise": True}
    fixed["min_data_per_group"] = max(1, min(100, len(parts.y) // 100))  # 100 of 300 is too many
    fixed |= {"num_threads": n_jobs or 0, "seed": seed}
    if parts.n_classes > 2:
        fixed |= {"objective": "multiclass", "num_class": parts.n_classes}
    else:
        fixed["objective"] = "cross_entropy" if parts.is_share else "binary"
    options: dict[str, Any] = {"categorical_feature": parts.features.categorical, "params": fixed}
    data = lightgbm.Dataset(parts.X, parts.y, weight=parts.w, **options)
    losses: list[float] = []

    def after(env: Any) -> None:
        if env.evaluation_result_list:
            losses.append(float(env.evaluation_result_list[0][2]))
            record = {"epoch": len(losses), "loss": losses[-1], "logloss": losses[-1]}
            if tell(record) or len(losses) - 1 - int(np.argmin(losses)) >= PATIENCE:
                raise lightgbm.callback.EarlyStopException(int(np.argmin(losses)), [])

    judges = []
    if parts.judge is not None:
        X, y, w = parts.judge
        judges = [lightgbm.Dataset(X, y, weight=w, reference=data, **options)]
    n_trees = MOST_TREES if judges else 100
    model = lightgbm.train(
        {**fixed, **settings}, data, n_trees, valid_sets=judges, callbacks=[after]
    )
    best = int(np.argmin(losses)) + 1 if losses else n_trees
    kept = lightgbm.Booster(model_str=model.model_to_string(num_iteration=best))
    return Trees(kept.predict, parts.features, best, min(losses, default=float("nan")))


def fit_catboost(
    problem: Problem, settings: Mapping[str, Any], *, seed: int, n_jobs: int | None, tell: Tell
) -> Trees:
    """CatBoost with its own statistics of categories."""
    import catboost

    parts = _Parts.of(problem)
    categorical = parts.features.categorical

    def pool(X: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> Any:
        return catboost.Pool(_objects(X, categorical), y, cat_features=categorical, weight=w)

    class Teller:
        def after_iteration(self, info: Any) -> bool:
            (losses,) = info.metrics.get("validation", {"": [float("nan")]}).values()
            return not tell({"epoch": info.iteration, "loss": losses[-1], "logloss": losses[-1]})

    loss_function = "CrossEntropy" if parts.is_share else "Logloss"
    if parts.n_classes > 2:
        loss_function = "MultiClass"
    model = catboost.CatBoost({
        "loss_function": loss_function,
        "iterations": MOST_TREES if parts.judge else 300,
        "random_seed": seed,
        "thread_count": n_jobs or -1,
        "verbose": False,
        "allow_writing_files": False,
        **({"od_type": "Iter", "od_wait": PATIENCE} if parts.judge else {}),
        **settings,
    })  # fmt: skip
    judge = None if parts.judge is None else pool(*parts.judge)
    model.fit(pool(parts.X, parts.y, parts.w), eval_set=judge, callbacks=[Teller()])

    chances = _CatBoostChances(model, categorical, parts.n_classes)
    loss = parts.loss(chances(parts.judge[0])) if parts.judge else float("nan")
    return Trees(chances, parts.features, int(model.tree_count_), loss)


def _objects(X: np.ndarray, categorical: list[int]) -> np.ndarray:
    """Features with categories as whole numbers, as CatBoost requires."""
    whole = X.astype(object)
    whole[:, categorical] = np.nan_to_num(X[:, categorical], nan=-1).astype(np.int64)
    return whole


@dataclass
class _CatBoostChances:
    model: Any
    categorical: list[int]
    n_classes: int

    def __call__(self, X: np.ndarray) -> np.ndarray:
        whole = _objects(X, self.categorical)
        found: np.ndarray = self.model.predict(whole, prediction_type="Probability")
        return found[:, 1] if self.n_classes == 2 else found


def fit_hist(
    problem: Problem, settings: Mapping[str, Any], *, seed: int, n_jobs: int | None, tell: Tell
) -> Trees:
    """scikit-learn's histogram trees; in fields with many categories the rarest share one."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from threadpoolctl import threadpool_limits

    parts = _Parts.of(problem, MOST_CATEGORIES)
    if parts.is_share:
        raise SettingError("scikit-learn's trees take classes, not shares of trials")
    model = HistGradientBoostingClassifier(
        categorical_features=parts.features.categorical,
        max_iter=MOST_TREES if parts.judge else 100,
        early_stopping=parts.judge is not None,
        n_iter_no_change=PATIENCE,
        random_state=seed,
        **settings,
    )
    about = {}
    if parts.judge is not None:
        about = dict(zip(("X_val", "y_val", "sample_weight_val"), parts.judge, strict=True))
    with threadpool_limits(n_jobs):
        model.fit(parts.X, parts.y, sample_weight=parts.w, **about)
    best = int(model.n_iter_)
    if parts.judge is not None:
        best = int(np.argmax(model.validation_score_[1:])) + 1
    chances = _HistChances(model, best, parts.n_classes)
    loss = parts.loss(chances(parts.judge[0])) if parts.judge else float("nan")
    return Trees(chances, parts.features, best, loss)


@dataclass
class _HistChances:
    model: Any
    n_trees: int  # up to the best one; the model keeps later ones too
    n_classes: int

    def __call__(self, X: np.ndarray) -> np.ndarray:
        found: np.ndarray = next(islice(self.model.staged_predict_proba(X), self.n_trees - 1, None))
        return found[:, 1] if self.n_classes == 2 else found
