"""Choose settings on validation rows with Optuna: for any method, and for our model on its own.

Studies are SQLite files. However a search ends, its trials are kept, and the next one continues.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .data.readers import check_not_read
from .data.store import Store
from .errors import MissingExtra, SettingError, TrainingError
from .files import write_atomically
from .fitting import fit_store, kept_store
from .progress import Say
from .train import Running, TrainSettings

if TYPE_CHECKING:
    import optuna

__all__ = [
    "OutOfTime",
    "draw_search",
    "finished",
    "open_study",
    "require_optuna",
    "search",
    "tune_table",
]

# Candidates of our own model's settings: (lowest, highest) on a logarithmic scale.
SPACE: dict[str, tuple[float, float]] = {
    "learning_rate": (0.01, 0.5),
    "weight_decay": (1e-8, 1e-3),
    "penalty": (1e-8, 1e-3),
}
RANKS = (2, 64)
START = {"learning_rate": 0.15, "weight_decay": 1e-5, "penalty": 1e-5, "rank": 32}

Report = Callable[[dict[str, Any]], bool]  # gets every epoch's record; True: give this trial up
Grid = Mapping[str, Sequence[Any]]
Space = Grid | Callable[[Any], dict[str, Any]]
Tried = Callable[[dict[str, Any], Report], float]  # the validation loss of settings


class OutOfTime(Exception):
    """The time limit has passed."""


def require_optuna() -> Any:
    """Optuna, or an error that says how to install it."""
    try:
        import optuna
    except ImportError as error:
        raise MissingExtra("optuna", "tune") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_study(
    file: Path,
    name: str,
    seed: int,
    start: Mapping[str, Any] | None = None,
    *,
    shared: bool = False,
) -> optuna.Study:
    """The study of that name in a SQLite file, created if missing; `start` is tried first.

    `shared`: other processes may be working on it.
    """
    optuna = require_optuna()
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{file}", engine_kwargs={"connect_args": {"timeout": 60}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, multivariate=True, constant_liar=shared, n_startup_trials=8
        )
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2)
    study: Any = optuna.create_study(
        storage=storage, study_name=name, sampler=sampler, pruner=pruner, load_if_exists=True
    )
    if not shared:
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)  # its process was killed
            if trial.params:
                study.enqueue_trial(trial.params)
    if start:
        study.enqueue_trial(dict(start), skip_if_exists=True)
    return study


def finished(study: optuna.Study) -> list[Any]:
    """Trials of different settings that ended by themselves, including those given up early."""
    state = require_optuna().trial.TrialState
    ended = study.get_trials(deepcopy=False, states=(state.COMPLETE, state.PRUNED, state.FAIL))
    out: dict[str, Any] = {}
    for trial in ended:
        if trial.state != state.FAIL or "error" in trial.user_attrs:
            out.setdefault(repr(sorted(trial.params.items())), trial)
    return list(out.values())


def search(
    study: optuna.Study,
    space: Space,
    tried: Tried,
    n_trials: int,
    is_over: Callable[[], bool] = lambda: False,
    said: Callable[[int, dict[str, Any], str], None] = lambda number, settings, words: None,
) -> None:
    """Try settings until `n_trials` different ones were tried, there are no others, or `is_over`.

    `space` draws settings for a trial, or holds the candidates of each. Settings whose loss is not
    a number count as a failed trial; any other error ends the search, which can continue later.
    """
    state = require_optuna().trial.TrialState
    while len(finished(study)) < n_trials and not is_over():
        trial = study.ask()
        others = study.get_trials(deepcopy=False, states=(state.RUNNING,))
        done = finished(study)
        before = [t for t in others if t.number < trial.number]  # of other processes
        if len(done) + len(before) >= n_trials:
            study.tell(trial, state=state.FAIL)
            return
        settings = space(trial) if callable(space) else _of_grid(trial, space)
        if any(t.params == trial.params for t in done):
            study.tell(trial, state=state.FAIL)
            other = None if callable(space) else _untried(space, [t.params for t in done])
            if other is not None:
                study.enqueue_trial(other)
            elif not callable(space):
                return
            continue
        report = _Reporter(trial)
        try:
            value = tried(settings, report)
        except TrainingError as error:  # these settings will always fail
            trial.set_user_attr("error", str(error))
            study.tell(trial, state=state.FAIL)
            said(trial.number, settings, str(error))
        except BaseException:
            study.tell(trial, state=state.FAIL)
            study.enqueue_trial(trial.params)  # for when the search continues
            raise
        else:
            if report.gave_up:
                study.tell(trial, state=state.PRUNED)
            else:
                study.tell(trial, value)
            said(trial.number, settings, f"{value:.4f}" + (", given up" if report.gave_up else ""))


def _of_grid(trial: optuna.Trial, grid: Grid) -> dict[str, Any]:
    return {k: trial.suggest_categorical(k, list(v)) for k, v in grid.items()}


def _untried(grid: Grid, done: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Random settings among those not tried yet; None if there are none."""
    names = list(grid)
    every = [dict(zip(names, values, strict=True)) for values in product(*grid.values())]
    left = [settings for settings in every if settings not in done]
    return random.Random(len(done)).choice(left) if left else None


class _Reporter:
    """A callback that reports epochs to a trial, and gives it up if it lags behind the others."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial, self._n, self.gave_up = trial, 0, False

    def __call__(self, record: dict[str, Any]) -> bool:
        if "loss" in record:
            self._n += 1
            self._trial.report(record["loss"], self._n)
            self.gave_up = self._trial.should_prune()
        return self.gave_up


def tune_table(
    data: Any,
    out: str | Path,
    *,
    trials: int = 30,
    jobs: int = 1,
    time_limit: float | None = None,
    split: str = "random",
    validation: float | None = None,
    seed: int = 0,
    reading: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    running: Running | None = None,
    say: Say = lambda words: None,
) -> dict[str, Any]:
    """Search the settings of our model on a table or a store; `out` is the TOML file to write,
    which includes the options of `config`.

    Beside it `OUT.search` keeps the encoded table, the study and plots of the search. If it exists,
    the search continues. `jobs` processes try settings in parallel; `time_limit` is in minutes.
    """
    if trials < 1 or jobs < 1:
        raise SettingError(f"trials={trials} and jobs={jobs} must be at least 1")
    require_optuna()
    if time_limit is not None and not time_limit > 0:
        raise SettingError(f"time_limit={time_limit} must be more than 0 minutes")
    running = replace(running or Running(), keeps_best=False)
    out = Path(out)
    check_not_read(out, data)
    folder = out.with_name(f"{out.name}.search")
    cutting = {"split": split, "validation": validation, "seed": seed}
    store = kept_store(data, folder, reading or {}, cutting, running, "a search")
    study = open_study(folder / "study.db", "fieldwise", seed, START)
    before = len(finished(study))
    if before:
        say(f"{before} trials are here already, in {folder}")
    deadline = time.monotonic() + 60 * time_limit if time_limit else float("inf")
    task = (str(store.path), str(folder / "study.db"), trials, deadline, split, validation, seed)
    cores = running.n_jobs or os.cpu_count() or 1
    if jobs == 1:
        _work(*task, running, say)
    else:
        quiet = replace(running, n_jobs=max(1, cores // jobs), show=False, callbacks=())
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=_work, args=(*task, quiet, None, k)) for k in range(jobs)]
        _run_all(workers, study, trials, say)
    options = {**(config or {}), **cutting}
    return _chosen(study, out, folder, options)


def _suggest(trial: optuna.Trial) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: trial.suggest_float(name, *bounds, log=True) for name, bounds in SPACE.items()
    }
    return {**found, "rank": trial.suggest_int("rank", *RANKS, log=True)}


def _work(
    store: str,
    file: str,
    trials: int,
    deadline: float,
    split: str,
    validation: float | None,
    seed: int,
    running: Running,
    say: Say | None,
    worker: int = 0,
) -> None:
    """One process's share of a search."""
    opened = Store(store)
    study = open_study(Path(file), "fieldwise", seed + worker, shared=say is None)

    def tried(settings: dict[str, Any], report: Report) -> float:
        steps = {name: value for name, value in settings.items() if name != "rank"}
        model = fit_store(
            opened,
            settings=TrainSettings(**steps, seed=seed),
            running=replace(running, callbacks=[*running.callbacks, report]),
            rank=settings["rank"],
            split=split,
            validation=validation,
        )
        return model.metrics["loss"]

    def tell(number: int, settings: dict[str, Any], words: str) -> None:
        if say is not None:
            shown = ", ".join(f"{k} {v:.3g}" for k, v in settings.items())
            say(f"trial {number + 1} of {trials}: loss {words} ({shown})")

    search(study, _suggest, tried, trials, lambda: time.monotonic() > deadline, tell)


def _run_all(workers: Sequence[Any], study: optuna.Study, trials: int, say: Say) -> None:
    """Wait for all workers, and report their progress."""
    for worker in workers:
        worker.start()
    told = len(finished(study))
    try:
        while any(worker.is_alive() for worker in workers):
            time.sleep(0.5)
            now = finished(study)
            if len(now) > told:
                told = len(now)
                best = min((t.value for t in now if t.value is not None), default=float("nan"))
                say(f"{told} of {trials} trials, best loss {best:.4f}")
    except BaseException:
        for worker in workers:
            worker.terminate()
        raise
    finally:
        for worker in workers:
            worker.join()


def _chosen(
    study: optuna.Study, out: Path, folder: Path, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the best settings, and plot the search; returns the settings."""
    ended = finished(study)
    if not any(t.value is not None for t in ended):
        errors = [t.user_attrs["error"] for t in ended if "error" in t.user_attrs]
        raise SettingError(f"no trial finished{': ' + errors[0] if errors else ''}")
    best = {**study.best_trial.params}
    lines = [
        f"# The best of {len(ended)} trials: validation loss {study.best_value:.6f}",
        "# fieldwise train DATA --config this file --out MODEL",
    ]
    lines += [f"{k} = {_toml(v)}" for k, v in {**options, **best}.items() if v is not None]
    write_atomically(out, ("\n".join(lines) + "\n").encode())
    draw_search(study, folder)
    return {**best, "loss": study.best_value, "trials": len(ended)}


def _toml(value: Any) -> str:
    return json.dumps(value)  # of strings, numbers and lists of them TOML is JSON


def draw_search(study: optuna.Study, folder: Path) -> list[Path]:
    """Plot a search: its course, the loss over each setting, and which settings mattered."""
    require_optuna()
    try:
        import matplotlib as mpl
    except ImportError:
        return []
    mpl.use("Agg")
    from matplotlib import pyplot
    from optuna.visualization import matplotlib as plots

    out = []
    with warnings.catch_warnings(), mpl.rc_context({"figure.figsize": (10, 4)}):
        warnings.simplefilter("ignore")
        for name, plot in (
            ("history", plots.plot_optimization_history),
            ("settings", plots.plot_slice),
            ("importance", plots.plot_param_importances),
        ):
            try:
                plot(study)
            except (RuntimeError, ValueError):
                continue  # importance needs trials that differ
            path = folder / f"{name}.png"
            picture = io.BytesIO()
            pyplot.gcf().savefig(picture, dpi=120, bbox_inches="tight")
            pyplot.close("all")
            write_atomically(path, picture.getvalue())
            out.append(path)
    return out
