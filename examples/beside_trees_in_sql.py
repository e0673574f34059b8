"""Two ways to put a model beside what is there: its scores as columns for LightGBM, and itself as
SQL that DuckDB runs.

python examples/beside_trees_in_sql.py [FOLDER]        (needs pip install "fieldwise[boost]" duckdb)
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import lightgbm
import numpy as np
from sklearn.metrics import log_loss

from fieldwise import FieldwiseClassifier, FieldwiseFeatures, load_flights
from fieldwise.export import export


def main(folder: Path) -> None:
    flights = load_flights().sample(16_000, seed=0, shuffle=True)
    train, test = flights.head(12_000), flights.tail(4_000)
    X, y = train.drop("late"), train["late"].to_numpy()

    # Trees read numbers. What the field-wise model says of a row becomes one: of training rows by
    # models that did not see them, or trees would trust it too much.
    features = FieldwiseFeatures(random_state=0)
    known, new = features.fit_transform(X, y), features.transform(test.drop("late"))
    numbers = [name for name, kind in X.schema.items() if kind.is_numeric()]
    alone, beside = X[numbers].to_numpy(), test[numbers].to_numpy()

    def loss_of_trees(known: np.ndarray, new: np.ndarray) -> float:
        settings = {"n_estimators": 60, "learning_rate": 0.1, "verbosity": -1, "random_state": 0}
        trees = lightgbm.LGBMClassifier(**settings).fit(known, y)
        return float(log_loss(test["late"], trees.booster_.predict(new)))

    print(f"trees, from numbers alone        logloss {loss_of_trees(alone, beside):.4f}")
    both = np.hstack([alone, known]), np.hstack([beside, new])
    print(f"trees, with field-wise features  logloss {loss_of_trees(*both):.4f}")

    clf = FieldwiseClassifier(rank=8).fit(X, y)
    chances = clf.predict_proba(test.drop("late"))[:, 1]
    print(f"field-wise alone                 logloss {log_loss(test['late'], chances):.4f}")

    # The same model inside of a database: no Python there, no fieldwise.
    script = folder / "late.sql"
    export(clf.model_, script, to="sql", table="flights")
    database = duckdb.connect()
    database.register("rows_of_today", test.drop("late").with_row_index("id").to_arrow())
    database.execute("CREATE TABLE flights AS SELECT * FROM rows_of_today")
    database.execute(script.read_text())
    query = "SELECT probability FROM fieldwise_scores ORDER BY id"
    in_sql = np.array(database.sql(query).fetchall())[:, 0]
    print(f"the same in DuckDB               differs by at most {abs(in_sql - chances).max():.0e}")


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
    place.mkdir(exist_ok=True)
    main(place)
