"""Callbacks, which get every epoch's record of a run, and loggers, which write the records, the
settings and the model to MLflow or TensorBoard.

A callback is any function of a record; it stops the run by returning True or by raising. A failing
logger only causes a warning: logging must not cost a run its work.
"""

from __future__ import annotations

import math
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from .errors import MissingExtra

__all__ = ["Callback", "Logger", "MLflowLogger", "TensorBoardLogger", "heard", "tell"]

Callback = Callable[[dict[str, Any]], bool | None]

MLFLOW_STORE = "mlflow.db"
MOST_LETTERS = 500  # of a setting; every version of MLflow accepts as many


class Model(Protocol):
    """What loggers record of a model."""

    metrics: dict[str, float]
    settings: dict[str, Any]
    layout: Any
    schema: Any

    def save(self, path: str | Path) -> Path: ...


class Logger:
    """A callback that is also told how the run ended. A copy of it logs another run."""

    def __call__(self, record: dict[str, Any]) -> None:
        """Log an epoch; `record` is its entry in the model's history."""
        raise NotImplementedError

    def close(self, model: Model | None, folder: Path | None) -> None:
        """Log the end of the run: with its model, saved in `folder` or not yet, or without one."""
        raise NotImplementedError


def tell(callbacks: Sequence[Callback], record: dict[str, Any]) -> bool:
    """Pass an epoch's record to all callbacks; returns whether any of them stops the run."""
    stops = False
    for callback in callbacks:
        with _harmless(callback) if isinstance(callback, Logger) else nullcontext():
            # A copy, so that writing into it does not change the history.
            stops = bool(callback(dict(record))) or stops
    return stops


@contextmanager
def heard(callbacks: Sequence[Callback]) -> Iterator[Callable[..., None]]:
    """Yield a function that tells the loggers among the callbacks that the run is over: call it
    with the model, and its folder if it is saved. After an error they get no model."""

    def close(model: Any = None, folder: Path | None = None) -> None:
        for callback in callbacks:
            if isinstance(callback, Logger):
                with _harmless(callback):
                    callback.close(model, folder)

    try:
        yield close
    except BaseException:
        close()
        raise


@contextmanager
def _harmless(logger: Logger) -> Iterator[None]:
    """Turn errors into warnings."""
    try:
        yield
    except Exception as error:
        warnings.warn(
            f"{type(logger).__name__} failed, the run goes on: {type(error).__name__}: {error}",
            stacklevel=2,
        )


class MLflowLogger(Logger):
    """Writes a run to MLflow: metrics of every epoch; at the end settings, metrics of the model
    that was kept (`final_...`), and its folder as the artifact `model`.

    Parameters
    ----------
    store : a folder, for a database and files of its own; or any tracking URI. None is the active
        run of MLflow if there is one, else MLflow's own choice (MLFLOW_TRACKING_URI).
    experiment : its name; created if missing.
    name : of the run; None lets MLflow choose.
    artifact : whether the model's folder is stored.
    """

    def __init__(
        self,
        store: str | Path | None = None,
        *,
        experiment: str = "fieldwise",
        name: str | None = None,
        artifact: bool = True,
    ) -> None:
        if find_spec("mlflow") is None:
            raise MissingExtra("mlflow", "mlflow")
        self.store, self.experiment, self.name = store, experiment, name
        self.artifact = artifact
        self._run: _Run | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_run": None}

    def __call__(self, record: dict[str, Any]) -> None:
        run = self._opened()
        run.n_records += 1  # several steps are tried, but MLflow has one sequence of epochs
        run.metrics(record, run.n_records)

    def close(self, model: Model | None, folder: Path | None) -> None:
        if model is None and self._run is None:
            return
        run = self._opened()
        self._run = None
        if model is None:
            run.end("FAILED")
            return
        try:
            run.settings(_facts(model))
            run.metrics({f"final_{k}": v for k, v in model.metrics.items()}, run.n_records)
            if self.artifact and folder is not None:
                run.store(folder)
            elif self.artifact:
                with tempfile.TemporaryDirectory() as place:
                    run.store(model.save(Path(place) / "model"))
        except BaseException:
            run.end("FAILED")
            raise
        run.end("FINISHED")

    def _opened(self) -> _Run:
        if self._run is None:
            self._run = _Run(self.store, self.experiment, self.name)
        return self._run


class _Run:
    """The MLflow run that is written to."""

    def __init__(self, store: str | Path | None, experiment: str, name: str | None) -> None:
        import mlflow

        self.n_records = 0
        active = mlflow.active_run() if store is None else None
        self._is_ours = active is None
        uri, files = _places(store)
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        if active is not None:
            self._id: str = active.info.run_id
            return
        found = self._client.get_experiment_by_name(experiment)
        number = found.experiment_id if found else None
        if number is None:
            number = self._client.create_experiment(experiment, artifact_location=files)
        self._id = self._client.create_run(number, run_name=name).info.run_id

    def metrics(self, found: Mapping[str, Any], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        figures = [Metric(_plain(k), v, now, step) for k, v in _figures(found).items()]
        self._client.log_batch(self._id, metrics=figures)

    def settings(self, found: Mapping[str, Any]) -> None:
        """Log settings it lacks: MLflow does not change any, and a run may have several fits."""
        from mlflow.entities import Param

        known = self._client.get_run(self._id).data.params
        told = {_plain(k): str(v)[:MOST_LETTERS] for k, v in found.items()}
        params = [Param(k, v) for k, v in told.items() if k not in known]
        self._client.log_batch(self._id, params=params)

    def store(self, folder: Path) -> None:
        self._client.log_artifacts(self._id, str(folder), "model")

    def end(self, status: str) -> None:
        if self._is_ours:
            self._client.set_terminated(self._id, status)


def _places(store: str | Path | None) -> tuple[str | None, str | None]:
    """The tracking URI, and where files go if MLflow does not choose."""
    if store is None or "://" in str(store) or str(store).startswith(("file:", "databricks")):
        return None if store is None else str(store), None
    folder = Path(store).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / MLFLOW_STORE}", (folder / "artifacts").as_uri()


class TensorBoardLogger(Logger):
    """Writes a run as event files: losses of every epoch, a curve for each step that is tried; at
    the end settings as text and metrics of the model that was kept (`final/...`).

    Parameters
    ----------
    folder : each run gets a folder in it, named after its start time and `name`.
    name : of the run; None is its time alone.
    """

    def __init__(self, folder: str | Path = "runs", *, name: str | None = None) -> None:
        if find_spec("tensorboardX") is None:
            raise MissingExtra("tensorboardX", "tensorboard")
        self.folder, self.name = folder, name
        self._begin()

    def _begin(self) -> None:
        self._run: Path | None = None
        self._trial: Any = None
        self._n_trials, self._last = 0, (0.0, 0)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._begin()

    def __call__(self, record: dict[str, Any]) -> None:
        rate, epoch = float(record.get("learning_rate") or 0.0), record["epoch"]
        if self._trial is None or rate != self._last[0] or epoch <= self._last[1]:
            self._n_trials += 1
            self._end_trial()
            self._trial = self._writer(f"{self._n_trials}-step-{rate:g}")
        self._last = (rate, epoch)
        for name, value in _figures(record).items():
            if name != "epoch":
                self._trial.add_scalar(_plain(name), value, epoch)
        self._trial.flush()

    def close(self, model: Model | None, folder: Path | None) -> None:
        try:
            self._end_trial()
            if model is not None:
                self._sum_up(model)
        finally:
            self._begin()

    def _sum_up(self, model: Model) -> None:
        rows = [f"| {k} | {v} |" for k, v in _facts(model).items()]
        with self._writer("final") as writer:
            writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *rows]))
            for name, value in _figures(model.metrics).items():
                writer.add_scalar(f"final/{_plain(name)}", value, 0)

    def _writer(self, part: str) -> Any:
        from tensorboardX import SummaryWriter

        if self._run is None:
            when = f"{datetime.now():%Y%m%d-%H%M%S-%f}"
            self._run = Path(self.folder) / (f"{when}-{self.name}" if self.name else when)
        return SummaryWriter(str(self._run / part))

    def _end_trial(self) -> None:
        if self._trial is not None:
            self._trial.close()
        self._trial = None


def _facts(model: Model) -> dict[str, Any]:
    """The settings as decided, and the size of the model."""
    layout = model.layout
    return {
        **model.settings,
        "target": ", ".join(target.column for target in model.schema.targets),
        "fields": layout.n_fields,
        "categories": layout.n_rows,
        "parameters": layout.n_parameters,
        "rank": max(layout.ranks),
    }


def _figures(found: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among the values, which can be plotted."""
    numbers = {k: float(v) for k, v in found.items() if isinstance(v, (int, float))}
    return {k: v for k, v in numbers.items() if math.isfinite(v)}


def _plain(name: str) -> str:
    """The name with only characters that MLflow and TensorBoard both accept."""
    return re.sub(r"[^\w\-. /]", "_", name)
