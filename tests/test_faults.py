"""What goes wrong around a command: no room, no right to write, no memory, other hands on its
files, a clock that jumps, a signal. The message is clear, and nothing is half done."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from commands import run
from fieldwise import DataError, SettingError, StoreError, cli, encode, synthetic
from fieldwise.cli.signals import signals_heard
from fieldwise.data.provisional import Reading
from fieldwise.fitting import train_table
from fieldwise.train import Running, TrainSettings
from fieldwise.updating import update_saved
from fieldwise.updating.versions import rollback, versions
from kills import CASES, READERS, Case, names, table

# One of every way to write; those left out write in the same ways, or take long.
LEFT_OUT = ("best", "workers", "explain", "sql", "python")
ALONE = [c for c in CASES if c.name != "train" and not any(word in c.name for word in LEFT_OUT)]
KEPT = (".m.work", "m.versions")  # what `train` may leave, to go on with; versions are whole


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A small disk, or a reason to skip."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", *options, "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"cannot mount a small disk: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> dict[str, Path]:
    """For every command a folder in which it can be run."""
    made: dict[tuple[str, ...], Path] = {}
    for case in ALONE:
        if case.ready not in made:
            folder = made[case.ready] = tmp_path_factory.mktemp("ready")
            table(2000, 0).write_csv(folder / "t.csv")
            table(800, 1).write_csv(folder / "u.csv")
            for line in case.ready:
                with pytest.MonkeyPatch.context() as patch:
                    patch.chdir(folder)
                    run(*line.split())
    return {case.name: made[case.ready] for case in ALONE}


def filled(disk: Path, *, room: int) -> Path:
    """A file that leaves so many bytes on a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        free = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - room))
    return ballast


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_disk_full(case: Case, ready, tmp_path, monkeypatch):
    """At whatever file the disk is full: said so, nothing left but what to go on with, the old
    result as it was; and with room the same command goes on."""
    with mounted(tmp_path / "disk", "-o", "size=8m") as disk:
        work = disk / "work"
        shutil.copytree(ready[case.name], work)
        monkeypatch.chdir(work)
        before, old = names(work), READERS[case.kind](work / case.out)
        command, room, failures = case.command.split(), 0, 0
        while True:
            ballast = filled(disk, room=room)
            code, errors = finished(*command)
            ballast.unlink()
            if code == 0:
                break
            assert (code, "the disk is full while writing" in errors) == (2, True), errors
            left = names(work) - before
            assert [n for n in left if not n.startswith(KEPT) or n.endswith(".tmp")] == []
            assert READERS[case.kind](work / case.out) == old
            failures += 1
            command = f"{case.command} {case.more}".split()
            room = 2 * room + 24 * 1024
        assert failures or case.name == "rollback"  # which makes links
        assert READERS[case.kind](work / case.out) not in (None, old)
        monkeypatch.chdir(tmp_path)


def finished(*arguments: str) -> tuple[int, str]:
    try:
        return 0, run(*arguments)[1]
    except AssertionError:
        return 2, run(*arguments, expect=2)[1]


@pytest.mark.parametrize("case", ALONE, ids=lambda case: case.name)
def test_read_only(case: Case, ready, tmp_path, monkeypatch):
    with mounted(tmp_path / "disk", "-o", "size=8m") as disk:
        work = disk / "work"
        shutil.copytree(ready[case.name], work)
        before, old = names(work), READERS[case.kind](work / case.out)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        monkeypatch.chdir(work)
        _, errors = run(*case.command.split(), expect=2)
        assert "Read-only file system" in errors
        assert len(errors.strip().splitlines()) == 1
        assert names(work) == before
        assert READERS[case.kind](work / case.out) == old
        monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("predict m u.csv --out none/p.csv", "there is no folder none; make it first"),
        ("predict m u.csv --out t.csv/p.csv", "t.csv is a file"),
        ("export m --to sql --out none/e.sql", "there is no folder none; make it first"),
        ("compress m --validation u.csv --out t.csv/c", "t.csv is a file"),
        ("train t.csv --target late --out t.csv/m --quiet", "t.csv is a file"),
        ("encode t.csv --target late --out t.csv/s --quiet", "t.csv is a file"),
        ("explain m u.csv --out none/r.html", "there is no folder none; make it first"),
    ],
)
def test_no_folder_to_write_to(command, message, ready, tmp_path, monkeypatch):
    work = Path(shutil.copytree(ready["update"], tmp_path / "work"))
    before = names(work)
    monkeypatch.chdir(work)
    assert message in run(*command.split(), expect=2)[1]
    assert names(work) == before


# Other hands on the files -------------------------------------------------------------------------


def appended(path: Path) -> None:
    with path.open("a") as file:
        file.write("u1,s1,0.5,1\n")


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def put_anew(path: Path) -> None:
    table(2000, 5).write_csv(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (appended, "changed while it was read"),
        (cut, "changed while it was read|values where there are 4 columns"),  # of half a row
        (put_anew, "changed while it was read"),
        (Path.unlink, "cannot be read: No such file"),
    ],
)
def test_a_table_that_is_changed_between_two_readings(change, message, tmp_path, monkeypatch):
    """Of the first its kinds are learned, of the second its codes."""
    table(2000, 0).write_csv(tmp_path / "t.csv")
    read = Reading.of

    def changed(*arguments, **options):
        change(tmp_path / "t.csv")
        return read(*arguments, **options)

    monkeypatch.setattr(Reading, "of", changed)
    with pytest.raises(DataError, match=message):
        encode(tmp_path / "t.csv", tmp_path / "s", target="late")
    assert not (tmp_path / "s").exists()


def test_new_rows_that_are_changed_while_they_are_read(ready, tmp_path, monkeypatch):
    work = Path(shutil.copytree(ready["update"], tmp_path / "work"))
    before = READERS["model"](work / "m")
    read = Reading.of

    def changed(*arguments, **options):
        appended(work / "u.csv")
        return read(*arguments, **options)

    monkeypatch.setattr(Reading, "of", changed)
    with pytest.raises(DataError, match=r"u\.csv was changed while it was read"):
        update_saved(work / "m", work / "u.csv")
    assert READERS["model"](work / "m") == before


def test_a_run_goes_on_with_the_table_it_was_begun_with(tmp_path):
    path, out = tmp_path / "t.csv", tmp_path / "m"
    table(2000, 0).write_csv(path)

    def stopped(record):
        raise KeyboardInterrupt

    def run_of(data, *, resume=True, callbacks=(), **reading):
        running = Running(resume=resume, callbacks=callbacks, keeps_best=False)
        settings = TrainSettings(epochs=2, batch_size=128, learning_rate=0.1)
        reading = {"target": "late", **reading}
        return train_table(data, out, reading=reading, running=running, settings=settings, rank=2)

    with pytest.raises(KeyboardInterrupt):
        run_of(path, resume=False, callbacks=[stopped])
    with pytest.raises(SettingError, match="a run on another table, or one read with other"):
        run_of(path, min_count=3)
    table(1900, 0).write_csv(tmp_path / "other.csv")
    with pytest.raises(SettingError, match="a run on another table, or one read with other"):
        run_of(tmp_path / "other.csv")
    path.unlink()  # the encoded table is all that is needed
    run_of(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "other.csv"]


def test_a_store_that_is_cut_short_while_it_is_mapped(tmp_path):
    """An error, where touching what is gone would end the process."""
    store = synthetic([30, 8], 200_000).to_store(tmp_path / "s")
    store.read(0, 1000)
    (codes,) = (tmp_path / "s").glob("codes-*.bin")
    os.truncate(codes, codes.stat().st_size // 2)
    with pytest.raises(StoreError, match=r"codes-1\.bin was cut short while it was read"):
        store.read(190_000, 200_000)


def test_a_store_that_is_replaced_stays_what_it_was_to_who_has_it_open(tmp_path):
    data = synthetic([30, 8], 5000)
    store = data.to_store(tmp_path / "s")
    before = store.read(0, 5000)["codes"].copy()
    for file in (tmp_path / "s").iterdir():
        file.unlink()
    assert np.array_equal(store.read(0, 5000)["codes"], before)


# Clocks -------------------------------------------------------------------------------------------


def test_versions_are_numbered_whatever_the_clock_says(ready, tmp_path):
    """A model from the future, and then one from the past."""
    work = Path(shutil.copytree(ready["update"], tmp_path / "work"))
    ids = []
    for seconds in (4e9, 0.0, 2e9):
        os.utime(work / "m" / "model.json", (seconds, seconds))
        ids.append(versions(work / "m")[-1].id)
        update_saved(work / "m", work / "u.csv")
    assert [v.number for v in versions(work / "m")] == ["0001", "0002", "0003", None]
    assert [v.id for v in versions(work / "m")][:3] == ids
    assert rollback(work / "m").id == ids[-1]


def test_a_clock_that_goes_back_stops_no_training(tmp_path, monkeypatch):
    """Checkpoints and limits of time go by a clock that only goes on."""
    monkeypatch.setattr(time, "time", lambda: -1e9)
    running = Running(checkpoint=tmp_path / "c", checkpoint_minutes=0)
    synthetic([30, 8], 3000).to_store(tmp_path / "s")
    found = train_table(
        tmp_path / "s",
        tmp_path / "m",
        running=running,
        settings=TrainSettings(epochs=1, batch_size=128, learning_rate=0.1),
        rank=2,
    )
    assert np.isfinite(found.rows).all()


# Memory and signals, of processes of their own ----------------------------------------------------


def started(folder: Path, *arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "fieldwise", *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


KEPT_NOWHERE = """
import os
from numba.core.caching import CacheImpl
CacheImpl._locator_classes = [c for c in CacheImpl._locator_classes if "UserProvided" in str(c)]
import fieldwise.crosses._kernels, fieldwise.engines.cpu, fieldwise.explain._kernels, numba
print(numba.config.CACHE_DIR, oct(os.stat(numba.config.CACHE_DIR).st_mode & 0o777))
"""


def test_nowhere_to_keep_compiled_code(tmp_path):
    """As in a container without a home: it is compiled anew, and said so once."""
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    environment["TMPDIR"] = str(tmp_path)
    command = [sys.executable, "-c", KEPT_NOWHERE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    folder, mode = done.stdout.split()
    assert (Path(folder).parent, mode) == (tmp_path, "0o700")
    assert done.stderr.count("UserWarning") == done.stderr.count("Set NUMBA_CACHE_DIR") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not hold to a limit of memory")
def test_too_little_memory(tmp_path):
    """Of a table of parameters past the limit: one line, and nothing left behind."""
    synthetic([300_000, 30], 2000).to_store(tmp_path / "s")
    limit = 3 << 30
    process = started(
        tmp_path,
        *("train", "s", "--out", "m", "--rank", "1000", "--threads", "1", "--quiet"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        env=os.environ | {"POLARS_MAX_THREADS": "1"},
    )
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2, errors
    assert "error: there is not enough memory" in errors
    assert len(errors.strip().splitlines()) == 1
    assert not (tmp_path / "m").exists()


def test_a_thread_that_cannot_be_started_lacks_memory(monkeypatch, capsys):
    def refuse() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(cli, "app", refuse)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: there is not enough memory")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timer to hear it again by")
def test_ctrl_c_leaves_no_lock_of_pythons_threads_taken():
    """It comes where a lock was taken and nobody has noted that yet; it is heard inside."""

    class Lock:
        acquire = release = __exit__ = staticmethod(lambda *_: None)
        __enter__ = partial(signal.raise_signal, signal.SIGINT)

    inside = False
    with signals_heard(), pytest.raises(KeyboardInterrupt), threading.Condition(Lock()):
        inside = True
        time.sleep(20)
    assert inside


WAITS = """
import os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from fieldwise.cli.signals import signals_heard

def tell():
    time.sleep(0.3)
    if sys.argv[2] == "main":
        os.kill(os.getpid(), signal.SIGINT)
    else:  # who hears it does not interrupt the wait of the main thread
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=tell).start()
begun, slow = time.monotonic(), threading.Thread(target=time.sleep, args=[3], daemon=True)
with signals_heard(), ThreadPoolExecutor(1) as pool:
    try:
        if sys.argv[1] == "result":
            pool.submit(time.sleep, 3).result()
        elif sys.argv[1] == "event":
            threading.Event().wait(3)
        else:
            slow.start()
            slow.join()
    except KeyboardInterrupt:
        assert time.monotonic() - begun < 2.5
        print("heard")
"""


@pytest.mark.parametrize("thread", ["main", "other"])
@pytest.mark.parametrize("what", ["result", "event", "join"])
def test_ctrl_c_is_heard_while_python_waits(what, thread):
    command = [sys.executable, "-W", "ignore", "-c", WAITS, what, thread]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("what", ["encode", "train"])
def test_a_signal_ends_a_command(what, how, tmp_path):
    """With a line that says so and the usual code; nothing is left but what to go on with."""
    table(400_000, 0).write_csv(tmp_path / "t.csv")
    out = "m" if what == "train" else "s"
    command = (what, "t.csv", "--target", "late", "--out", out, "--quiet")
    process = started(
        tmp_path,
        *command,
        # A shell's background jobs, and what they start, do not hear SIGINT unless told to.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    where = tmp_path / (".m.work/store" if what == "train" else "s")
    while not where.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(how)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + how, errors
    assert errors.startswith("interrupted" if how == signal.SIGINT else "terminated")
    assert len(errors.strip().splitlines()) == 1
    left = {p.name for p in tmp_path.iterdir()}
    assert left - {".m.work"} == {"t.csv"}
    assert not list(tmp_path.rglob("*.tmp"))
    assert not list(tmp_path.rglob("provisional-*"))
