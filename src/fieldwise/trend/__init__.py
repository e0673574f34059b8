"""`fieldwise bound`: the bound over ranks, as in the paper's figure 1b. Models differ in rank only;
each is trained until its loss on training rows is below the same threshold.

Finished ranks are kept in a folder; the same call continues after an interruption.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data.shuffle import Batches, Rows, gathered, row_weights, wide_values
from ..data.words import StoredWords
from ..engines import Engine
from ..errors import FieldwiseError, SettingError
from ..explain.bound import Sample, bound_of, check_bounded, gap_by_field
from ..explain.rows import Marginals
from ..files import write_atomically
from ..fitting import kept_store, objective_of, problem_of
from ..held_out import default_share, held_out_rows
from ..layout import Layout
from ..losses import LOSSES
from ..problem import Problem, evaluate, judge_rows, value_moments
from ..progress import Say
from ..targets import folded, scale_of
from ..train import RATES, Fit, Running, TrainSettings, Watch, fitted_engine, train
from .figures import write_trend

__all__ = ["RANKS", "bound_table", "follow"]

RANKS = (1, 2, 4, 8, 16, 32)
DECAY = 1e-5
EVERY = 50  # most steps between two checks of the training loss
# Least checks per epoch, so that ranks do not differ by how far they are below the threshold. On
# the flights, 144 steps per epoch, checks 50 steps apart made ranks differ by 0.005 of loss.
LOOKS = 25
SAMPLE_ROWS = 20_000  # training rows to measure the loss on; as many held-out ones for the gap


def bound_table(
    data: Any,
    out: str | Path,
    *,
    ranks: Sequence[int] = RANKS,
    threshold: float | None = None,
    split: str = "random",
    validation: float | None = None,
    combine: str = "sum",
    settings: TrainSettings | None = None,
    reading: Mapping[str, Any] | None = None,
    running: Running | None = None,
    say: Say = lambda words: None,
) -> dict[str, Any]:
    """Compute the bound over ranks on a table or a store, and write bound.json, .md and .png in
    `out`. Settings as for `follow`; the table is split as by `fieldwise train`."""
    settings, running, out = settings or TrainSettings(), running or Running(), Path(out)
    _check(ranks, threshold)
    cutting = {"split": split, "validation": validation, "seed": settings.seed}
    folder = out / ".bound"
    is_new = not folder.exists()
    try:
        store = kept_store(data, folder, reading or {}, cutting, running, "the trend of a bound")
        words = StoredWords(store)
        share = default_share(store) if validation is None else validation
        problem = problem_of(
            store,
            words,
            objective=objective_of(store.schema, combine=combine),
            held_out=held_out_rows(store, words, split, share, settings.seed),
        )
        check_bounded(problem.layout, problem.objective)
    except FieldwiseError:
        if is_new:  # a user's mistake, found before there was work to lose
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                out.rmdir()
        raise
    found = follow(
        *(problem, store.schema.names, folder),
        ranks=ranks,
        threshold=threshold,
        settings=settings,
        running=running,
        say=say,
    )
    named = Path(data).name if isinstance(data, (str, Path)) else "a table in memory"
    body = {"data": named, "target": store.schema.targets[0].column, **found}
    write_trend(body, out)
    return body


def follow(
    problem: Problem,
    names: Sequence[str],
    folder: Path,
    *,
    ranks: Sequence[int] = RANKS,
    threshold: float | None = None,
    settings: TrainSettings | None = None,
    running: Running | None = None,
    say: Say = lambda words: None,
) -> dict[str, Any]:
    """A row for each rank: parameters, norms, bound, losses, and which fields carry their gap.

    Training continues until the loss on some training rows, checked every 50 steps and at least 25
    times an epoch, is below the threshold. The default threshold is the loss of the smallest rank
    when its loss on the held-out rows stops falling, which larger ranks reach too. Tables are the
    last ones, not averages.
    """
    _check(ranks, threshold)
    check_bounded(problem.layout, problem.objective)
    settings = settings or TrainSettings()
    rate = settings.learning_rate or RATES[0]
    decay = DECAY if settings.weight_decay is None else settings.weight_decay
    settings = replace(settings, learning_rate=rate, weight_decay=decay, averages=1)
    running = replace(running or Running(), keeps_best=False)
    ranks = sorted(set(ranks))
    work = _Work(problem, names, folder, settings, running, say)
    chosen = ""
    if threshold is None:
        threshold, chosen = work.choose(ranks[0])
        say(f"threshold {threshold}: {chosen}")
    rows = []
    for number, rank in enumerate(ranks, 1):
        rows.append(work.row(rank, threshold))
        say(f"{_told(rows[-1])}; {number} of {len(ranks)} ranks")
    good = [row for row in rows if row["status"] == "ok"]
    best = min(good, key=lambda row: row["validation_loss"])["rank"] if good else None
    return {
        "threshold": threshold,
        "chosen": chosen,
        "rows": {"training": work.n_rows, "sample": len(work.trained.y)},
        "fields": problem.layout.n_fields,
        "categories": problem.layout.n_rows,
        "settings": asdict(settings),
        "ranks": rows,
        "best": best,
    }


def _check(ranks: Sequence[int], threshold: float | None) -> None:
    if not ranks or min(ranks) < 1:
        raise SettingError(f"ranks={','.join(map(str, ranks))!r} must be numbers of at least 1")
    if threshold is not None and not threshold > 0:
        raise SettingError(f"threshold={threshold} must be more than 0")


def _told(row: Mapping[str, Any]) -> str:
    if row["status"] == "failed":
        return f"rank {row['rank']}: failed: {row['note']}"
    words = (
        f"rank {row['rank']}: training loss {row['train_loss']:.4f} after {row['steps']:,} steps"
    )
    if row["status"] != "ok":
        words += ", the threshold was not reached"
    return f"{words}, validation {row['validation_loss']:.4f}, norms {row['bound']['sum']:.4g}"


@dataclass
class _Work:
    """The fits of a trend, each kept when finished."""

    problem: Problem
    names: Sequence[str]
    folder: Path
    settings: TrainSettings
    running: Running
    say: Say

    def __post_init__(self) -> None:
        (self.folder / "ranks").mkdir(parents=True, exist_ok=True)
        problem = self.problem
        judge, seed = problem.judge, self.settings.seed
        if judge is None:
            raise SettingError("the bound over ranks needs held-out rows; hold some out")
        self.n_rows = Batches(problem.rows, 1, only=problem.only).n_rows
        batch = self.settings.settled(self.n_rows).batch_size or 1
        self._n_steps = -(-self.n_rows // batch)  # of an epoch
        self._scale = scale_of(problem.rows, problem.only, problem.objective)
        self._judge = judge_rows(problem)
        self._rows = _some(problem.rows, problem.only, seed)
        self.trained = _sample(self._rows, problem)
        self.held_out = _sample(_some(*judge, seed), problem)
        moments = value_moments(problem) if problem.valued else None
        self._marginals = None if moments is None else Marginals(*moments.T)

    def row(self, rank: int, threshold: float) -> dict[str, Any]:
        """The row of a rank, computed now or kept from before."""
        file = self._file(rank, threshold)
        if file.is_file():
            kept: dict[str, Any] = json.loads(file.read_text())
            return kept
        problem = self._of_rank(rank)
        about = {"rank": rank, "parameters": problem.layout.n_parameters}
        try:
            row = about | self._fitted(problem, threshold, file.stem)
        except FieldwiseError as error:  # not kept: another try may succeed
            return about | {"status": "failed", "note": str(error)}
        write_atomically(file, json.dumps(row).encode())
        shutil.rmtree(self.folder / "checkpoint" / file.stem, ignore_errors=True)
        return row

    def choose(self, rank: int) -> tuple[float, str]:
        """The default threshold, and words on where it comes from."""
        file = self._file(rank, None)
        if not file.is_file():
            problem = self._of_rank(rank)
            fit = train(problem, self.settings, self._running(file.stem))
            loss = self._loss(fitted_engine(problem, fit, self.running), problem)
            write_atomically(file, json.dumps({"loss": loss}).encode())
            shutil.rmtree(self.folder / "checkpoint" / file.stem, ignore_errors=True)
        loss = json.loads(file.read_text())["loss"]
        words = f"the training loss of rank {rank} at its best validation loss, {loss:.4f}"
        return float(np.ceil(loss * 1000) / 1000), f"{words}, rounded up"

    def _file(self, rank: int, threshold: float | None) -> Path:
        about = (asdict(self.settings), threshold, repr(self.problem.objective))
        key = hashlib.sha256(repr(about).encode()).hexdigest()[:12]
        return self.folder / "ranks" / f"{rank}-{key}.json"

    def _of_rank(self, rank: int) -> Problem:
        old = self.problem.layout
        fixed = {i: 0 for i, r in enumerate(old.ranks) if r == 0}  # linear fields
        layout = Layout.of(old.sizes, rank=rank, overrides=fixed, slots=old.slots)
        return replace(self.problem, layout=layout)

    def _running(self, name: str, watch: Watch | None = None) -> Running:
        folder = self.folder / "checkpoint" / name
        return replace(self.running, watch=watch, checkpoint=folder, resume=True)

    def _loss(self, engine: Engine, problem: Problem) -> float:
        """The loss on the sample of training rows."""
        if (self.trained.codes < 0).any():
            engine.set_means(problem.counts)
        return evaluate(engine, problem, self._rows, None, self._scale)["loss"]

    def _fitted(self, problem: Problem, threshold: float, name: str) -> dict[str, Any]:
        """Train a rank until it is below the threshold, and measure it."""
        steps = 0

        def look(engine: Engine) -> bool:
            nonlocal steps
            steps = engine.n_steps
            return self._loss(engine, problem) < threshold

        unjudged = replace(problem, validation=None, held_out=None)
        watch = Watch(look, max(1, min(EVERY, self._n_steps // LOOKS)))
        fit = train(unjudged, self.settings, self._running(name, watch))
        engine = fitted_engine(problem, fit, self.running)
        loss = self._loss(engine, problem)
        assert self._judge is not None
        return {
            "status": "ok" if fit.was_stopped or loss < threshold else "not reached",
            "steps": steps or self._n_steps * self.settings.epochs,  # or resumed at the end
            "train_loss": loss,
            "validation_loss": evaluate(engine, problem, *self._judge, self._scale)["loss"],
            "bound": self._bound(fit, problem, loss),
            "gap": self._gap(engine, problem),
        }

    def _bound(self, fit: Fit, problem: Problem, loss: float) -> dict[str, Any]:
        table, layout, objective, _ = folded(
            fit.table, problem.layout, fit.objective, fit.scale, fit.field_weights
        )
        return bound_of(
            *(table, layout, self.names, self.n_rows),
            train_loss=loss,
            marginals=self._marginals,
            objective=objective,
        ).to_dict()

    def _gap(self, engine: Engine, problem: Problem) -> list[dict[str, Any]]:
        def losses(codes: np.ndarray, values: np.ndarray | None, y: np.ndarray) -> np.ndarray:
            z = engine.scores(codes, values)[:, 0].astype(np.float64)
            return LOSSES["logistic"].value(z, y, 0.0)

        return gap_by_field(losses, problem.layout, self.names, self.trained, self.held_out)


def _some(rows: Any, only: np.ndarray | None, seed: int) -> Rows:
    """At most `SAMPLE_ROWS` random rows, in memory."""
    at = np.arange(rows.n_rows) if only is None else np.flatnonzero(only)
    mask = np.zeros(rows.n_rows, dtype=bool)
    if len(at) > SAMPLE_ROWS:
        bits = np.random.Philox(np.random.SeedSequence([seed, 404])).random_raw(len(at))
        at = at[np.argpartition(bits, SAMPLE_ROWS)[:SAMPLE_ROWS]]
    mask[at] = True
    return Rows(**gathered(rows, mask))


def _sample(rows: Rows, problem: Problem) -> Sample:
    found = rows.read(0, rows.n_rows)
    codes, y = found["codes"], found["target"][:, 0]
    wide = wide_values(codes, found.get("values"), problem.valued)
    return Sample(codes, wide, y, row_weights(found))
