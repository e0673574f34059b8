"""What goes wrong around a command: no room, no right to write, no memory, other hands on its
files, a clock that jumps, a signal. The message is clear, and nothing is half done."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from commands import run
from kills import CASES, READERS, Case, names, table

ALONE = [case for case in CASES if case.workers == 1 and "best" not in case.name]
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
