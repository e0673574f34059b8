"""Continue training a model with new rows and new categories, instead of training it anew.

    new rows -> has the table drifted?
             -> counts, the old ones times `1 - forget`; new categories get codes after the old ones
             -> a table with a row for each, which scores as the model did
             -> steps on the new rows, as small as training's last ones where much is known
             -> the better of both tables on new rows that were held out

With crosses the evidence of new rows comes from the old ones (it never saw their labels), and the
new rows join its sums at the end. Trees are kept, refitted or added to, whichever is best on the
held-out rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..boosted import need_trees
from ..data.encoding import encode
from ..data.readers import check_unchanged, open_source, stamps_of
from ..data.vocabulary import Vocabulary
from ..errors import NoRows, SettingError
from ..model import FieldwiseModel
from ..train import Running
from .drift import check_drift
from .one_update import Update, UpdateSettings
from .versions import KEEP, being_changed, publish, workplace

__all__ = ["update", "update_saved"]


def update(
    model: FieldwiseModel | str | Path,
    data: Any,
    *,
    forget: float = 0.0,
    epochs: int | None = None,
    learning_rate: float | None = None,
    validation: float | None = None,
    min_count: int | None = None,
    allow_drift: bool = False,
    running: Running | None = None,
    work: Path | None = None,
    **reading: Any,
) -> FieldwiseModel:
    """The model after more rows: any table with the columns it was trained on. Without rows it is
    the same model.

    Parameters
    ----------
    model : a model, or the folder of one.
    data : the new rows, with the target; anything that holds a table.
    forget : how much of the old is forgotten, from 0 to 1: old sums of evidence and old counts are
        multiplied by 1 - forget; with smaller counts, steps of old categories are larger.
    epochs : at most so many, fewer if the held-out rows say so; None is 1.
    learning_rate : of the steps; None is 0.4 times the model's own.
    validation : share of the new rows to hold out; None is a tenth if that is 100 rows, 0 is none.
    min_count : how often a category must have been seen, in all, to get a row; None is the model's.
    allow_drift : continue if many values were never seen before, or all are missing.
    running : device, threads and bars; see `fieldwise.train.Running`.
    work : a folder with room for the encoded rows.
    reading : how text is read, as `encode` takes it: format, separator, quote, null_words.
    """
    asked = UpdateSettings(
        forget=forget,
        epochs=epochs,
        learning_rate=learning_rate,
        validation=validation,
        min_count=min_count,
    )
    running = running or Running()
    given = model if isinstance(model, FieldwiseModel) else FieldwiseModel.load(model)
    if given.boosted is not None:
        need_trees()
    model = replace(given, vocabulary=getattr(given.vocabulary, "opened", given.vocabulary))
    seed = int(model.settings.get("seed", 0)) + 1 + len(model.lineage)
    if model.vocabulary.evidence is not None and min_count is not None:
        raise SettingError("min_count is not for models with crosses; train anew to change it")
    stamps = stamps_of(data)
    try:
        source = open_source(data, schema=model.schema, **reading)
        check_drift(model.base_vocabulary, source, allow=allow_drift)
    except NoRows:
        return given
    with tempfile.TemporaryDirectory(dir=work, prefix=".update-") as folder:
        start = _remembered(model, asked, seed)
        store = encode(source, Path(folder) / "store", start=start, show=running.show)
        check_unchanged(stamps)
        return Update(model, store, asked, running, seed).updated()


def update_saved(
    path: str | Path,
    data: Any,
    *,
    out: str | Path | None = None,
    keep: int = KEEP,
    **options: Any,
) -> tuple[dict[str, Any], str | None]:
    """Update the model at `path` and keep the old one as a version, or save the new one as `out`.
    Returns what was done, and the version's number. `options` are those of `update`."""
    if keep < 1:
        raise SettingError(f"keep={keep} must be at least 1")
    if out is not None:
        if Path(out).exists():
            raise SettingError(f"{out} is there already; choose another name")
        about, model = _about(FieldwiseModel.load(path), data, options)
        model.save(out)
        return about, None
    with being_changed(path) as real, workplace(real) as work:
        about, model = _about(FieldwiseModel.load(real), data, {"work": work, **options})
        return about, publish(model, real, keep=keep) if about["rows"] else None


def _about(
    model: FieldwiseModel, data: Any, options: Mapping[str, Any]
) -> tuple[dict[str, Any], FieldwiseModel]:
    after = update(model, data, **options)
    return after.lineage[-1] if len(after.lineage) > len(model.lineage) else {"rows": 0}, after


def _remembered(model: FieldwiseModel, asked: UpdateSettings, seed: int) -> Vocabulary:
    """The vocabulary of the table's own fields, with old counts faded.

    A count is rounded up or down at random, so that on average small ones fade as large ones do.
    """
    out = []
    words: Any = model.vocabulary
    base: Vocabulary = model.base_vocabulary
    bits = np.random.Philox(np.random.SeedSequence([seed, 501]))
    for mine, known in zip(base.fields, words.fields, strict=False):
        if asked.forget:
            count = mine.entries["count"].to_numpy()
            chance = (bits.random_raw(len(count)) >> np.uint64(11)) * 2.0**-53
            left = np.floor(asked.keep * count + chance).astype(np.int64)
            if base is not words and mine.field.is_counted:
                # A category keeps its row, which in models with crosses depends on the count.
                code = mine.entries["code"].to_numpy()
                has_row = (code > 0) & (code < known.size)
                left = np.where(has_row, np.maximum(left, np.minimum(count, words.floor)), left)
            mine = replace(mine, entries=mine.entries.with_columns(pl.Series("count", left)))
        if asked.min_count is not None and mine.field.is_counted:
            mine = replace(mine, field=replace(mine.field, min_count=asked.min_count))
        out.append(mine)
    return Vocabulary(base.schema, out)
