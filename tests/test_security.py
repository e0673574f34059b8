"""What is promised in SECURITY.md: nothing that a file or a request holds is run."""

from __future__ import annotations

import ast
import gzip
import io
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from starlette.testclient import TestClient

import fieldwise
from fieldwise import FieldwiseModel, SettingError, StoreError
from fieldwise.data.vocabulary import Vocabulary
from fieldwise.serve import create_app
from fieldwise.serve.gate import has_token
from fieldwise.updating.versions import being_changed, publish, rollback

SOURCE = Path(fieldwise.__file__).parent
# Modules that run what they read, or start programs.
NEVER_IMPORTED = {
    *("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"),
    *("subprocess", "pty", "code", "runpy", "xmlrpc", "telnetlib"),
}
NEVER_CALLED = {
    *("eval", "exec", "compile", "__import__", "torch.load", "torch.hub.load"),
    *("os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv"),
}
# Loads of ours that are known, each with why it is none of theirs.
KNOWN = {("files.py", "ctypes.CDLL(None)")}  # the C library of this process, for one call of Linux


def trees() -> list[tuple[str, ast.Module]]:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 100
    return [(str(p.relative_to(SOURCE)), ast.parse(p.read_text())) for p in files]


def test_no_module_that_runs_what_it_reads_is_imported():
    found = set()
    for name, tree in trees():
        for node in ast.walk(tree):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            found |= {(name, m) for m in modules if m.split(".")[0] in NEVER_IMPORTED}
    assert found == set()


def test_nothing_that_is_read_is_run():
    found = set()
    for name, tree in trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            asked = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
            if called in NEVER_CALLED or asked.get("shell") == "True":
                found.add((name, called))
            if asked.get("allow_pickle", "False") != "False":
                found.add((name, called))
            if called.endswith(("CDLL", "cdll.LoadLibrary", "dlopen")):
                first = ast.unparse(node.args[0]) if node.args else ""
                found |= {(name, f"{called}({first})")} - KNOWN
    assert found == set()


WATCHED = """
import sys, pickle, marshal
called = []
def by_numba(frame):
    while frame is not None and "/numba/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None
STARTS = {"os.system", "subprocess.Popen", "os.exec", "os.posix_spawn"}
def watch(event, arguments):
    if event not in STARTS | {"pickle.find_class", "ctypes.dlopen", "compile"}:
        return
    if event == "ctypes.dlopen" and not str(arguments[0]).startswith(sys.argv[1]):
        return
    if event == "compile" and not str(arguments[1]).startswith(sys.argv[1]):
        return
    if not by_numba(sys._getframe()):
        called.append((event, str(arguments)[:200]))
from starlette.testclient import TestClient
import fieldwise, fieldwise.serve, lightgbm, pyarrow.parquet, numba
sys.addaudithook(watch)
with TestClient(fieldwise.serve.create_app(sys.argv[1])) as client:
    assert client.get("/ready").status_code == 200
    row = {c["column"]: None for c in client.get("/schema").json()["fields"]}
    for body in ({"rows": [row]}, {"rows": [row] * 3}):
        assert client.post("/predict?explain=true", json=body).status_code == 200
print(called)
"""


@pytest.mark.parametrize("kind", ["plain", "best"])
def test_loading_and_serving_unpickles_nothing_and_starts_nothing(kind, models):
    """As Python itself tells of it (PEP 578). Numba keeps its own compiled kernels in pickles, next
    to our source or in the user's cache: no model brings one."""
    command = [sys.executable, "-W", "ignore", "-c", WATCHED, str(models[kind])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.stdout == "[]\n", done.stdout + done.stderr


UNPACKED = """
import sys
from pathlib import Path
from fieldwise import DataError, encode
try:
    encode(sys.argv[1], sys.argv[2], target="y")
except DataError as error:
    print(error)
# Not ru_maxrss, which a process inherits from the one that started it.
print(int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024)
"""


def test_a_small_archive_of_a_huge_row_is_refused_before_it_fills_memory(tmp_path):
    """A gigabyte in a megabyte: reading ends at the longest row there may be."""
    file, million = tmp_path / "bomb.csv.gz", gzip.compress(b"x" * (1 << 20))
    file.write_bytes(gzip.compress(b"a,y\nb,0\n") + 1024 * million)
    assert file.stat().st_size < 2 << 20
    command = [sys.executable, "-W", "ignore", "-c", UNPACKED, str(file), str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    said, megabytes = done.stdout.splitlines()
    assert "no end of a row within" in said
    assert int(megabytes) < 900  # 616 where it was measured
    assert list(tmp_path.iterdir()) == [file]


def test_a_vocabulary_of_more_rows_than_its_size_can_hold_is_refused(models, tmp_path):
    """Five million rows in some kilobytes; what they would take is never asked for."""
    model = FieldwiseModel.load(models["plain"])
    words = pl.read_parquet(models["plain"] / "vocabulary.parquet")
    file = io.BytesIO()
    words.head(1).select(pl.all().repeat_by(5_000_000).explode()).write_parquet(file)
    assert len(file.getvalue()) < 50_000
    with pytest.raises(StoreError, match=r"5,000,000 rows in .* bytes"):
        Vocabulary.from_bytes(model.schema, file.getvalue())


@pytest.mark.parametrize("name", ["../0001", "/etc", "0001/../0001", "\u00b2", "\x00"])
def test_a_version_is_a_number(models, tmp_path, name):
    path = shutil.copytree(models["plain"], tmp_path / "m")
    with being_changed(path) as real:
        publish(FieldwiseModel.load(real), real)
    with pytest.raises(SettingError, match="has no version"):
        rollback(path, to=name)


@pytest.mark.parametrize("token", ["s3cret", "naïve 日本", "x" * 1000])
def test_a_token_is_compared_as_bytes(token):
    def given(*values: bytes) -> bool:
        return has_token({"headers": [(b"authorization", v) for v in values]}, token)

    assert given(b"Bearer " + token.encode())
    wrong = (b"", b"Bearer ", token.encode(), b"Bearer " + token.encode()[:-1], b"\xff\xfe")
    for value in (*wrong, b"Bearer " + token.encode() + b"x", b"bearer " + token.encode()):
        assert not given(value)
    assert not given()


def test_answers_are_kept_by_nobody_and_are_what_they_say(models):
    with TestClient(create_app(models["plain"], token="s3cret")) as client:
        right = {"Authorization": "Bearer s3cret"}
        answers = [
            client.post("/predict", json={"rows": []}, headers=right),
            client.post("/predict", json={"rows": []}),
            client.post("/predict", content=b"{", headers=right),
            client.get("/schema", headers=right),
            client.get("/nothing", headers=right),
            client.get("/metrics", headers=right),
            client.get("/health"),
        ]
    assert [answer.status_code for answer in answers] == [200, 401, 400, 200, 404, 200, 200]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
