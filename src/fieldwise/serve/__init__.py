"""Models over HTTP: `create_app` makes the application, `run_server` runs it.

limits.py     how much one request may ask for; the refusal of more
live.py       the model that is served, and the folder it comes from, which is watched
scoring.py    rows in, predictions and explanations out
tables.py     whole tables: Arrow and Parquet
describe.py   what the model's columns are and which categories they have
gate.py       what every request passes: token, time limit, counting, errors
metrics.py    metrics for Prometheus
openapi.py    the description of all endpoints
app.py        the endpoints
run.py        uvicorn and its workers
"""

from .._lazy import lazily

__all__ = ["Limits", "create_app", "run_server"]

__getattr__ = lazily(__name__, {"Limits": ".limits", "create_app": ".app", "run_server": ".run"})
