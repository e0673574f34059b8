"""A server under mixed load for seconds: what `make bench-load` does for an hour."""

from __future__ import annotations

from benchmarks.clients import BAD
from benchmarks.soak import Plan, fitted_slope, soak

from serving import fitted, rows_of


def test_bad_clients_swaps_and_kills_cost_no_good_client_an_answer(tmp_path):
    models = fitted("plain"), fitted("plain", seed=1)
    versions = [model.save(tmp_path / str(k)) for k, model in enumerate(models)]
    plan = Plan(
        seconds=17,
        rate=40,
        swap=12,
        age=10,  # beside other tests, as the next two
        breaks=1,
        notice=10,
        kill=9,
        sample=1,
        timeout=20,
        header_timeout=2,
    )
    place = tmp_path / "place"
    place.mkdir()
    found = soak(versions, rows_of(models[0], 10), "site", plan, place)
    assert found["wrong"] == []
    assert found["good_requests"] > 100
    assert found["good_by_kind"].get("cut by a kill", 0) <= 16  # clients
    assert found["swaps"] >= 1
    assert found["put_there"]["a table cut short"] == 1
    assert found["refusals_logged"] >= 1
    assert found["kills"] == 1
    assert len(found["bad_by_kind"]) > len(BAD) / 2
    assert found["tracebacks_logged"] == 0
    assert found["failures_logged"] == []


def test_a_slope_is_found_and_how_sure_it_is():
    slope, error = fitted_slope([0.0, 1, 2, 3], [1.0, 3.1, 4.9, 7])
    assert abs(slope - 1.98) < 1e-9
    assert 0.01 < error < 0.1
