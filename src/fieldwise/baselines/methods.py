"""Every method by its name: settings to try, requirements, and how to fit it.

All learn from the same `Problem`. The results score codes and values as an engine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from .. import callbacks
from ..engines import DEVICES
from ..errors import MissingExtra, SettingError, not_one_of
from ..layout import Layout
from ..problem import Problem, Scorer
from ..train import Running, TrainSettings, fitted_engine, train

__all__ = ["METHODS", "OURS", "PAPERS", "Fitted", "Method", "chosen_methods"]

RATES = (0.01, 0.1)
DECAYS = tuple(10.0**-k for k in range(3, 9))
DROPOUTS = (0.1, 0.3, 0.5, 0.7)
BASES = (1.2, 1.4, 1.6, 1.8, 2.0, 3.0, 4.0)
OURS = "fieldwise"
BINARY = "Only binary classification is supported."  # scikit-learn's words


@dataclass
class Fitted:
    """A fitted method."""

    scorer: Scorer
    size: int  # numbers learned, or trees
    loss: float  # on the validation rows
    seconds: float  # of training
    rounds: int  # epochs, or trees
    was_stopped: bool = False


FitFunction = Callable[[Problem, Mapping[str, Any], TrainSettings, Running], Fitted]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: `grid` holds the candidates of every setting, `start` what is tried first."""

    name: str
    fit: FitFunction
    grid: Mapping[str, Sequence[Any]]
    start: Mapping[str, Any]
    package: str = ""  # that has to be installed, with the extra that brings it
    extra: str = ""
    in_pairs: bool = True  # needs two fields or more
    many_classes: bool = False
    counts_trees: bool = False

    def why_not(self, n_fields: int, n_classes: int) -> str:
        """Why the method cannot learn such a table; empty if it can."""
        if self.package and find_spec(self.package) is None:
            return str(MissingExtra(self.package, self.extra))
        if self.in_pairs and n_fields < 2:
            return "learns from pairs of fields, and the table has one (n_features = 1)"
        if n_classes > 2 and not self.many_classes:
            return f"learns two classes, and the target has {n_classes}: {BINARY}"
        return ""


def _fit_ours(
    problem: Problem, settings: Mapping[str, Any], training: TrainSettings, running: Running
) -> Fitted:
    """Fit our model; `ranks` is a number, or "log B" for ranks growing as the log to base B."""
    settings = dict(settings)
    ranks = settings.pop("ranks", None)
    logarithmic = isinstance(ranks, str)
    old = problem.layout
    layout = Layout.of(
        old.sizes,
        rank=None if logarithmic else ranks,
        rank_base=float(ranks.removeprefix("log ")) if logarithmic else None,
        overrides={i: 0 for i, rank in enumerate(old.ranks) if rank == 0},
        n_outputs=problem.objective.n_outputs,
        slots=old.slots,
    )
    return _trained(replace(problem, layout=layout), settings, training, running, None)


def _trained(
    problem: Problem,
    settings: Mapping[str, Any],
    training: TrainSettings,
    running: Running,
    size: int | None,
) -> Fitted:
    begun = time.perf_counter()
    fit = train(problem, replace(training, **settings), running)
    # After an interruption the clock has only the last part, the history all of it.
    seconds = max(time.perf_counter() - begun, sum(r["seconds"] for r in fit.history))
    engine = fitted_engine(problem, fit, running)
    loss = fit.metrics.get("loss", float("nan"))
    size = problem.layout.n_parameters if size is None else size
    return Fitted(engine, size, loss, seconds, len(fit.history), fit.was_stopped)


STEPS = ("learning_rate", "weight_decay")  # settings of the loop; the others are the module's


def _fit_torch(
    name: str,
    problem: Problem,
    settings: Mapping[str, Any],
    training: TrainSettings,
    running: Running,
) -> Fitted:
    from . import deep, factorisation
    from .engine import BaselineEngine

    old = problem.layout
    problem = replace(problem, layout=Layout.of(old.sizes, rank=0, slots=old.slots))
    kind = getattr(deep if hasattr(deep, name) else factorisation, name)
    about = {k: v for k, v in settings.items() if k not in STEPS}
    if name == "RaFM":
        about["counts"] = problem.counts
    make = partial(kind, **about)
    engine: Any = partial(BaselineEngine, make=make, device=_device(running.device))
    for setting in ("rank", "anchors"):
        if about.get(setting, 1) < 1:
            raise SettingError(f"{setting}={about[setting]} must be at least 1")
    training = replace(training, penalty=0.0)
    steps = {k: v for k, v in settings.items() if k in STEPS}
    with _threads(running.n_jobs):
        size = make(problem.layout).n_parameters(problem.layout)
        return _trained(problem, steps, training, replace(running, engine=engine), size)


def _device(device: str) -> str:
    import torch

    if device not in DEVICES:
        raise not_one_of(f"device={device!r}", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise SettingError('device="cuda": torch finds no GPU here; use "cpu" or "auto"')
    return "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"


@contextmanager
def _threads(n: int | None) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n if n and n > 0 else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _fit_trees(
    name: str,
    problem: Problem,
    settings: Mapping[str, Any],
    training: TrainSettings,
    running: Running,
) -> Fitted:
    from . import trees

    stopped = False

    def tell(record: dict[str, Any]) -> bool:
        nonlocal stopped
        stopped = callbacks.tell(running.callbacks, record)
        return stopped

    begun = time.perf_counter()
    about: dict[str, Any] = {"seed": training.seed, "n_jobs": running.n_jobs, "tell": tell}
    found = getattr(trees, name)(problem, settings, **about)
    seconds = time.perf_counter() - begun
    return Fitted(found, found.n_trees, found.loss, seconds, found.n_trees, stopped)


def _torch(name: str, start: Mapping[str, Any], **grid: Sequence[Any]) -> Method:
    start = {"learning_rate": 0.1, "weight_decay": 1e-6, **start}
    steps = {"learning_rate": RATES, "weight_decay": DECAYS}
    about: dict[str, Any] = {"package": "torch", "extra": "baselines"}
    about["in_pairs"] = name != "LR"
    fit = partial(_fit_torch, name)
    return Method(name=name, fit=fit, grid={**steps, **grid}, start=start, **about)


def _trees(
    name: str, fit: str, package: str, extra: str, start: Mapping[str, Any], **grid: Sequence[Any]
) -> Method:
    return Method(
        name=name,
        fit=partial(_fit_trees, fit),
        grid=grid,
        start=start,
        package=package,
        extra=extra,
        in_pairs=False,
        many_classes=True,
        counts_trees=True,
    )


# The paper's grids. The settings tried first are near its best points, and quick.
_ALL = (
    _torch("LR", {"weight_decay": 1e-8}),
    _trees(
        "GBDT", "fit_lightgbm", "lightgbm", "baselines",
        {"max_depth": 20, "num_leaves": 100},
        max_depth=(20, 30, 40, 50, 100), num_leaves=(100, 1000, 10000),
    ),
    _torch("FM", {"rank": 20}, rank=(20, 40, 60, 80, 100)),
    _torch("FFM", {"rank": 4}, rank=(2, 4, 8, 16)),
    _torch("RaFM", {"learning_rate": 0.01}),
    _torch(
        "LLFM", {"rank": 16, "anchors": 2, "learning_rate": 0.01},
        rank=(16, 32, 64), anchors=(2, 3, 4, 5),
    ),
    _torch(
        "DeepFM", {"rank": 10, "dropout": 0.3},
        rank=(10, 30, 60), dropout=DROPOUTS,
    ),
    _torch(
        "IPNN", {"rank": 10, "dropout": 0.3, "learning_rate": 0.01},
        rank=(10, 40), dropout=DROPOUTS,
    ),
    _torch(
        "OPNN", {"rank": 10, "dropout": 0.3, "learning_rate": 0.01},
        rank=(10, 40), dropout=DROPOUTS,
    ),
    Method(
        name=OURS,
        fit=_fit_ours,
        start={"learning_rate": 0.1, "weight_decay": 1e-5, "penalty": 1e-5, "ranks": 28},
        grid={
            "learning_rate": RATES,
            "weight_decay": DECAYS,
            "penalty": DECAYS,
            "ranks": (*range(4, 29, 4), *(f"log {base:g}" for base in BASES)),
        },
        in_pairs=False,
        many_classes=True,
    ),
    _trees(
        "CatBoost", "fit_catboost", "catboost", "catboost",
        {"depth": 6, "learning_rate": 0.1},
        depth=(4, 6, 8), learning_rate=(0.03, 0.1, 0.3),
    ),
    _trees(
        "HistGradientBoosting", "fit_hist", "sklearn", "",
        {"learning_rate": 0.1, "max_leaf_nodes": 31},
        learning_rate=(0.03, 0.1, 0.3), max_leaf_nodes=(15, 31, 127),
    ),
)  # fmt: skip
METHODS = {method.name: method for method in _ALL}
PAPERS = tuple(METHODS)[:10]  # the methods of the paper's table


def chosen_methods(names: Sequence[str]) -> list[Method]:
    """Methods by their names, in any case; "paper" is those of the paper, "all" is all."""
    known = {name.lower(): name for name in METHODS} | {"ours": OURS, "lightgbm": "GBDT"}
    known |= {"hist": "HistGradientBoosting", "hgb": "HistGradientBoosting"}
    out: list[str] = []
    for name in names:
        low = name.strip().lower()
        if low in ("paper", "all"):
            out += PAPERS if low == "paper" else METHODS
        elif low in known:
            out.append(known[low])
        else:
            raise not_one_of(f"method {name!r}", low, METHODS, known=known)
    return [METHODS[name] for name in dict.fromkeys(out)]
