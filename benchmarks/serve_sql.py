"""How fast exported models score: 100,000 flights in DuckDB and PostgreSQL, and the Python file.

    python -m benchmarks.serve_sql

PostgreSQL is the server that PGHOST names, where one is; it is given a schema of its own, which is
dropped at the end. Beside them stands fieldwise, on the same rows in the same run. `figures` is
called by the benchmark of serving.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.record import timed
from fieldwise import FieldwiseClassifier, FieldwiseModel, load_flights
from fieldwise.export import python, sql

N_ROWS, N_TRAIN, ROUNDS = 100_000, 220_000, 3
SCHEMA = "fieldwise_bench"


def check(model: FieldwiseModel, rows: pl.DataFrame, found: Any) -> float:
    """The largest difference of a chance."""
    away = float(np.abs(np.asarray(found, float) - model.predict_proba(rows)).max())
    assert away < 1e-5, away
    return away


def in_duckdb(model: FieldwiseModel, rows: pl.DataFrame, folder: Path) -> dict[str, Any]:
    import duckdb

    file = folder / "duckdb.sql"
    sql.write(model, file, key=["id"])
    connection = duckdb.connect()
    connection.register("given", rows.with_row_index("id").to_arrow())
    connection.execute("CREATE TABLE input AS SELECT * FROM given")
    loading = timed(lambda: connection.execute(file.read_text()), ROUNDS)
    one = "SELECT probability FROM fieldwise_scores WHERE id = 7"
    every = "SELECT probability FROM fieldwise_scores ORDER BY id"
    found = connection.execute(every).fetchnumpy()["probability"]
    return {
        "megabytes": file.stat().st_size / 1e6,
        "load_seconds": loading,
        "one_row_seconds": timed(lambda: connection.execute(one).fetchall(), ROUNDS),
        "seconds": timed(lambda: connection.execute(every).fetchnumpy(), ROUNDS),
        "difference": check(model, rows, found),
    }


def in_postgres(model: FieldwiseModel, rows: pl.DataFrame, folder: Path) -> dict[str, Any]:
    import psycopg

    file = folder / "postgres.sql"
    sql.write(model, file, dialect="postgres", key=["id"])
    numbered = rows.with_row_index("id")
    kinds = [
        f'"{name}" {"text" if dtype == pl.String else "integer"}'
        for name, dtype in numbered.schema.items()
    ]
    with psycopg.connect(autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; CREATE SCHEMA {SCHEMA}")
        connection.execute(f"SET search_path = {SCHEMA}")
        connection.execute(f"CREATE TABLE input ({', '.join(kinds)}, PRIMARY KEY (id))")
        with connection.cursor().copy("COPY input FROM STDIN (FORMAT csv, NULL '\\N')") as copy:
            copy.write(numbered.write_csv(null_value="\\N", include_header=False))
        connection.execute("ANALYZE input")
        loading = timed(lambda: connection.execute(file.read_text()), ROUNDS)
        one = "SELECT probability FROM fieldwise_scores WHERE id = 7"
        every = "SELECT probability FROM fieldwise_scores ORDER BY id"
        found = connection.execute(every).fetchall()
        out = {
            "server": connection.info.server_version,
            "load_seconds": loading,
            "one_row_seconds": timed(lambda: connection.execute(one).fetchall(), ROUNDS),
            "seconds": timed(lambda: connection.execute(every).fetchall(), 1),
            "difference": check(model, rows, [row[0] for row in found]),
        }
        connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    return out


def in_python(model: FieldwiseModel, rows: pl.DataFrame, folder: Path) -> dict[str, Any]:
    file = folder / "late.py"
    python.write(model, file)
    begun = time.perf_counter()
    spec = importlib.util.spec_from_file_location("late", file)
    assert spec is not None
    assert spec.loader is not None
    late = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(late)
    some = rows.head(5000)
    dicts = some.to_dicts()
    late.predict_proba(dicts[0])
    first = time.perf_counter() - begun
    return {
        "megabytes": file.stat().st_size / 1e6,
        "first_row_seconds": first,
        "rows_per_second": len(dicts) / timed(lambda: late.predict_proba(dicts), ROUNDS),
        "difference": check(model, some, late.predict_proba(dicts)),
    }


def figures() -> dict[str, Any]:
    """By preset: seconds to load the export, of one row and of all of them."""
    flights = load_flights()
    X = flights.drop("late")
    rows = X.tail(N_ROWS)
    out: dict[str, Any] = {"rows": N_ROWS}
    for preset in ("fast", "glass"):
        fit = FieldwiseClassifier(preset=preset, epochs=2)
        model = fit.fit(X.head(N_TRAIN), flights["late"].head(N_TRAIN)).model_
        found: dict[str, Any] = {
            "fields": model.layout.n_fields,
            "parameters": model.layout.n_parameters,
            "fieldwise_seconds": timed(lambda model=model: model.predict_proba(rows), ROUNDS),
        }
        with tempfile.TemporaryDirectory() as name:
            found["duckdb"] = in_duckdb(model, rows, Path(name))
            if "PGHOST" in os.environ:
                found["postgres"] = in_postgres(model, rows, Path(name))
            found["python"] = in_python(model, rows, Path(name))
        out[preset] = found
    return out


if __name__ == "__main__":
    for name, found in figures().items():
        print(name, found)
