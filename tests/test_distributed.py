"""Training by many workers: real processes give what one gives, whatever happens to them."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands import run
from events import events
from fieldwise import FieldwiseModel, synthetic
from fieldwise.data.encoding import encode
from fieldwise.distributed import Grid, share_columns
from fieldwise.distributed.planning import Machine, Network, measured, plan, plans
from fieldwise.distributed.shards import column_pairs
from fieldwise.engines import gpu_is_here
from fieldwise.engines._shards import shard_layout
from fieldwise.errors import DataError, FieldwiseError, SettingError, StoreError
from fieldwise.fitting import train_table
from fieldwise.layout import Layout
from fieldwise.train import Running, TrainSettings
from workers import SCRIPT, ended, free_port, launched, started, torchrun, two_hosts

CLOSE = 1e-5  # of any weight after an epoch or two: float addition in another order
SETTINGS = {"learning_rate": 0.1, "epochs": 2, "batch_size": 256, "seed": 3}


def mixed(n: int = 3000, seed: int = 0) -> pl.DataFrame:
    """Categories, a linear number, a list, a weight, and targets of several kinds."""
    draw = np.random.default_rng(seed)
    user, site = draw.integers(0, 60, n), draw.integers(0, 12, n)
    z = np.sin(user) + np.cos(site * user) + draw.normal(size=n) / 2
    return pl.DataFrame(
        {
            "user": user.astype(str),
            "site": site.astype(str),
            "hour": draw.integers(0, 24, n).astype(str),
            "price": draw.normal(size=n),
            "tags": [[str(t) for t in draw.integers(0, 9, 1 + k % 3)] for k in range(n)],
            "w": draw.uniform(0.5, 2, n),
            "click": (z > 0).astype(int),
            "kind": np.digitize(z, [-0.5, 0.5]).astype(str),
        }
    )


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store a kind of target, of the same rows."""
    folder, table = tmp_path_factory.mktemp("stores"), mixed()
    about = {
        "click": {"kinds": {"price": "numeric"}},
        "kind": {"weight": "w"},
    }
    for target, more in about.items():
        other = [c for c in ("click", "kind") if c != target]
        drop = other if "weight" in more else [*other, "w"]
        encode(table, folder / target, target=target, drop=drop, **more)
    synthetic([30, 200, 8, 5], 6000, seed=1).to_store(folder / "plain")
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The mixed table in several files, which do not hold the same categories."""
    folder = tmp_path_factory.mktemp("files")
    table = mixed(5000, seed=2).with_columns(
        pl.col("price").round(2), tags=pl.col("tags").list.join("|"), day=pl.lit("2024-05-01T10:00")
    )
    for k, part in enumerate(table.sort("user").iter_slices(1300)):
        part.write_csv(folder / f"part-{k}.csv")
    return folder


READING = {"target": "kind", "weight": "w", "kinds": {"tags": "list:|"}, "min_count": 3}


def contents(store):
    return {file.name: file.read_bytes() for file in sorted(store.iterdir())}


@pytest.mark.parametrize(
    "more",
    [{}, {"kinds": {"tags": "list:|", "price": "linear"}}, {"target": "click", "drop": ["kind"]}],
    ids=["bins", "linear", "two classes"],
)
def test_files_read_apart_are_the_same_store(files, tmp_path, more):
    """Byte for byte, whoever reads which file; what travels is what would between processes."""

    def over(work, items):
        carried = [pickle.loads(pickle.dumps(item)) for item in items]
        return [pickle.loads(pickle.dumps(work(item))) for item in carried]

    reading = {**READING, **more}
    encode(files, tmp_path / "whole", **reading)
    encode(files, tmp_path / "parts", over=over, **reading)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_files_that_cannot_be_read_apart(files, tmp_path):
    one = next(files.iterdir())
    with pytest.raises(SettingError, match="encode it in one process"):
        encode(one, tmp_path / "s", over=map, target="kind")
    with pytest.raises(SettingError, match="encode it in one process"):
        encode(mixed(50), tmp_path / "s", over=map, target="kind")
    folder = tmp_path / "unlike"
    folder.mkdir()
    mixed(50).select("user", "click").write_csv(folder / "a.csv")
    mixed(50).select("user", "site", "click").write_csv(folder / "b.csv")
    with pytest.raises(DataError, match="columns"):
        encode(folder, tmp_path / "s", over=map, target="click")
    assert not (tmp_path / "s").exists()


class DiesOnce:
    """A callback that kills the worker it is called in, the first time."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, record: dict) -> None:
        if not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def alone(store, out, settings=None, **fitting) -> FieldwiseModel:
    running = Running(show=False, n_jobs=1)
    settings = TrainSettings(**(settings or SETTINGS))
    return train_table(store, out, running=running, settings=settings, **fitting)


def same(one: FieldwiseModel, other: FieldwiseModel, within: float = CLOSE) -> None:
    assert len(one.history) == len(other.history)
    for a, b in zip(one.history, other.history, strict=True):
        assert abs(a["loss"] - b["loss"]) < 1e-6
        assert abs(a["train_loss"] - b["train_loss"]) < 1e-6
    assert np.abs(one.rows - other.rows).max() < within


@pytest.mark.parametrize(("n", "groups"), [(1, 1), (2, 1), (3, 1), (4, 1), (2, 2), (4, 2)])
def test_many_workers_are_one(stores, tmp_path, n, groups):
    """Every objective, lists, numbers, weights and bounds, of every grid."""
    cases = {
        "plain": {"data": "plain", "rank": 4},
        "click": {"data": "click", "rank": 4},
        "kind": {"data": "kind", "rank": 3},
        "weighted": {"data": "click", "rank": 3, "combine": "weighted"},
        "vote": {"data": "plain", "rank": 3, "combine": "weighted_vote"},
        "members": {"data": "plain", "rank": 3, "n_members": 2},
        "bounded": {
            "data": "plain",
            "rank": 4,
            "settings": {**SETTINGS, "max_variance": 0.5, "max_mean": 0.5, "reg_every": 3},
        },
    }
    if (n, groups) not in ((2, 1), (4, 2)):
        cases = {name: cases[name] for name in ("plain", "click")}
    given = [
        {
            **{"settings": SETTINGS, **case},
            "data": str(stores / case["data"]),
            "out": str(tmp_path / name),
            "n_groups": groups,
        }
        for name, case in cases.items()
    ]
    launched(n, {"cases": given})
    for name, case in cases.items():
        fitting = {k: v for k, v in case.items() if k != "data"}
        truth = alone(stores / case["data"], tmp_path / f"one-{name}", **fitting)
        same(FieldwiseModel.load(tmp_path / name), truth)


@pytest.mark.parametrize(
    ("groups", "case"),
    [
        (1, {"combine": "vote", "bounds": {"max_variance": 0.5}}),
        (2, {"bounds": {"weight_decay": 0.01}}),
        (2, {"combine": "weighted", "bounds": {}}),
    ],
    ids=["columns", "rows", "weighted rows"],
)
def test_gpus_share_columns_and_rows_too(tmp_path, groups, case):
    """The GPU's kernels, interpreted unless there is one. The last batch is of a single row, which
    one of two groups has nothing of."""
    pytest.importorskip("triton", reason="the package triton is not installed")
    synthetic([12, 30, 8], 200, seed=1).to_store(tmp_path / "s")
    settings = {**SETTINGS, "epochs": 1, "reg_every": 2, **case.pop("bounds")}
    n_rows = alone(tmp_path / "s", tmp_path / "rows", settings, rank=3).settings["rows"]
    settings["batch_size"] = next(size for size in range(20, 90) if n_rows % size == 1)
    about = {"data": str(tmp_path / "s"), "out": str(tmp_path / "m"), "device": "cuda"}
    fitting = {"rank": 3, "settings": settings, **case}
    interpreted = {} if gpu_is_here() else {"TRITON_INTERPRET": "1"}
    launched(2, {"cases": [{**about, **fitting, "n_groups": groups}]}, **interpreted)
    same(FieldwiseModel.load(tmp_path / "m"), alone(tmp_path / "s", tmp_path / "one", **fitting))


def test_steps_are_tried_and_epochs_stopped_alike(stores, tmp_path):
    """What is decided on the way is decided by all: steps, epochs, the best of them. The first
    worker alone tells of it."""
    settings = {"epochs": 12, "patience": 1, "batch_size": 256}
    case = {"data": str(stores / "plain"), "out": str(tmp_path / "m"), "settings": settings}
    launched(2, {"cases": [{**case, "logs": str(tmp_path / "logs")}]})
    found = FieldwiseModel.load(tmp_path / "m")
    truth = alone(stores / "plain", tmp_path / "one", settings)
    assert found.settings["learning_rate"] == truth.settings["learning_rate"]
    assert len(found.history) == len(truth.history)
    assert abs(found.metrics["logloss"] - truth.metrics["logloss"]) < 1e-6
    assert not (tmp_path / ".m.work").exists()
    (logs,) = (tmp_path / "logs").iterdir()
    told = [events(folder)[0] for folder in sorted(logs.iterdir()) if folder.name != "final"]
    assert len(told) > 1
    losses = [[value for _, value in curves["loss"]] for curves in told]
    kept = [record["loss"] for record in found.history]
    assert any(len(x) == len(kept) and np.allclose(x, kept, rtol=1e-6) for x in losses)
    ((_, loss),) = events(logs / "final")[0]["final/logloss"]
    assert loss == pytest.approx(found.metrics["logloss"], rel=1e-6)


@pytest.fixture(scope="module")
def undisturbed(stores, tmp_path_factory):
    """The case of a run by two workers, and the rows it gives where nothing happens to it."""
    case = {"data": str(stores / "plain"), "rank": 4, "settings": SETTINGS}
    out = tmp_path_factory.mktemp("undisturbed") / "m"
    launched(2, {"cases": [{**case, "out": str(out)}]})
    return case, FieldwiseModel.load(out).rows


def test_a_worker_is_killed_and_the_run_goes_on(undisturbed, tmp_path):
    """torchrun starts all again; they go on from the last checkpoint, to the same bits."""
    case, rows = undisturbed
    die = [1, 30, str(tmp_path / "died")]  # in the second epoch
    given = {"cases": [{**case, "out": str(tmp_path / "killed")}], "die": die}
    torchrun(tmp_path, 2, given, restarts=1)
    assert (tmp_path / "died").exists()
    assert np.array_equal(FieldwiseModel.load(tmp_path / "killed").rows, rows)


def apart(*given: dict, expect: int = 0, more: list[dict] | None = None) -> list[str]:
    """What workers write that were started with something else each, as on hosts of their own."""
    port, processes = str(free_port()), []
    for rank, one in enumerate(given):
        about = more[rank] if more else {}
        processes += started(len(given), {"cases": [one]}, [rank], MASTER_PORT=port, **about)
    return ended(processes, expect)


def test_hosts_do_not_count_alike_how_often_they_start(undisturbed, tmp_path):
    """torchrun on a host whose workers were well does not count that it starts them again."""
    case, rows = undisturbed
    case = {**case, "out": str(tmp_path / "m"), "connect": 20}
    launched(2, {"cases": [case], "die": [1, 30, str(tmp_path / "died")]}, expect=None)
    counts = [{"TORCHELASTIC_RESTART_COUNT": count} for count in "01"]
    apart(case, case, more=counts)
    assert np.array_equal(FieldwiseModel.load(tmp_path / "m").rows, rows)


@pytest.mark.parametrize(("before", "after", "groups"), [(2, 3, 1), (3, 2, 1), (2, 4, 2)])
def test_goes_on_with_another_number_of_workers(stores, tmp_path, before, after, groups):
    case = {"data": str(stores / "plain"), "rank": 4, "settings": SETTINGS}
    case["out"] = str(tmp_path / "m")
    given = {"cases": [case], "die": [1, 30, str(tmp_path / "died")]}
    said = launched(before, given, expect=None)
    assert "lost another one" in said[0]
    assert "--resume" in said[0]
    launched(after, {"cases": [{**case, "resume": True, "n_groups": groups}]})
    same(FieldwiseModel.load(tmp_path / "m"), alone(case["data"], tmp_path / "one", rank=4))


def test_a_shard_that_is_missing_or_altered_is_named(stores, tmp_path):
    case = {"data": str(stores / "plain"), "rank": 4, "settings": SETTINGS}
    case["out"] = str(tmp_path / "m")
    launched(2, {"cases": [case], "die": [1, 30, str(tmp_path / "died")]}, expect=None)
    folder = tmp_path / ".m.work" / "checkpoint"
    (shard,) = folder.glob("state-*-1.bin")
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    said = launched(2, {"cases": [{**case, "resume": True}]}, expect=2)
    assert f"{shard} is missing or was altered" in "".join(said)
    with pytest.raises(StoreError, match="checkpoint of a run of several workers"):
        resumed = Running(show=False, n_jobs=1, resume=True)
        train_table(
            case["data"],
            case["out"],
            running=resumed,
            rank=4,
            settings=TrainSettings(**SETTINGS),
        )
    shard.unlink()
    said = launched(3, {"cases": [{**case, "resume": True}]}, expect=2)
    assert f"{shard} is missing or was altered" in "".join(said)


def test_a_worker_that_does_not_come(stores, tmp_path):
    """A clear error in bounded time."""
    case = {"data": str(stores / "plain"), "out": str(tmp_path / "m"), "connect": 4}
    begun = time.monotonic()
    (process,) = started(2, {"cases": [case]}, ranks=[0])
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "worker 0 of 2 did not meet worker 1 at 127.0.0.1" in said
    assert time.monotonic() - begun < 40


def test_a_network_is_cut_in_two(undisturbed, tmp_path):
    """Two hosts that no longer reach each other: both end, in bounded time, with what to do; once
    the network is whole the run goes on, to the bits of one that was never cut."""
    case, rows = undisturbed
    case, mark = {**case, "out": str(tmp_path / "m")}, tmp_path / "waiting"
    with ExitStack() as stack:
        try:
            hosts, address, cable = stack.enter_context(two_hosts())
        except OSError as error:
            pytest.skip(f"no network namespaces can be made here: {error}")
        where = {"hosts": hosts, "MASTER_ADDR": address}
        given = {"cases": [{**case, "silent": 15}], "wait": [1, 30, str(mark)]}
        processes = started(2, given, **where)
        while not mark.exists():
            assert all(process.poll() is None for process in processes), "a worker ended early"
            time.sleep(0.05)
        cable("down")
        mark.unlink()
        begun = time.monotonic()
        said = ended(processes, expect=2)
        assert time.monotonic() - begun < 60
        for rank in (0, 1):
            assert f"worker {rank} of 2 lost another one" in said[rank]
            assert "--resume" in said[rank]
        cable("up")
        launched(2, {"cases": [{**case, "resume": True}]}, **where)
    assert np.array_equal(FieldwiseModel.load(tmp_path / "m").rows, rows)


def test_workers_with_other_data_are_refused(stores, tmp_path):
    synthetic([30, 200, 8, 5], 6000, seed=2).to_store(tmp_path / "other")
    data = [str(stores / "plain"), str(tmp_path / "other")]
    said = launched(2, {"cases": [{"data": data, "out": str(tmp_path / "m")}]}, expect=2)
    assert all("worker 1 has other data than worker 0" in text for text in said)


def test_workers_with_other_settings_or_folders_are_refused(stores, tmp_path):
    one = {"data": str(stores / "plain"), "out": str(tmp_path / "m"), "settings": SETTINGS}
    for changed, message in (
        ({"settings": {**SETTINGS, "seed": 4}}, "other settings than worker 0: seed is 4, not 3"),
        ({"resume": True}, "other settings than worker 0: resume is True, not False"),
        ({"reading": {"target": "y"}}, "other settings than worker 0: target is 'y', not None"),
        ({"n_groups": 2}, "other groups than worker 0: 2, not 1"),
        ({"out": str(tmp_path / "elsewhere" / "m")}, "must be on a disk that all workers share"),
    ):
        said = apart(one, {**one, **changed}, expect=2)
        assert all(f"worker 1 {'does not see' if 'out' in changed else 'has'}" in x for x in said)
        assert all(message in text for text in said)
        assert not list(tmp_path.iterdir())


LOST = """
import os, sys, time
from fieldwise.distributed import joined
from fieldwise.errors import TrainingError

with joined() as peers:
    if not peers.is_first:
        os._exit(9)
    try:
        peers.at_first(lambda: time.sleep(5))
    except TrainingError as error:
        print("error:", error, file=sys.stderr)
        os._exit(2)
"""


def test_a_worker_dies_while_the_first_one_works():
    """A message, no traceback of the thread that tells the others."""
    processes = started(2, {}, script=LOST)
    said = ended(processes, expect=None)[0]
    assert [process.returncode for process in processes] == [2, 9]
    assert "worker 0 of 2 lost another one" in said
    assert "Traceback" not in said


SLOW = """
import time
import numpy as np
from fieldwise.distributed import joined
from fieldwise.distributed import peers as module

module.PIECE = 8
with joined(connect=5, silent=3) as peers:
    found = np.zeros((3, 8, 2))

    def place(shard, start, part):
        time.sleep(0.5)
        found[shard, start : start + len(part)] = part

    peers.to_first(np.full((8, 2), peers.grid.rank, np.float32), place)
    assert not peers.is_first or (found == np.arange(3)[:, None, None]).all()
    if hasattr(peers, "each"):
        assert peers.each(lambda: time.sleep(5 * (peers.grid.rank == 2))) == [None] * 3
"""


def test_who_is_slow_is_not_lost():
    """Neither who waits for its turn, nor who waits for another's disk."""
    ended(started(3, {}, script=SLOW))


def test_the_first_worker_takes_long_to_make_the_model(stores, tmp_path):
    """Of a table that it keeps on disk, for no worker may have the memory for it."""
    slowly = """
from fieldwise.model import FieldwiseModel
make = FieldwiseModel.of.__func__

def of(cls, words, problem, fit, *more, **room):
    import time
    import numpy as np
    time.sleep(6)
    model = make(cls, words, problem, fit, *more, **room)
    on_disk = [isinstance(a.base, np.memmap) for a in (fit.table, model.rows)]
    print(on_disk, file=sys.stderr)
    return model

FieldwiseModel.of = classmethod(of)
given = """
    case = {"data": str(stores / "plain"), "out": str(tmp_path / "m"), "settings": SETTINGS}
    given = {"cases": [{**case, "silent": 4}]}
    said = ended(started(2, given, script=SCRIPT.replace("given = ", slowly, 1)))
    assert "[True, True]" in said[0]
    same(FieldwiseModel.load(tmp_path / "m"), alone(stores / "plain", tmp_path / "one"))
    assert not (tmp_path / ".m.work").exists()


def test_mistakes_are_refused_by_all(stores, tmp_path):
    data, out = str(stores / "plain"), str(tmp_path / "m")
    said = launched(5, {"cases": [{"data": data, "out": out}]}, expect=2)
    assert all("5 workers share the columns of 4 fields; take at most 4" in text for text in said)
    said = launched(2, {"cases": [{"data": data, "out": out, "preset": "glass"}]}, expect=2)
    assert all("one process" in text for text in said)
    for more, message in (
        ({"settings": {"half": True}}, "half=True keeps the table in bfloat16 on a GPU"),
        ({"device": "xpu"}, "device='xpu' is not one of auto, cpu, cuda"),
    ):
        said = launched(2, {"cases": [{"data": data, "out": out, **more}]}, expect=2)
        assert all(message in text for text in said)
    said = launched(2, {"cases": [{"data": str(tmp_path / "none"), "out": out}]}, expect=2)
    assert all("none" in text for text in said)
    said = launched(3, {"cases": [{"data": data, "out": out, "n_groups": 2}]}, expect=2)
    assert all("3 workers cannot be cut into 2 groups" in text for text in said)
    assert not (tmp_path / "m").exists()


def test_columns_are_shared_out_evenly():
    layout = Layout.of((50, 3000, 7, 400, 90, 20), rank_base=1.6)
    for n in (1, 2, 3):
        shares = share_columns(layout, n)
        assert sorted(i for fields in shares for i in fields) == list(range(6))
        widths = [sum(layout.widths[i] for i in fields) for fields in shares]
        assert max(widths) - min(widths) <= max(layout.widths)
    with pytest.raises(SettingError, match="7 workers share the columns of 6 fields"):
        share_columns(layout, 7)
    with pytest.raises(SettingError, match="5 workers cannot be cut into 2 groups"):
        Grid(0, 5, 2)


def test_shards_are_the_table():
    """Every entry of the table is some shard's, and no two shards'."""
    layout = Layout((4, 6, 3, 5), (2, 3, 0, 1), n_outputs=2)
    shares = share_columns(layout, 3)
    seen = np.zeros((layout.n_rows, layout.width), int)
    for fields in shares:
        width = shard_layout(layout, fields).width
        for rows, ours, theirs in column_pairs(layout, range(4), fields):
            seen[rows, ours] += 1
            assert theirs.stop <= width
    own = np.zeros_like(seen, bool)
    own[:, : layout.n_columns] = True
    own[:, layout.n_columns :] = True
    assert np.array_equal(seen == 1, own)
    assert seen.max() == 1


MACHINE = Machine(base=2e-3, slope=4e-5, due=1e-9, distinct=5000, batch=2048, threads=1)


def test_a_plan_adds_up():
    layout = Layout.of((1000,) * 12, rank=16)
    one = plan(layout, MACHINE)
    assert one.network_seconds == 0
    assert one.times_one == 1
    assert one.table_bytes == 4 * 4 * 12_012 * 208  # 193 columns, up to whole lines of 16
    two = plan(layout, MACHINE, n_workers=2)
    assert two.columns == 112
    assert two.sent_bytes == 4 * 2048
    assert two.step_seconds == pytest.approx(
        2e-3 + 112 * 4e-5 + 1e-9 * 12_012 * 112 / 1000 + 2 * (50e-6 + 4 * 1024 / 1.25e9)
    )
    slow = plan(layout, MACHINE, n_workers=2, network=Network(0.1, 1e9))
    assert slow.bottleneck == "the network"
    every = plans(layout, MACHINE, 4)
    assert sorted(one.n_groups for one in every) == [1, 2, 4]
    speeds = [one.rows_per_second for one in every]
    assert speeds == sorted(speeds, reverse=True)
    assert plans(layout, MACHINE, 13)[0].n_groups == 13  # more than fields: rows are shared out
    for about in ((-1.0,), (float("nan"),), (1e-3, 0.0), (1e-3, float("nan"))):
        with pytest.raises(SettingError, match="a network of latency"):
            Network(*about)


def test_a_plan_of_a_store_is_of_the_model_it_trains(tmp_path):
    """A score a class, and a linear number without columns of its own."""
    table = mixed().select("user", "site", "hour", "price", kind="k" + pl.col("kind"))
    encode(table, tmp_path / "s", target="kind", kinds={"price": "linear"})
    said = run("plan", tmp_path / "s", "--workers", 2, "--rank", 4, "--batch-size", 64, "--json")[0]
    (one,) = [found for found in json.loads(said) if found["n_groups"] == 1]
    assert one["columns"] == 32  # two fields of four columns a class, three biases: 27
    assert one["sent_bytes"] == 64 * 3 * 4
    errors = run("plan", tmp_path / "s", "--latency", "nan", expect=2)[1]
    assert "a network of latency nan" in errors


def test_a_plan_of_a_table_that_is_no_store_yet(tmp_path):
    """Lists and linear numbers among its columns; the same as of its store."""
    path = tmp_path / "t.parquet"
    mixed().select("user", "tags", "price", "click").write_parquet(path)
    encode(path, tmp_path / "s", target="click")
    about = ("--rank", 4, "--batch-size", 64, "--json")
    for words in ((path, "--target", "click"), (tmp_path / "s",)):
        (one, other) = json.loads(run("plan", *words, *about)[0])
        assert {one["columns"], other["columns"]} == {16}
        assert min(one["step_seconds"], other["step_seconds"]) > 0
    assert "say what to learn, with --target" in run("plan", path, expect=2)[1]
    assert {p.name for p in tmp_path.iterdir()} == {"t.parquet", "s"}


def test_this_machine_is_measured():
    """Of a step large enough that four times the columns take longer, whatever else runs."""
    table = synthetic([3000] * 24, 8192, seed=1)
    found = measured(table.block(0)[0], table.sizes, batch=4096, threads=1)
    assert found.slope > 0
    assert found.threads == 1
    assert 24 < found.distinct < 24 * 3000


@pytest.fixture(scope="module")
def ray():
    ray = pytest.importorskip("ray", reason="the package ray is not installed")
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have it
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_ray_trains_what_one_process_trains(ray, stores, tmp_path):
    """A worker is killed on the way: Ray starts them again."""
    from fieldwise.distributed.ray import train_on_ray

    mark = tmp_path / "died"
    running = Running(show=False, n_jobs=1, checkpoint_minutes=0, callbacks=(DiesOnce(mark),))
    found = train_on_ray(
        stores / "plain",
        tmp_path / "m",
        n_workers=2,
        rank=4,
        running=running,
        settings=TrainSettings(**SETTINGS),
    )
    same(found, alone(stores / "plain", tmp_path / "one", rank=4))
    assert mark.exists()
    assert not (tmp_path / ".m.work").exists()
    with pytest.raises(FieldwiseError, match="one process"):
        train_on_ray(stores / "plain", tmp_path / "n", n_workers=2, preset="glass", running=running)
    with pytest.raises(SettingError, match="ask for 64 processors"):
        train_on_ray(stores / "plain", tmp_path / "n", n_workers=64)
    with pytest.raises(SettingError, match="a GPU each; the cluster has 2, and room for 0"):
        about = Running(show=False, device="cuda")
        train_on_ray(stores / "plain", tmp_path / "n", n_workers=2, running=about)


@pytest.mark.filterwarnings("ignore")
def test_ray_does_not_try_again_what_that_would_not_mend(ray, stores, tmp_path):
    from fieldwise.distributed.ray import train_on_ray

    running = Running(show=False, n_jobs=1)
    settings = TrainSettings(**{**SETTINGS, "learning_rate": 1e30})
    with pytest.raises(FieldwiseError, match="^the loss is (nan|inf) in epoch 1"):
        train_on_ray(
            stores / "plain", tmp_path / "m", n_workers=2, running=running, settings=settings
        )
    assert not (tmp_path / ".m.ray").exists()


def test_a_ray_cluster_that_does_not_answer(monkeypatch):
    from fieldwise.distributed import ray as on_ray

    package = pytest.importorskip("ray", reason="the package ray is not installed")
    monkeypatch.setattr(package, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free_port()}")
    with pytest.raises(SettingError, match="no Ray cluster answers at RAY_ADDRESS='127.0.0.1"):
        on_ray._started(show=False)


def test_ray_workers_get_paths_that_are_whole(monkeypatch, tmp_path):
    from fieldwise.distributed.ray import _absolute

    monkeypatch.chdir(tmp_path)
    assert _absolute("parts/*.csv") == str(tmp_path / "parts" / "*.csv")
    assert _absolute("s3://bucket/clicks.store") == "s3://bucket/clicks.store"


@pytest.mark.filterwarnings("ignore")
def test_ray_encodes_the_same_store(ray, files, tmp_path):
    from fieldwise.distributed.ray import encode_on_ray

    encode(files, tmp_path / "whole", **READING)
    encode_on_ray(files, tmp_path / "parts", n_workers=2, **READING)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")
    bad = mixed(50).with_columns(kind=pl.lit(None, pl.String))
    folder = tmp_path / "bad"
    folder.mkdir()
    mixed(50).drop("tags").write_parquet(folder / "a.parquet")
    bad.drop("tags").write_parquet(folder / "b.parquet")
    with pytest.raises(DataError, match="target 'kind' is missing"):
        encode_on_ray(folder, tmp_path / "s", target="kind")
