"""The estimator's presets beside tuned LightGBM and CatBoost: logloss, AUC and seconds.

    python -m benchmarks.presets run [TABLES] [--seeds 0,1] [--methods fast,CatBoost]
    python -m benchmarks.presets results      writes presets.json, prints a table and the targets

`run` may be stopped and goes on: every fit leaves a file in build/presets; remove it to measure
again. All methods have the same training and validation rows; the test rows are read once, by the
fit that validation chose. Real tables lie in shared/data beside the project and are left out where
absent.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter as clock
from typing import Any

import numpy as np
import polars as pl

from benchmarks.compare import DATA, ROOT, parts_of
from benchmarks.record import save
from fieldwise import FieldwiseClassifier
from fieldwise.baselines.methods import OURS
from fieldwise.compare.results import _differences
from fieldwise.files import write_atomically
from fieldwise.losses import LOSSES
from fieldwise.metrics import auc

WORK = ROOT / "build" / "presets"
TABLES = ("flights", "frappe", "hotel", "unvotes", "access", "incidents", "criteo")
PRESETS = ("fast", "glass", "best")
METHODS = (*PRESETS, "LightGBM", "CatBoost")
SEEDS = (0, 1, 2, 3, 4)
SMALL = 50_000  # rows; below, which rows are the test's matters more than a method's seed
LARGE = 100_000  # rows; above, time is a target
ROUNDS, PATIENCE = 1000, 50  # trees at most, and trees without gain at the end
MISSING = "(missing)"
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "LightGBM": (
        {"num_leaves": 63, "learning_rate": 0.1},
        {"num_leaves": 255, "learning_rate": 0.05, "min_data_in_leaf": 50, "cat_smooth": 30},
    ),
    "CatBoost": ({"depth": 6}, {"depth": 8}),
}
BARS = {"frappe": 0.0740, "flights": 0.412, "access": 0.159, "incidents": 0.430, "hotel": 0.228}

Part = tuple[Any, np.ndarray]  # columns, and labels of 0 and 1
Chances = Callable[[Any], np.ndarray]  # columns -> (n,)
Found = dict[str, dict[int, dict[str, Any]]]  # of a table: method -> seed -> its file


def split_of(table: str, seed: int) -> list[tuple[pl.DataFrame, np.ndarray]]:
    """Training, validation and test rows: a small table is cut anew by every seed."""
    parts = parts_of(table)
    if seed and sum(part.height for part in parts) < SMALL:
        parts = parts_of(table, seed)
    return [(part.drop("label"), part["label"].to_numpy()) for part in parts]


def losses(chance: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(n,) the logloss of every row"""
    chance = np.clip(chance.astype(np.float64), 1e-7, 1 - 1e-7)
    return LOSSES["logistic"].value(np.log(chance / (1 - chance)), y, 0.0)


def numeric_columns(table: str, train: pl.DataFrame) -> set[str]:
    """The columns peers take as numbers; all others are categories to them."""
    # Whole numbers of these tables are amounts or times of day once there are many of them; few
    # values are better told apart one by one, and in the other tables whole numbers are ids.
    amounts = table in {"hotel", "criteo", "flights", "incidents"}
    return {
        column.name
        for column in train
        if column.dtype.is_float()
        or (amounts and column.dtype.is_integer() and column.n_unique() > 50)
    }


def as_words(X: pl.DataFrame, numeric: set[str]) -> pl.DataFrame:
    """Numbers as floats, everything else as strings with a word for a missing one."""
    return X.select(
        pl.col(name).cast(pl.Float64)
        if name in numeric
        else pl.col(name).cast(pl.String).fill_null(MISSING)
        for name in X.columns
    )


def as_categories(words: pl.DataFrame, known: dict[str, pl.Enum]) -> Any:
    """A pandas frame whose categories are the training's; a word never seen there is missing."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for column in words:
        if column.name in known:
            kind = known[column.name]
            codes = column.cast(kind, strict=False).to_physical().cast(pl.Int64).fill_null(-1)
            dtype = pd.CategoricalDtype(kind.categories.to_list())
            columns[column.name] = pd.Categorical.from_codes(codes.to_numpy(), dtype=dtype)
        else:
            columns[column.name] = column.to_numpy()
    return pd.DataFrame(columns)


def features_of(method: str, table: str, train: pl.DataFrame) -> Callable[[pl.DataFrame], Any]:
    """What makes of a frame's columns what the peer takes."""
    numeric = numeric_columns(table, train)
    if method == "CatBoost":
        return lambda X: as_words(X, numeric)
    words = as_words(train, numeric)
    known = {c.name: pl.Enum(c.unique().sort()) for c in words if c.name not in numeric}
    return lambda X: as_categories(as_words(X, numeric), known)


def train_lightgbm(
    train: Part, validation: Part, seed: int, settings: dict[str, Any]
) -> tuple[Chances, int]:
    """Native categories; the chances and how many trees there are."""
    import lightgbm

    fixed = {"objective": "binary", "verbosity": -1, "num_threads": os.cpu_count(), "seed": seed}
    data = lightgbm.Dataset(*train)
    model = lightgbm.train(
        {**fixed, **settings},
        data,
        num_boost_round=ROUNDS,
        valid_sets=[lightgbm.Dataset(*validation, reference=data)],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    return lambda X: np.asarray(model.predict(X)), int(model.best_iteration)


def train_catboost(
    train: Part, validation: Part, seed: int, settings: dict[str, Any]
) -> tuple[Chances, int]:
    """Its own statistics of categories; the chances and how many trees there are."""
    import catboost

    model = catboost.CatBoostClassifier(
        iterations=ROUNDS,
        random_seed=seed,
        thread_count=os.cpu_count(),
        allow_writing_files=False,
        verbose=False,
        cat_features=[c.name for c in train[0] if c.dtype == pl.String],
        **settings,
    )
    model.fit(*train, eval_set=validation, early_stopping_rounds=PATIENCE)
    return lambda X: model.predict_proba(X)[:, 1], int(model.tree_count_)


def fit_peer(
    method: str, table: str, parts: list[tuple[pl.DataFrame, np.ndarray]], seed: int
) -> tuple[Chances, dict[str, Any]]:
    """The better setting on the validation rows; what turns frames into its features is told
    apart, as another library might do it in less."""
    importlib.import_module(method.lower())  # not timed
    fit = {"LightGBM": train_lightgbm, "CatBoost": train_catboost}[method]
    begun = clock()
    features = features_of(method, table, parts[0][0])
    train, validation = [(features(X), y) for X, y in parts[:2]]
    preparing = clock() - begun
    tried: list[tuple[Chances, dict[str, Any]]] = []
    for settings in GRIDS[method]:
        begun = clock()
        chances, trees = fit(train, validation, seed, settings)
        seconds = clock() - begun
        loss = float(losses(chances(validation[0]), validation[1]).mean())
        about = {"settings": settings, "trees": trees, "seconds": seconds}
        tried.append((chances, {**about, "validation_logloss": loss}))
    chosen, about = min(tried, key=lambda one: one[1]["validation_logloss"])
    whole = sum(one["seconds"] for _, one in tried)
    about |= {"grid_seconds": whole, "preparing_seconds": preparing}
    return lambda X: chosen(features(X)), about


@cache
def compiled(preset: str) -> None:
    """Compiles the preset's kernels, or reads them, before anything is timed."""
    few = pl.DataFrame({"a": ["x", "y"] * 200, "b": list("uuvv") * 100, "c": np.arange(400) / 7})
    y = np.arange(400) % 2
    FieldwiseClassifier(preset=preset, random_state=0).fit(few, y, eval_set=(few, y))


def fit_preset(
    preset: str, parts: list[tuple[pl.DataFrame, np.ndarray]], seed: int
) -> tuple[Chances, dict[str, Any]]:
    """The estimator with nothing but a preset, from raw rows."""
    compiled(preset)
    begun = clock()
    model = FieldwiseClassifier(preset=preset, random_state=seed)
    model.fit(*parts[0], eval_set=parts[1])
    seconds = clock() - begun
    X, y = parts[1]
    loss = float(losses(model.predict_proba(X)[:, 1], y).mean())
    about = {"settings": {"preset": preset}, "seconds": seconds, "validation_logloss": loss}
    return lambda X: model.predict_proba(X)[:, 1], about


def measure(
    table: str, method: str, seed: int, parts: list[tuple[pl.DataFrame, np.ndarray]]
) -> None:
    """Fits, reads the test rows and leaves two files; the JSON, written last, says it is done."""
    before = os.getloadavg()[0]
    if method in PRESETS:
        chances, about = fit_preset(method, parts, seed)
    else:
        chances, about = fit_peer(method, table, parts, seed)
    X, y = parts[2]
    chance = np.asarray(chances(X), np.float64)
    about |= {"logloss": float(losses(chance, y).mean()), "auc": auc(chance, y, np.ones(len(y)))}
    about |= {"rows": [len(y) for _, y in parts], "load_average_before": before}
    written = io.BytesIO()
    np.save(written, chance)
    file = WORK / table / f"{method}-{seed}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file.with_suffix(".npy"), written.getvalue())
    write_atomically(file, (json.dumps(about, indent=1) + "\n").encode())
    print(
        f"{table}, seed {seed}, {method}: logloss {about['logloss']:.4f}, "
        f"AUC {about['auc']:.4f}, {about['seconds']:.1f} s",
        flush=True,
    )


def present(tables: Sequence[str]) -> list[str]:
    for table in tables:
        if not (DATA / table).exists():
            print(f"{table}: left out, shared/data/{table} is not beside the project", flush=True)
    return [table for table in tables if (DATA / table).exists()]


def run(tables: Sequence[str], seeds: Sequence[int], methods: Sequence[str]) -> None:
    """One seed of all tables before the next; the methods of a table right after each other, so
    that the ratios of their times hold."""
    # Beside other work LightGBM's waiting threads spin their time away: 20 trees of 2,400 rows took
    # 5 s, with a short wait 0.1 s. Read when its library is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    found = present(tables)
    for seed in seeds:
        for table in found:
            todo = [m for m in methods if not (WORK / table / f"{m}-{seed}.json").exists()]
            parts = split_of(table, seed) if todo else []
            for method in todo:
                try:
                    measure(table, method, seed, parts)
                except Exception as error:  # the others go on
                    said = f"{type(error).__name__}: {error}"
                    print(f"{table}, seed {seed}, {method}: failed, {said}", flush=True)


def gathered(table: str) -> Found:
    files = {(m, s): WORK / table / f"{m}-{s}.json" for m in METHODS for s in SEEDS}
    out: Found = {}
    for (method, seed), file in files.items():
        if file.is_file():
            out.setdefault(method, {})[seed] = json.loads(file.read_text())
    return out


def rows_of(found: Found) -> list[int]:
    """How many train, validate and test."""
    return next(iter(next(iter(found.values())).values()))["rows"]


def common_seeds(found: Found, methods: Sequence[str]) -> list[int]:
    return sorted(set.intersection(*(set(found.get(method, {})) for method in methods)))


def time_ratio(found: Found, method: str, peer: str) -> float | None:
    """Of seed 0, whose fits ran right after each other."""
    if 0 not in common_seeds(found, (method, peer)):
        return None
    return found[method][0]["seconds"] / found[peer][0]["seconds"]


def mean_logloss(found: Found, method: str, seeds: Sequence[int]) -> float:
    return float(np.mean([found[method][seed]["logloss"] for seed in seeds]))


def own_logloss(found: Found, method: str) -> float | None:
    return mean_logloss(found, method, list(found[method])) if method in found else None


def loss_ratio(found: Found, method: str, *peers: str) -> float | None:
    """To the best of the peers, over the seeds all of them have."""
    seeds = common_seeds(found, (method, *peers))
    if not seeds:
        return None
    return mean_logloss(found, method, seeds) / min(mean_logloss(found, p, seeds) for p in peers)


def difference(table: str, found: Found, method: str) -> dict[str, Any] | None:
    """The method's logloss less CatBoost's with a paired interval, over the seeds both have: of a
    fixed split every row's mean over seeds, of several splits all their test rows."""
    seeds = common_seeds(found, (method, "CatBoost"))
    if not seeds:
        return None
    labels = {seed: split_of(table, seed)[2][1] for seed in seeds}
    fixed = sum(rows_of(found)) >= SMALL
    joined: dict[str, np.ndarray] = {}
    for name in (method, "CatBoost"):
        files = [WORK / table / f"{name}-{seed}.npy" for seed in seeds]
        each = [losses(np.load(file), labels[s]) for file, s in zip(files, seeds, strict=True)]
        joined[name] = np.mean(each, axis=0) if fixed else np.concatenate(each)
    weight = np.ones(len(joined[method]))
    # It takes differences to what bears our name.
    given = {OURS: (joined["CatBoost"], weight), method: (joined[method], weight)}
    return {**_differences(given)[method], "seeds": seeds}


def row_of(table: str, found: Found, method: str) -> dict[str, Any]:
    """A method's figures over the seeds present."""
    fits = found[method]
    row: dict[str, Any] = {"seeds": len(fits)}
    for name in ("logloss", "auc", "seconds"):
        values = [fit[name] for fit in fits.values()]
        row[name] = float(np.mean(values))
        row[f"{name}_deviation"] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    if method in PRESETS:
        row["times_catboost_seconds"] = time_ratio(found, method, "CatBoost")
        row["difference_to_catboost"] = difference(table, found, method)
    row["fits"] = {str(seed): fit for seed, fit in fits.items()}
    return row


def target(
    words: str, at_most: float, figures: dict[str, float | None], needed: int | None = None
) -> dict[str, Any]:
    """Met once `needed` tables (all) are; None while what is not measured may decide."""
    needed = len(figures) if needed is None else needed
    met = {table: None if x is None else x <= at_most for table, x in figures.items()}
    yes, unknown = (list(met.values()).count(answer) for answer in (True, None))
    answer = True if yes >= needed else None if yes + unknown >= needed else False
    tables = {table: {"figure": figures[table], "met": met[table]} for table in figures}
    return {"target": words, "met": answer, "at_most": at_most, "tables": tables}


def targets_of(measured: dict[str, Found]) -> list[dict[str, Any]]:
    found = {table: measured.get(table, {}) for table in TABLES}
    # A table without a fit may be a large one.
    large = {t: m for t, m in found.items() if not m or sum(rows_of(m)) > LARGE}
    return [
        target(
            "best: logloss at most that of the better peer, on six tables of seven",
            1.0,
            {t: loss_ratio(m, "best", "LightGBM", "CatBoost") for t, m in found.items()},
            needed=6,
        ),
        target(
            "best: at most half of CatBoost's seconds above 100,000 rows",
            0.5,
            {t: time_ratio(m, "best", "CatBoost") for t, m in large.items()},
        ),
        target(
            "glass: logloss within 2 % of CatBoost's on every table",
            1.02,
            {t: loss_ratio(m, "glass", "CatBoost") for t, m in found.items()},
        ),
        target(
            "glass: at most a tenth of CatBoost's seconds above 100,000 rows",
            0.1,
            {t: time_ratio(m, "glass", "CatBoost") for t, m in large.items()},
        ),
        target(
            "fast: less than LightGBM's seconds above 100,000 rows",
            1.0,
            {t: time_ratio(m, "fast", "LightGBM") for t, m in large.items()},
        ),
        *(
            target(f"best: logloss at most {bar} on {t}", bar, {t: own_logloss(found[t], "best")})
            for t, bar in BARS.items()
        ),
    ]


def results() -> None:
    measured = {table: found for table in present(TABLES) if (found := gathered(table))}
    tables = {}
    for table, found in measured.items():
        rows = rows_of(found)
        split = "one split" if sum(rows) >= SMALL else "a split of every seed"
        methods = {method: row_of(table, found, method) for method in found}
        tables[table] = {"rows": rows, "split": split, "methods": methods}
    targets = targets_of(measured)
    figures = {
        "task": "fit on train, choose and stop on validation, one reading of the test rows",
        "seconds": "of the fit: ours from raw rows; of a peer the chosen one, from ready columns. "
        "grid_seconds: all settings; preparing_seconds: frames to the peer's columns",
        "difference_to_catboost": "logloss less CatBoost's, 95 % of paired draws of test rows; "
        "over several splits a row may be there more than once",
        "times_catboost_seconds": "of seed 0",
        "targets": targets,
        "tables": tables,
    }
    path = save("presets", "make bench-presets", figures)
    print(page(tables, targets))
    print(f"written: {path.relative_to(ROOT)}")


def page(tables: dict[str, Any], targets: list[dict[str, Any]]) -> str:
    """The figures and the targets in Markdown."""

    def spread(row: dict[str, Any], name: str, form: str) -> str:
        away = row[f"{name}_deviation"]
        return f"{row[name]:{form}}" + ("" if away is None else f" ± {away:{form}}")

    head = ("table", "method", "logloss", "AUC", "seconds", "of CatBoost's", "to CatBoost", "seeds")
    out = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * (len(head) - 2) + "|"]
    for table, body in tables.items():
        for method, row in body["methods"].items():
            ratio, gap = (row.get(k) for k in ("times_catboost_seconds", "difference_to_catboost"))
            shown = [table, method, spread(row, "logloss", ".4f"), spread(row, "auc", ".4f")]
            shown += [spread(row, "seconds", ".1f"), "" if ratio is None else f"{ratio:.2f}"]
            shown += [
                f"{gap['mean']:+.4f} ({gap['low']:+.4f} to {gap['high']:+.4f})" if gap else ""
            ]
            out.append("| " + " | ".join([*shown, str(row["seeds"])]) + " |")
    out.append("")
    said = {True: "met", False: "not met", None: "not measured"}
    for one in targets:
        each = (
            f"{table} {'?' if x['figure'] is None else format(x['figure'], '.4f')}"
            for table, x in one["tables"].items()
        )
        out.append(f"- {said[one['met']]}: {one['target']} ({', '.join(each)})")
    return "\n".join(out)


def main() -> None:
    def some(names: Sequence[Any], kind: type = str) -> Callable[[str], list[Any]]:
        def chosen(text: str) -> list[Any]:
            asked = [kind(name) for name in text.split(",")]
            if unknown := [name for name in asked if name not in names]:
                raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {names}")
            return [name for name in names if name in asked]

        return chosen

    parser = argparse.ArgumentParser(prog="python -m benchmarks.presets")
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run")
    running.add_argument("tables", nargs="?", type=some(TABLES), default=TABLES)
    running.add_argument("--seeds", type=some(SEEDS, int), default=SEEDS)
    running.add_argument("--methods", type=some(METHODS), default=METHODS)
    commands.add_parser("results")
    given = parser.parse_args()
    if given.command == "run":
        run(given.tables, given.seeds, given.methods)
    else:
        results()


if __name__ == "__main__":
    main()
