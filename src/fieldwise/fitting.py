"""From a table or a store to a model: encode, split, train. What `fieldwise train` does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .callbacks import heard
from .crossing import Crosses, Parts, decide, fit_crossed, layout_for
from .data.schema import Field, Schema, Target
from .data.store import Store, is_store
from .data.words import StoredWords
from .errors import FieldwiseError, SchemaError, SettingError
from .files import disk_errors, put_back, remove_folder, sweep, write_atomically
from .held_out import default_share, held_out_rows
from .model import FieldwiseModel
from .model_folder import check_replaceable
from .objective import Head, Objective
from .problem import Problem
from .train import Fit, Running, TrainSettings, on_distinct_rows, train

__all__ = [
    "PAPER",
    "fit_store",
    "is_saved",
    "kept_store",
    "objective_of",
    "plainly",
    "prepared_store",
    "problem_of",
    "save_result",
    "train_table",
    "work_folder",
    "work_of",
]

SAVING = "saving"

# The paper's settings; preprocessing comes with the formats.
PAPER: dict[str, dict[str, Any]] = {
    "criteo": {
        "rank_base": 1.6,
        "learning_rate": 0.01,
        "weight_decay": 1e-6,
        "penalty": 1e-3,
        "batch_size": 2048,
        "reg_every": 1000,
        "averages": 1,
    },
    "avazu": {
        "rank": 8,
        "learning_rate": 0.1,
        "weight_decay": 1e-8,
        "penalty": 1e-5,
        "batch_size": 2048,
        "reg_every": 1000,
        "averages": 1,
    },
}


def fit_store(
    store: Store,
    *,
    settings: TrainSettings | None = None,
    running: Running | None = None,
    preset: str = "fast",
    crosses: Crosses | None = None,
    min_count: int | None = None,
    rank: int | None = None,
    rank_base: float | None = None,
    ranks: Mapping[str, int] | None = None,
    split: str = "random",
    validation: float | None = None,
    loss: str | None = None,
    combine: str | None = None,
    component: str = "linear",
    n_members: int = 1,
    sampling_rate: float = 1.0,
    aggregate: bool = False,
    trainer: Callable[..., Fit] | None = None,
    finish: Callable[[Callable[..., FieldwiseModel]], FieldwiseModel] | None = None,
) -> FieldwiseModel:
    """A model of a store, whatever its size.

    `validation` is the share of rows held out; None is a tenth, and no more than a million rows.
    With crosses the rows are held in memory, and categories seen less than `min_count` times have
    no row of their own, whatever the store has. `trainer` takes the place of `train`, and then
    there are no crosses; `finish` gets what makes the model of its fit. The rest is as the
    estimators have it.
    """
    settings = settings or TrainSettings()
    floor = 1 if min_count is None else min_count
    crossing, combine = decide(preset, crosses, combine, floor=floor, aggregate=aggregate)
    if crossing is None and min_count is not None:
        raise SettingError(
            f"min_count={min_count} goes with crosses; else encode the table with it"
        )
    if crossing is not None and trainer is not None:
        raise SettingError(
            "crosses are found and learned in one process; with several workers leave out crosses "
            "and set preset='fast'"
        )
    words = StoredWords(store)
    validation = default_share(store) if validation is None else validation
    objective = objective_of(store.schema, loss, combine, n_members)
    held_out = held_out_rows(store, words, split, validation, settings.seed)
    shape: dict[str, Any] = {
        "rank": rank, "rank_base": rank_base, "ranks": ranks, "component": component
    }  # fmt: skip
    about = {"split": split, "validation": validation, "combine": combine, "n_members": n_members}
    if crossing is not None:
        _check_sides(held_out)
        model, _ = fit_crossed(
            words.opened,
            Parts.of(store, {"only": ~held_out, "held_out": held_out}),
            crossing,
            layout_of=partial(layout_for, **shape),
            objective=objective,
            settings=settings,
            running=running or Running(),
            sampling_rate=sampling_rate,
        )
        about |= {"preset": preset, "combine": "boosted" if crossing.boosted else combine}
        return replace(model, settings={**model.settings, **about})
    shape |= {"held_out": held_out, "sampling_rate": sampling_rate}
    problem = problem_of(store, words, objective=objective, **shape)
    trained, settings = on_distinct_rows(problem, settings) if aggregate else (problem, settings)
    fit = (trainer or train)(trained, settings, running)
    make = partial(FieldwiseModel.of, words, problem, fit, {**asdict(fit.settings), **about})
    return make() if finish is None else finish(make)


def problem_of(
    store: Store,
    words: StoredWords,
    *,
    held_out: np.ndarray,
    objective: Objective,
    rank: int | None = None,
    rank_base: float | None = None,
    ranks: Mapping[str, int] | None = None,
    component: str = "linear",
    sampling_rate: float = 1.0,
) -> Problem:
    """What there is to learn from a store; `held_out` (n_rows,) is true for the rows to judge by"""
    schema = store.schema
    _check_sides(held_out)
    return Problem(
        layout=layout_for(
            *(words, objective), rank=rank, rank_base=rank_base, ranks=ranks, component=component
        ),
        rows=store,
        counts=words.counts(),
        only=~held_out,
        held_out=held_out,
        valued=schema.valued,
        objective=objective,
        sampling_rate=sampling_rate,
        names=[target.column for target in schema.targets],
    )


def _check_sides(held_out: np.ndarray) -> None:
    if not held_out.any() or held_out.all():
        share = f"{held_out.mean():.0%} of {len(held_out):,} rows are held out"
        raise SettingError(f"{share}: none are left on one side of the split; change validation")


def objective_of(
    schema: Schema, loss: str | None = None, combine: str = "sum", n_members: int = 1
) -> Objective:
    """The objective of targets: two classes, more classes, or a number each; `loss` is that of
    numbers."""
    if not schema.targets:
        raise SchemaError("there is no target to learn; name one")
    fitting = [_fitting_losses(target) for target in schema.targets]
    if loss is not None and not any(loss in losses for losses, _ in fitting):
        words = ", ".join(dict.fromkeys(name for losses, _ in fitting for name in losses))
        raise SettingError(f"loss={loss!r} does not fit the target; it may be {words}")
    heads = [Head(loss if loss in losses else losses[0], size) for losses, size in fitting]
    return Objective(tuple(heads), n_members, combine)


def _fitting_losses(target: Target) -> tuple[tuple[str, ...], int]:
    """The losses a target may have, the usual one first, and how many outputs it takes."""
    if target.kind == "numeric":
        return ("squared", "absolute", "huber", "poisson"), 1
    k = len(target.classes)
    if k < 2:
        raise SchemaError(f"the target {target.column!r} has {k} class; it needs two")
    return (("logistic",), 1) if k == 2 else (("softmax",), k)


def train_table(
    data: Any,
    out: str | Path,
    *,
    reading: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    running: Running | None = None,
    **fitting: Any,
) -> FieldwiseModel:
    """Train on a table or a store and save the model as `out`.

    `reading` goes to `encode`, `fitting` to `fit_store`; where that means crosses, the table is
    encoded with all there is to cross, and `min_count` is the model's. While it runs, `.OUT.work`
    beside the model holds the encoded table and checkpoints; `running.resume` takes up what is
    there.
    """
    running = running or Running()
    out = Path(out)
    if is_saved(out, running, overwrite=overwrite):
        return FieldwiseModel.load(out)
    store, fitting = prepared_store(data, out, reading, overwrite, running, fitting)
    with work_of(out) as work:
        running = replace(running, checkpoint=work / "checkpoint")
        with heard(running.callbacks) as close:
            model = fit_store(store, running=running, **fitting)
            save_result(model, out, overwrite=overwrite)
    close(model, out)
    return model


def work_folder(out: Path) -> Path:
    """Where a run that writes `out` keeps its encoded table and checkpoints."""
    return out.with_name(f".{out.name}.work")


def save_result(model: FieldwiseModel, out: Path, *, overwrite: bool) -> None:
    """Save what a run came to. A mark in its folder says that what is found at `out` later is it:
    there was nothing before."""
    if not out.exists():
        mark = work_folder(out) / SAVING
        with disk_errors(mark):
            mark.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(mark, b"")
    try:
        model.save(out, overwrite=overwrite)
    except BaseException:  # what is found there later may be somebody else's
        if not out.exists():
            (work_folder(out) / SAVING).unlink(missing_ok=True)
        raise


def is_saved(out: Path, running: Running, *, overwrite: bool) -> bool:
    """Whether a run that is resumed had saved its model and was stopped before it removed its work
    folder; if so the folder is removed now."""
    put_back(out)
    sweep(work_folder(out))
    done = out.exists() and (work_folder(out) / SAVING).exists()
    if not done or overwrite or not running.resume:
        return False
    remove_folder(work_folder(out))
    return True


@contextmanager
def work_of(out: Path) -> Iterator[Path]:
    """The folder of a run that writes `out`, gone once it is done; kept where it holds work."""
    work = work_folder(out)
    try:
        yield work
    except FieldwiseError:
        if not (work / "checkpoint").exists():  # a mistake, found before there was work to lose
            remove_folder(work)
        raise
    remove_folder(work)


def prepared_store(
    data: Any,
    out: Path,
    reading: Mapping[str, Any] | None,
    overwrite: bool,
    running: Running,
    fitting: Mapping[str, Any],
) -> tuple[Store, dict[str, Any]]:
    """The encoded table of `train_table`, and what goes to `fit_store`."""
    if out.exists() and not overwrite:
        raise SettingError(f"{out} is there already; set overwrite=True or choose another name")
    check_replaceable(out)
    work = work_folder(out)
    if not running.resume:
        remove_folder(work)
    encoded = is_store(data)
    reading, fitting = dict(reading or {}), dict(fitting)
    asked = (fitting.get(name) for name in ("crosses", "combine"))
    if decide(fitting.get("preset", "fast"), *asked)[0] is not None:
        fitting["min_count"] = reading.get("min_count")
        if not encoded and "schema" not in reading:
            fitting["min_count"] = _usual_count(reading)
            reading |= {"min_count": 1, "resolutions": True}
    if encoded:
        return Store(data), fitting
    kept, told = work / "table.json", _told(data, reading)
    if running.resume and kept.is_file() and is_store(work / "store"):
        if told not in (None, kept.read_bytes()):
            raise SettingError(
                f"{work} holds a run on another table, or one read with other options; "
                "go on with those, or begin anew without --resume (resume=False)"
            )
        return Store(work / "store"), fitting
    from .data.encoding import encode

    store = encode(data, work / "store", overwrite=True, show=running.show, **reading)
    write_atomically(kept, told or b"")
    return store, fitting


def _told(data: Any, reading: Mapping[str, Any]) -> bytes | None:
    """A table, and how it is read; None of files that are gone. A run may go on with a copy."""
    from .data.readers import identity_of

    table = identity_of(data, times=False)
    if table is None:
        return None
    return plainly([table, reading]).encode()


def plainly(things: Any) -> str:
    """As JSON has them, the same in all processes."""
    return json.dumps(things, sort_keys=True, default=_plain)


def _plain(thing: Any) -> Any:
    """As JSON has it; a set in one order in all processes."""
    return sorted(map(str, thing)) if isinstance(thing, (set, frozenset)) else str(thing)


def _usual_count(reading: Mapping[str, Any]) -> int:
    """The min_count that was given, or that of the format."""
    from .data.readers import format_schema

    known = format_schema(reading.get("format", "auto"))
    usual = Field.min_count if known is None else known.fields[0].min_count
    given = reading.get("min_count")
    return usual if given is None else given


def kept_store(
    data: Any,
    folder: Path,
    reading: Mapping[str, Any],
    cutting: Mapping[str, Any],
    running: Running,
    what: str,
) -> Store:
    """The store of a table, encoded into `folder` now or by an earlier run of the same work. The
    folder belongs to one table and one set of options: others are an error, in which `what` is the
    name of the work."""
    from .data.readers import identity_of

    known = {"data": identity_of(data), **cutting, **reading}
    about = json.dumps(known, sort_keys=True, default=str)
    identity = folder / "about.json"
    if identity.is_file() and identity.read_text() != about:
        raise SettingError(
            f"{folder} is {what} on another table or with other options; "
            "choose another --out or delete it"
        )
    if is_store(data):
        store = Store(data)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(identity, about.encode())
        return store
    if identity.is_file() and is_store(folder / "store"):
        return Store(folder / "store")
    from .data.encoding import encode

    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        store = encode(data, folder / "store", overwrite=True, show=running.show, **reading)
    except FieldwiseError:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    write_atomically(identity, about.encode())
    return store
