"""Callbacks and loggers: MLflow and TensorBoard are the real ones, and what they were told is read
back from their own files."""

from __future__ import annotations

import pickle

import numpy as np
import polars as pl
import pytest
from sklearn.base import clone

from commands import run
from events import events
from fieldwise import (
    FieldwiseClassifier,
    FieldwiseModel,
    MissingExtra,
    SettingError,
    TrainingError,
    callbacks,
)
from fieldwise.callbacks import Logger, MLflowLogger, TensorBoardLogger
from fieldwise.errors import FieldwiseError, StoreError

# What is deprecated inside of MLflow and TensorBoard is not ours.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def table(n=1500, seed=0):
    draw = np.random.default_rng(seed)
    a, b = draw.integers(0, 6, n), draw.integers(0, 9, n)
    y = np.where(draw.random(n) < 1 / (1 + np.exp(a * b / 12 - 1.5)), "yes", "no")
    return pl.DataFrame({"a": a.astype(str), "b": b.astype(str), "y": y})


def fitted(told=(), **options):
    rows = table()
    settings = {"epochs": 3, "n_jobs": 1, "learning_rate": 0.1, **options}
    return FieldwiseClassifier(callbacks=told, **settings).fit(rows.drop("y"), rows["y"])


def test_a_logger_that_fails_does_not_lose_the_run():
    told = []

    class Fails(Logger):
        def __call__(self, record):
            raise OSError("no such server")

        def close(self, model, folder):
            pass

    with pytest.warns(UserWarning, match=r"Fails failed, the run goes on: OSError: no such ser"):
        model = fitted([Fails(), lambda record: told.append(record["epoch"])])
    assert told == [1, 2, 3]
    np.testing.assert_array_equal(model.model_.table, fitted().model_.table)


def test_a_logger_that_fails_at_the_end_does_not_lose_the_run():
    class Fails(Logger):
        def __call__(self, record):
            pass

        def close(self, model, folder):
            raise ValueError("full")

    with pytest.warns(UserWarning, match="full"):
        assert fitted([Fails()]).model_.metrics["loss"] < 0.7


def test_a_logger_that_cannot_save_the_model_does_not_lose_the_run(files, monkeypatch):
    uri, client = files

    def full(self, path, **options):
        raise StoreError("the disk is full")

    monkeypatch.setattr(FieldwiseModel, "save", full)
    with pytest.warns(UserWarning, match="MLflowLogger failed, the run goes on: StoreError"):
        assert fitted([MLflowLogger(uri)]).model_.metrics["loss"] < 0.7
    (found,) = runs(client)
    assert found.info.status == "FAILED"


def test_what_a_function_raises_ends_the_run():
    optuna = pytest.importorskip("optuna", reason="the package optuna is not installed")

    def prunes(record):
        raise optuna.TrialPruned

    with pytest.raises(optuna.TrialPruned):
        fitted([prunes])


def test_what_a_callback_writes_is_not_in_the_model(tmp_path):
    model = fitted([lambda record: record.update(when=object(), epoch=None)])
    model.model_.save(tmp_path / "model")
    assert [record["epoch"] for record in model.history_] == [1, 2, 3]


def test_errors_of_ours_and_ctrl_c_go_through():
    def raising(error):
        def callback(record):
            raise error

        return callback

    with pytest.raises(FieldwiseError, match="enough"):
        fitted([raising(FieldwiseError("enough"))])
    with pytest.raises(KeyboardInterrupt):
        interrupted = FieldwiseClassifier(callbacks=[raising(KeyboardInterrupt())])
        interrupted.partial_fit(table().drop("y"), table()["y"])


def test_an_estimator_stops_when_a_callback_says_so():
    assert len(fitted([lambda record: record["epoch"] == 2]).history_) == 2


@pytest.mark.parametrize("preset", ["fast", "glass"])
def test_loggers_hear_of_the_end_once(preset):
    heard = []

    class Hears(Logger):
        def __call__(self, record):
            heard.append(record["epoch"])

        def close(self, model, folder):
            heard.append(model)

    model = fitted([Hears()], preset=preset)
    assert heard[-1] is model.model_
    assert [x for x in heard if isinstance(x, FieldwiseModel)] == [model.model_]
    model.partial_fit(table(seed=1).drop("y"), table(seed=1)["y"]) if preset == "fast" else None
    assert heard[-1] is model.model_


def test_tensorboard_has_every_epoch_of_every_step(tmp_path):
    told = []
    logger = TensorBoardLogger(tmp_path, name="small")
    model = fitted([logger, told.append], learning_rate=None, shrinkage=1.0)
    (folder,) = tmp_path.iterdir()
    assert folder.name.endswith("-small")
    rates = list(dict.fromkeys(record["learning_rate"] for record in told))
    assert len(rates) > 1
    for n, rate in enumerate(rates):
        mine = [record for record in told if record["learning_rate"] == rate]
        scalars, _ = events(folder / f"{n + 1}-step-{rate:g}")
        for name in ("train_loss", "logloss", "auc", "learning_rate"):
            assert [step for step, _ in scalars[name]] == [r["epoch"] for r in mine]
            values = [value for _, value in scalars[name]]
            np.testing.assert_allclose(values, [r[name] for r in mine], rtol=1e-6)
    scalars, (text,) = events(folder / "final")
    assert scalars["final/logloss"][0][1] == pytest.approx(model.model_.metrics["logloss"])
    assert f"| learning_rate | {model.model_.settings['learning_rate']} |" in text
    assert "| fields | 2 |" in text


def test_every_fit_is_a_run_of_its_own(tmp_path):
    logger = TensorBoardLogger(tmp_path)
    first = FieldwiseClassifier(callbacks=[logger], epochs=1, learning_rate=0.1)
    for model in (first, first, clone(first), pickle.loads(pickle.dumps(first))):
        model.fit(table().drop("y"), table()["y"])
    assert len(list(tmp_path.iterdir())) == 4
    for folder in tmp_path.iterdir():
        assert sorted(p.name for p in folder.iterdir()) == ["1-step-0.1", "final"]


@pytest.fixture
def files(tmp_path, monkeypatch):
    """MLflow's store of plain files, which is quick to make, and what reads it."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = pytest.importorskip("mlflow")
    uri = (tmp_path / "store").as_uri()
    return uri, mlflow.MlflowClient(tracking_uri=uri)


def runs(client, name="fieldwise"):
    return client.search_runs([client.get_experiment_by_name(name).experiment_id])


def test_mlflow_has_epochs_settings_metrics_and_the_model(files, tmp_path):
    uri, client = files
    told = []
    model = fitted([MLflowLogger(uri, experiment="late", name="first"), told.append])
    (found,) = runs(client, "late")
    assert (found.info.run_name, found.info.status) == ("first", "FINISHED")
    for name in ("train_loss", "logloss", "learning_rate"):
        history = client.get_metric_history(found.info.run_id, name)
        assert [(m.step, m.value) for m in history] == [(r["epoch"], r[name]) for r in told]
    assert found.data.metrics["final_logloss"] == model.model_.metrics["logloss"]
    assert found.data.params["learning_rate"] == "0.1"
    assert found.data.params["shrinkage"] == str(model.model_.settings["shrinkage"])
    assert found.data.params["categories"] == str(model.model_.layout.n_rows)
    place = client.download_artifacts(found.info.run_id, "model", str(tmp_path))
    rows = table(seed=1).drop("y")
    loaded = FieldwiseModel.load(place)
    np.testing.assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows)[:, 1])


def test_mlflow_is_told_what_failed(files):
    uri, client = files

    def fails(record):
        raise TrainingError("no power")

    with pytest.raises(TrainingError):
        fitted([MLflowLogger(uri), fails])
    (found,) = runs(client)
    assert found.info.status == "FAILED"
    assert len(found.data.metrics) > 3
    with pytest.raises(SettingError):  # before there was anything to tell
        fitted([MLflowLogger(uri)], epochs=-1)
    assert len(runs(client)) == 1


def test_mlflow_runs_that_are_active_are_used(files):
    import mlflow

    uri, _ = files
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(uri)
    try:
        with mlflow.start_run() as mine:
            logger = MLflowLogger(artifact=False)
            fitted([logger])
            fitted([logger], epochs=2)
            assert mlflow.active_run() is mine
            assert mlflow.get_run(mine.info.run_id).info.status == "RUNNING"
        found = mlflow.get_run(mine.info.run_id)
        assert found.data.params["epochs"] == "3"  # the first fit's: MLflow changes none
        assert not mlflow.MlflowClient().list_artifacts(mine.info.run_id)
    finally:
        mlflow.set_tracking_uri(before)


def test_names_mlflow_would_not_take(files):
    uri, client = files
    logger = MLflowLogger(uri)
    logger({"epoch": 1, "loss_Käufe (%)": 0.5, "loss": float("nan")})
    logger.close(None, None)
    (found,) = runs(client)
    assert found.data.metrics == {"epoch": 1, "loss_Käufe ___": 0.5}


def test_train_logs_to_mlflow(tmp_path):
    """In a folder, where there is a database then, as the command line makes it."""
    import mlflow

    rows, out, logs = tmp_path / "rows.csv", tmp_path / "m.model", tmp_path / "logs"
    table().write_csv(rows)
    options = ("--epochs", 2, "--learning-rate", 0.1, "--quiet")
    to = ("--log-to", "mlflow", "--log-dir", logs)
    run("train", rows, "--target", "y", "--out", out, *options, *to)
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{logs / 'mlflow.db'}")
    (found,) = runs(client)
    model = FieldwiseModel.load(out)
    assert found.info.run_name == "m.model"
    assert found.data.metrics["final_auc"] == pytest.approx(model.metrics["auc"])
    assert len(client.get_metric_history(found.info.run_id, "loss")) == 2
    stored = client.list_artifacts(found.info.run_id, "model")
    assert {p.path.split("/")[-1] for p in stored} == {p.name for p in out.iterdir()}


def test_train_logs_to_tensorboard(tmp_path):
    rows, out, logs = tmp_path / "rows.csv", tmp_path / "m.model", tmp_path / "logs"
    table().write_csv(rows)
    options = ("--epochs", 2, "--learning-rate", 0.1, "--quiet")
    to = ("--log-to", "tensorboard", "--log-dir", logs)
    run("train", rows, "--target", "y", "--out", out, *options, *to)
    (folder,) = logs.iterdir()
    scalars, _ = events(folder / "1-step-0.1")
    history = FieldwiseModel.load(out).history
    losses = [value for _, value in scalars["loss"]]
    np.testing.assert_allclose(losses, [r["loss"] for r in history], rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--log-to", "wandb"), "--log-to 'wandb' is not one of mlflow, tensorboard"),
        (("--log-dir", "runs"), "--log-dir runs goes with --log-to"),
    ],
)
def test_options_that_do_not_fit(tmp_path, options, words):
    out = ("--out", tmp_path / "m", "--target", "late")
    _, errors = run("train", "flights", *out, *options, expect=2)
    assert words in errors


@pytest.mark.parametrize("logger", [MLflowLogger, TensorBoardLogger])
def test_what_is_missing_is_said_at_once(monkeypatch, logger):
    monkeypatch.setattr(callbacks, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install \"fieldwise\[(mlflow|tensorboard)\]"):
        logger()
