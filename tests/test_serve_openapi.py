"""The description of the service is true: whatever it allows, and what it does not, is asked by
schemathesis, and what comes back is as it says. Never an error of the server's own."""

from __future__ import annotations

import io
from collections import Counter

import polars as pl
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from serving import TARGETS, clicks, serving

TABLES = {
    "application/vnd.apache.arrow.stream": pl.DataFrame.write_ipc_stream,
    "application/vnd.apache.arrow.file": pl.DataFrame.write_ipc,
    "application/vnd.apache.parquet": pl.DataFrame.write_parquet,
}
# What must have come back at least once, else one half alone was tried.
MET = {
    "/predict": {200, 422},
    "/predict/batch": {200, 422},
    "/rank": {200, 422},
    "/categories": {200, 422},
}

WRONG = ("/predict", "/rank", "/categories")  # what has other input than bytes
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


@schemathesis.serializer(*TABLES)
def _table(context, value):
    """The bytes that are drawn, and as often a sound table."""
    drawn = repr(value).encode()
    if len(drawn) % 2:
        return drawn
    out = io.BytesIO()
    TABLES[context.case.media_type](clicks(len(drawn), 30).drop(TARGETS), out)
    return out.getvalue()


@pytest.fixture(scope="module")
def api(models):
    with serving(models["plain"]) as server:
        yield schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")


PATHS = ["/predict", "/predict/batch", "/schema", "/categories", "/health", "/ready", "/metrics"]
PATHS += ["/openapi.json", "/", "/rank"]


@pytest.mark.parametrize("path", PATHS)
def test_answers_are_as_described(path, api):
    method = "POST" if path in ("/predict", "/predict/batch", "/rank") else "GET"
    operation, statuses = api[path][method], Counter()

    def ask(case):
        answer = case.call()
        statuses[answer.status_code] += 1
        # Bytes are no table because they are bytes, which a description cannot say.
        excluded = [positive_data_acceptance] if path == "/predict/batch" else []
        # Text is read more freely than a pattern says: " 7" is a number too, as in any table.
        excluded += [negative_data_rejection] if path in ("/predict", "/rank") else []
        case.validate_response(answer, excluded_checks=excluded)

    for mode in MODES if path in WRONG else MODES[:1]:
        bounded = settings(
            derandomize=True,
            max_examples=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        )
        bounded(given(operation.as_strategy(mode))(ask))()
    assert MET.get(path, {200}) <= set(statuses), statuses
