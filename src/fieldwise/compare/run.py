"""A comparison: every method is tuned on the validation rows, fitted with several seeds, and
evaluated once on the test rows. However it ends, the same call continues where it stopped."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter as clock
from typing import Any

import numpy as np

from .. import maths
from ..baselines.methods import METHODS, OURS, Method, chosen_methods
from ..data.shuffle import gathered
from ..engines import host
from ..errors import FieldwiseError, SettingError, TrainingError
from ..files import write_atomically
from ..metrics import head_metrics
from ..problem import scored
from ..progress import Say
from ..targets import scale_of
from ..train import Running, TrainSettings
from ..tune import OutOfTime, Report, finished, open_study, require_optuna, search
from .pages import write_pages
from .parts import Parts, encoded, parted
from .results import Result, results_of

__all__ = ["compare_table", "run_methods"]

TRAINING = TrainSettings(epochs=40)
COMPILED_ROWS = 4096
WORTH_SAVING = 1_000_000  # training rows; smaller fits are repeated after an interruption


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do with each method. With `presets`, settings are those and not searched for."""

    methods: Sequence[Method]
    trials: int
    repeats: int
    seed: int
    time_limit: float | None = None  # minutes per method
    presets: Mapping[str, Mapping[str, Any]] | None = None
    training: TrainSettings = TRAINING

    def __post_init__(self) -> None:
        if self.trials < 1 or self.repeats < 1 or not self.methods:
            raise SettingError(
                f"trials={self.trials}, repeats={self.repeats} and {len(self.methods)} methods; "
                "there must be at least one of each"
            )
        if self.time_limit is not None and not self.time_limit > 0:
            raise SettingError(f"time_limit={self.time_limit} must be more than 0 minutes")

    def settings(self, method: Method) -> Mapping[str, Any] | None:
        return None if self.presets is None else self.presets[method.name]


def compare_table(
    data: Any,
    out: str | Path,
    *,
    methods: Sequence[str] = ("paper",),
    trials: int = 20,
    repeats: int = 5,
    split: str = "random",
    validation: float = 0.1,
    test: float = 0.1,
    validation_data: Any = None,
    test_data: Any = None,
    time_limit: float | None = None,
    seed: int = 0,
    reading: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    running: Running | None = None,
    say: Say = lambda words: None,
) -> dict[str, Any]:
    """Compare methods on a table or a store, and write results.md, .json, .png and .html in `out`.

    The table is cut by `split`, as by `fieldwise train`, or given as three: `data`,
    `validation_data` and `test_data`. `time_limit` is in minutes, for each method. The folder also
    keeps what was tried: the same call continues, one with more methods, trials or repeats adds
    them.
    """
    plan = Plan(
        methods=chosen_methods(methods),
        trials=trials,
        repeats=repeats,
        seed=seed,
        time_limit=time_limit,
    )
    require_optuna()
    from ..data.readers import identity_of

    others = {"validation": validation_data, "test": test_data}
    given = {name: other for name, other in others.items() if other is not None}
    if len(given) == 1:
        raise SettingError("validation_data and test_data come together; give both or neither")
    running = running or Running()
    cutting: dict[str, Any] = {
        "split": split,
        "validation": validation,
        "test": test,
        "seed": seed,
    }
    inputs = {"data": data, **given}
    about = {**{k: identity_of(v) for k, v in inputs.items()}, **cutting}
    reading = reading or {}
    folder = prepared(Path(out), {**about, "reading": repr(sorted(reading.items()))}, overwrite)
    with nothing_left(folder):
        store, cuts = encoded(data, folder, reading, given, show=running.show)
        parts = parted(store, cuts, **cutting)
    results = run_methods(parts, folder, plan, running, say)
    named = Path(data).name if isinstance(data, (str, Path)) else "a table in memory"
    body = results_of(results, parts, {"data": named, "trials": trials})
    write_pages(body, Path(out))
    return body


def prepared(out: Path, identity: Mapping[str, Any], overwrite: bool) -> Path:
    """The work folder of a comparison, created or checked to be of the same comparison."""
    folder = out / ".work"
    file = folder / "comparison.json"
    if overwrite:
        shutil.rmtree(folder, ignore_errors=True)
    if file.is_file():
        found = json.loads(file.read_text())
        for name, value in identity.items():
            if found.get(name) != value:
                raise SettingError(
                    f"{out} holds another comparison: {name} was {found.get(name)!r} and is "
                    f"{value!r}. Choose another folder, or overwrite it"
                )
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps(identity).encode())
    return folder


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """On a user's mistake, remove the folder if there is no work in it to lose."""
    try:
        yield
    except FieldwiseError:
        if not (folder / "fits").exists():
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # it holds something else
                folder.parent.rmdir()
        raise


def run_methods(parts: Parts, folder: Path, plan: Plan, running: Running, say: Say) -> list[Result]:
    """The result of every method, including those that cannot run, fail or take too long."""
    (folder / "fits").mkdir(exist_ok=True)
    work = Work(parts, folder, plan, replace(running, keeps_best=False), say)
    if any(method.name == OURS for method in plan.methods):
        _compile(parts, running)
    return [work.result(method) for method in plan.methods]


def _compile(parts: Parts, running: Running) -> None:
    """Fit a few rows, so that no measured time includes compiling kernels."""
    problem = parts.problem
    if problem.only is None:
        return
    few = np.zeros_like(problem.only)
    few[np.flatnonzero(problem.only)[:COMPILED_ROWS]] = True
    y = gathered(problem.rows, few)["target"][:, 0]
    if y.min() < y.max():
        quiet = replace(running, show=False, callbacks=())
        method = METHODS[OURS]
        settings = {**method.start, "ranks": 1}
        method.fit(replace(problem, only=few), settings, replace(TRAINING, epochs=1), quiet)


@dataclass
class Work:
    """The fits of a comparison, each kept when finished."""

    parts: Parts
    folder: Path
    plan: Plan
    running: Running
    say: Say

    def __post_init__(self) -> None:
        self._begun = clock()
        self._n_new = self._n_done = 0
        self._n_fits = sum(map(self._n_of, self.plan.methods))
        problem = self.parts.problem
        self._scale = scale_of(problem.rows, problem.only, problem.objective)

    def result(self, method: Method) -> Result:
        why = self._why_not(method)
        if why:
            self.say(f"{method.name}: {why}")
            return Result(method, "unavailable", why)
        fits: list[dict[str, Any]] = []
        tries, before = "", self._n_done
        try:
            settings = self.plan.settings(method)
            if settings is None:
                settings, tries = self._tuned(method)
            for seed in range(self.plan.repeats):
                fits += [self._fit(method, settings, seed, self._deadline(method))]
        except OutOfTime:
            limit = f"{self.plan.time_limit:g} minutes were over"
            after = f" after {len(fits)} of {self.plan.repeats} seeds" if fits else ""
            return Result(method, "out of time", limit + after, fits)
        except Exception as error:  # whatever it is, the other methods continue
            words = " ".join(str(error).split()) or type(error).__name__
            if not isinstance(error, FieldwiseError):
                words = f"{type(error).__name__}: {words}"
            self.say(f"{method.name}: failed: {words}")
            return Result(method, "failed", words[:500], fits)
        finally:
            self._n_done = before + self._n_of(method)
        return Result(method, "ok", tries, fits)

    def _why_not(self, method: Method) -> str:
        return method.why_not(self.parts.about["fields"], self.parts.about["classes"])

    def _n_trials(self, method: Method) -> int:
        if self.plan.presets is not None:
            return 1
        return min(self.plan.trials, int(np.prod([len(v) for v in method.grid.values()])))

    def _n_of(self, method: Method) -> int:
        """The number of a method's fits; the first seed's is one of the trials."""
        if self._why_not(method):
            return 0
        return self._n_trials(method) + self.plan.repeats - 1

    def _tuned(self, method: Method) -> tuple[dict[str, Any], str]:
        """The settings that are best on the validation rows, and a note if the search was cut
        short, at half of the method's time."""
        study = open_study(self.folder / "study.db", method.name, self.plan.seed, method.start)
        deadline = self._deadline(method)
        half = deadline if self.plan.time_limit is None else deadline - 30 * self.plan.time_limit

        def tried(settings: dict[str, Any], report: Report) -> float:
            # The first trial may take all the time: without one there is no result.
            limit = half if any(t.value is not None for t in finished(study)) else deadline
            try:
                return float(self._fit(method, settings, 0, limit, report)["validation_loss"])
            except (FieldwiseError, OutOfTime):
                raise
            except Exception as error:  # of another library: other settings may work
                raise TrainingError(f"{type(error).__name__}: {error}") from error

        def is_over() -> bool:
            return clock() > half and bool(finished(study))

        n_trials = self._n_trials(method)
        self._n_done += min(len(finished(study)), n_trials)
        try:
            search(study, method.grid, tried, n_trials, is_over)
        except OutOfTime:
            if not any(t.value is not None for t in finished(study)):
                raise
        ended = finished(study)
        good = [t for t in ended if t.value is not None and t.state.name == "COMPLETE"]
        if not good:
            errors = [t.user_attrs["error"] for t in ended if "error" in t.user_attrs]
            raise SettingError(errors[0] if errors else "no trial finished")
        best = min(good, key=lambda t: (t.value, t.number))
        words = f"{len(ended)} of {n_trials} trials" if len(ended) < n_trials else ""
        return dict(best.params), words

    def _deadline(self, method: Method) -> float:
        """When the method's time is over, including time spent in earlier calls."""
        if self.plan.time_limit is None:
            return float("inf")
        file = self._spent(method)
        spent = sum(map(float, file.read_text().split())) if file.is_file() else 0.0
        return clock() + 60 * self.plan.time_limit - spent

    def _spent(self, method: Method) -> Path:
        """The file with the seconds of each of its fits, finished or not."""
        return self.folder / "fits" / f"{method.name}.seconds"

    def _fit(
        self,
        method: Method,
        settings: Mapping[str, Any],
        seed: int,
        deadline: float,
        report: Report | None = None,
    ) -> dict[str, Any]:
        """A fit and its metrics on the test rows, made now or kept from before."""
        key = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:12]
        file = self.folder / "fits" / f"{method.name}-{key}-{seed}.json"
        if file.is_file():
            return self._kept(file)
        if clock() > deadline:
            raise OutOfTime
        gave_up = False
        # A tree is not an epoch: losses after a few trees do not predict those after many.
        judge = None if method.counts_trees else report

        def watch(record: dict[str, Any]) -> bool:
            nonlocal gave_up
            gave_up = gave_up or (judge is not None and judge(record))
            return gave_up or clock() > deadline

        begun = clock()
        running = self._running(file.stem, watch)
        training = replace(self.plan.training, seed=seed)
        try:
            fitted = method.fit(self.parts.problem, settings, training, running)
        finally:
            with self._spent(method).open("a") as spent:
                spent.write(f"{clock() - begun:.3f}\n")
        if clock() > deadline:
            raise OutOfTime
        body: dict[str, Any] = {
            "settings": dict(settings),
            "seed": seed,
            "validation_loss": fitted.loss,
            "seconds": fitted.seconds,
            "size": fitted.size,
            "rounds": fitted.rounds,
        }
        if not gave_up:
            body |= self._read(fitted.scorer, file.with_suffix(".npy"))
            if method.name == OURS:
                body["importance"] = _importance(fitted.scorer)
            write_atomically(file, json.dumps(body).encode())
            body["scores"] = file.with_suffix(".npy")
        if running.checkpoint is not None:
            shutil.rmtree(running.checkpoint, ignore_errors=True)
        self._tell(method, settings, seed, body, report is not None)
        return body

    def _running(self, name: str, watch: Callable[[dict[str, Any]], bool]) -> Running:
        """How to run a fit: watched, and with its own checkpoints if it is long."""
        is_long = self.parts.about["rows"]["training"] >= WORTH_SAVING
        return replace(
            self.running,
            callbacks=[*self.running.callbacks, watch],
            checkpoint=self.folder / "checkpoint" / name if is_long else None,
            resume=True,
        )

    def _kept(self, file: Path) -> dict[str, Any]:
        return {**json.loads(file.read_text()), "scores": file.with_suffix(".npy")}

    def _read(self, scorer: Any, file: Path) -> dict[str, float]:
        """Metrics on the test rows, whose scores are kept to compare methods."""
        problem = self.parts.problem
        found = scored(scorer, problem, problem.rows, self.parts.test, self._scale)
        z, y, w = map(np.concatenate, zip(*found, strict=True))
        content = io.BytesIO()
        np.save(content, z.astype(np.float32))
        write_atomically(file, content.getvalue())
        head = problem.objective.heads[0]
        metrics = head_metrics(head, z if head.size > 1 else z[:, 0], y[:, 0], w)
        return {k: metrics[k] for k in ("logloss", "auc", "accuracy") if k in metrics}

    def _tell(
        self,
        method: Method,
        settings: Mapping[str, Any],
        seed: int,
        body: Mapping[str, Any],
        is_trial: bool,
    ) -> None:
        self._n_done += 1
        self._n_new += 1
        left = (clock() - self._begun) / self._n_new * (self._n_fits - self._n_done)
        what = ", ".join(f"{k} {v}" for k, v in settings.items()) if is_trial else f"seed {seed}"
        self.say(
            f"{method.name} ({what}): validation {body['validation_loss']:.4f} in "
            f"{body['seconds']:.1f} s; {self._n_done} of {self._n_fits} fits, "
            f"about {max(left, 0) / 60:.0f} min left"
        )


def _importance(engine: Any) -> list[float]:
    """The importance of every field, from an engine that holds our model."""
    found: list[float] = maths.importance(host(engine.table), engine.layout).tolist()
    return found
