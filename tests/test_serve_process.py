"""`fieldwise serve` as it runs: workers, swaps under load, slow clients, signals, refusals."""

from __future__ import annotations

import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fieldwise import FieldwiseModel
from serving import clicks, fitted, free_port, read, rows_of, serving

STREAM = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def two() -> tuple[FieldwiseModel, FieldwiseModel]:
    return fitted("plain"), fitted("plain", seed=1)


@pytest.fixture
def path(two, tmp_path) -> Path:
    return two[0].save(tmp_path / "m")


class Load(threading.Thread):
    """Asks for one row after the other over a kept connection, until told to stop."""

    def __init__(self, port: int, rows: list[dict]) -> None:
        super().__init__()
        self._port, self._rows = port, rows
        self._end = threading.Event()
        self.answers: list[tuple[int, int, dict]] = []
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)) as asked:
                k = 0
                while not self._end.is_set():
                    body = json.dumps({"rows": [self._rows[k % len(self._rows)]]})
                    asked.request("POST", "/predict", body)
                    status, found = read(asked.getresponse())
                    self.answers.append((k % len(self._rows), status, found))
                    k += 1
        except (OSError, http.client.HTTPException) as error:
            self.problem = error

    def stop(self) -> None:
        self._end.set()
        self.join(60)


def ids_seen(server, n=40) -> set[str]:
    """Of workers that answer."""
    return {server.ask("GET", "/ready")[1]["model"] for _ in range(n)}


def wait_for(what, seconds=30.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


def test_models_are_swapped_under_load_and_no_request_fails(two, path):
    rows = rows_of(two[0], 10)
    with serving(path, "--workers", 2, "--poll", 0.1) as server:
        loads = [Load(server.port, rows) for _ in range(4)]
        for load in loads:
            load.start()
        ids = [ids_seen(server).pop()]
        for k in range(1, 5):
            two[k % 2].save(path, overwrite=True)
            wait_for(lambda k=k: len(found := ids_seen(server)) == 1 and found != {ids[-1]})
            ids.append(ids_seen(server).pop())
        for rubbish in (_rubbish_header, _cut_table, _other_bytes):
            rubbish(path)
            wait_for(lambda: server.ask("GET", "/health")[1]["status"] == "degraded")
            time.sleep(0.3)
        for load in loads:
            load.stop()
    assert ids[0] == ids[2] == ids[4] != ids[1] == ids[3]
    assert [load.problem for load in loads] == [None] * 4
    answers = [answer for load in loads for answer in load.answers]
    assert Counter(status for _, status, _ in answers) == {200: len(answers)}
    assert len(answers) > 100
    # Every answer is that of the model it names.
    meant = {ids[k]: [float(two[k].decision_function(row)[0]) for row in rows] for k in range(2)}
    for k, _, found in answers:
        z = found["predictions"][0]["score"]
        assert z == pytest.approx(meant[found["model"]][k], rel=1e-5, abs=1e-6)
    assert {found["model"] for _, _, found in answers} == set(meant)


def _rubbish_header(path: Path) -> None:
    (path / "model.json").write_bytes(b"\0" * 1000)


def _cut_table(path: Path) -> None:
    """In place: whoever has it mapped would fall over."""
    os.truncate(path / "table.safetensors", 10)
    (path / "model.json").write_text("{}")


def _other_bytes(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    for name in ("model.json", "table.safetensors", "vocabulary.parquet"):
        (path / name).write_bytes(os.urandom(5000))


def test_any_worker_counts_for_all(two, path):
    rows = rows_of(two[0], 3)
    rows[0]["site"] = "never seen"
    with serving(path, "--workers", 2, "--poll", 0.1) as server:
        for _ in range(60):
            assert server.ask("POST", "/predict", {"rows": rows})[0] == 200
        time.sleep(0.5)  # what rows held is told with the next look
        for _ in range(8):
            status, text = server.ask("GET", "/metrics")
            assert status == 200
            found: Counter = Counter()
            for family in text_string_to_metric_families(text.decode()):
                for sample in family.samples:
                    if sample.labels.get("path", "/predict") == "/predict":
                        found[sample.name] += sample.value
            assert found["fieldwise_requests_total"] == 60
            assert found["fieldwise_request_seconds_count"] == 60
            assert found["fieldwise_rows_total"] == 180
            assert found["fieldwise_unseen_values_total"] == 60
            assert found["fieldwise_model_loads_total"] == 2
            assert found["fieldwise_model_info"] == 1


def test_slow_clients_are_let_go_and_others_are_served(two, path):
    rows = rows_of(two[0], 1)
    with serving(path, "--timeout", 1, "--header-timeout", 0.5) as server:
        silent, slow_head, slow_body = server.open(), server.open(), server.open()
        slow_head.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-")
        slow_body.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert server.ask("POST", "/predict", {"rows": rows})[0] == 200
        assert answered(silent).startswith(b"HTTP/1.1 408")
        assert answered(slow_head).startswith(b"HTTP/1.1 408")
        rubbish = server.open()
        rubbish.sendall(b"rubbish\r\n\r\n")
        refused = answered(rubbish)
        assert refused.startswith(b"HTTP/1.1 400")
        assert b"\r\nx-content-type-options: nosniff\r\ncache-control: no-store\r\n" in refused
        assert json.loads(refused.partition(b"\r\n\r\n")[2])["error"]
        said = answered(slow_body)
        assert said.startswith(b"HTTP/1.1 408")
        assert b"more than 1 seconds" in said
        assert server.ask("POST", "/predict", {"rows": rows})[0] == 200


def answered(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    with connection:
        while piece := connection.recv(65536):
            found += piece
    return found


def test_endless_headers_and_bodies_are_refused(two, path):
    with serving(path, "--max-body", 0.1) as server:
        with server.open() as headers:
            headers.sendall(b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 60_000)
            headers.settimeout(0.3)
            with pytest.raises(TimeoutError):  # so many may be
                headers.recv(1)
            headers.sendall(b"y" * 10_000)
            headers.settimeout(30)
            assert headers.recv(65536).startswith(b"HTTP/1.1 431")
        with server.open() as chunked:
            start = b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            chunked.sendall(start + 11 * (b"2800\r\n" + b" " * 0x2800 + b"\r\n"))
            assert b" 413 " in chunked.recv(65536)
        status, said = server.ask("POST", "/predict", b" " * 100_001)
        assert status == 413
        assert "100,000 bytes" in said["error"]
        assert server.ask("GET", "/health")[0] == 200


CHUNKED = b"POST /predict HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def test_who_was_answered_may_not_stay_and_talk(path):
    """Neither slowly nor without end, where no request comes of it."""
    with serving(path, "--header-timeout", 0.5, FIELDWISE_TOKEN="s3cret") as server:
        slow, endless = server.open(), server.open()
        for connection in (slow, endless):
            connection.sendall(CHUNKED)
            read_until(connection, b"Bearer TOKEN'\"}")
        slow.sendall(b"0\r\na: b\r\n")
        assert answered(slow).startswith(b"HTTP/1.1 408")
        endless.sendall(b"0\r\n" + b"a: b\r\n" * 11_000)
        read_until(endless, b"HTTP/1.1 431")
        endless.close()


def read_until(connection: socket.socket, text: bytes) -> None:
    found = b""
    while text not in found:
        piece = connection.recv(65536)
        assert piece, found
        found += piece


def test_a_body_that_comes_after_its_refusal_does_not_end_the_connection(path):
    token = {"FIELDWISE_TOKEN": "s3cret"}
    with serving(path, "--header-timeout", 0.5, **token) as server, server.open() as kept:
        kept.sendall(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        read_until(kept, b"Bearer TOKEN'\"}")
        kept.sendall(b"12345")
        time.sleep(1)
        kept.sendall(b"GET /ready HTTP/1.1\r\nhost: x\r\n\r\n")
        read_until(kept, b"HTTP/1.1 200")


def test_who_does_not_take_the_answer_is_let_go(path):
    with serving(path, "--timeout", 1) as server, server.open() as deaf:
        port = deaf.getsockname()[1]
        if not Path("/proc/net/tcp").exists():
            pytest.skip("the system does not tell its connections")
        deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: x\r\n\r\n" * 1500)
        assert _is_connected(server.port, port)
        wait_for(lambda: not _is_connected(server.port, port))
        assert server.ask("GET", "/ready")[0] == 200
        time.sleep(0.5)
    assert "Traceback" not in server.log  # of what was still to be written


def _is_connected(port: int, other: int) -> bool:
    """Whether the first port has an open connection to the other."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ends = [(line[1].split(":")[1], line[2].split(":")[1], line[3]) for line in lines]
    return (f"{port:04X}", f"{other:04X}", "01") in ends


@pytest.mark.parametrize("workers", [1, 2])
def test_told_to_end_it_finishes_what_it_began(workers, two, path, tmp_path):
    out = io.BytesIO()
    clicks(3, 2000).select(two[0].schema.columns).write_ipc_stream(out)
    body = out.getvalue()
    spool = tmp_path / "spool"
    spool.mkdir()
    with serving(path, "--workers", workers, TMPDIR=str(spool)) as server:
        assert len(list(spool.iterdir())) == 1
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.putrequest("POST", "/predict/batch")
        connection.putheader("Content-Type", STREAM)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:1000])
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        if workers == 1:
            wait_for(lambda: _is_deaf(server.port))
        else:  # the process that started them listens until they have ended
            time.sleep(1.5)
        connection.send(body[1000:])
        with closing(connection):
            status, found = read(connection.getresponse())
        assert status == 200
        assert len(found) > 2000 * 16
        assert server.wait() == 0, server.log
    assert "Traceback" not in server.log
    assert list(spool.iterdir()) == []


def _is_deaf(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) != 0


def test_a_token_from_the_environment(two, path):
    rows = {"rows": rows_of(two[0], 1)}
    with serving(path, FIELDWISE_TOKEN="s3cret") as server:
        assert server.ask("POST", "/predict", rows)[0] == 401
        right = {"Authorization": "Bearer s3cret"}
        assert server.ask("POST", "/predict", rows, right)[0] == 200
    assert "s3cret" not in server.log


def refused(*arguments: object) -> str:
    command = [sys.executable, "-m", "fieldwise", "serve", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def test_what_cannot_be_served_is_an_error_at_once(path, tmp_path):
    assert "is not there" in refused(tmp_path / "nothing")
    assert "--workers" in refused(path, "--workers", 0)
    assert "--max-body 0" in refused(path, "--max-body", 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in refused(path, "--port", port)
    (path / "table.safetensors").write_bytes(b"rubbish")
    said = refused(path, "--port", free_port(), "--workers", 2)
    assert f"{path / 'table.safetensors'} is cut short or was altered" in said


def test_a_worker_that_dies_is_replaced(two, path):
    rows = {"rows": rows_of(two[0], 1)}
    with serving(path, "--workers", 2) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        if not children.exists():
            pytest.skip("the system does not tell a process's children")
        before = set(children.read_text().split())
        workers = [pid for pid in before if _is_worker(pid)]
        assert len(workers) == 2
        (path / "model.json").write_bytes(b"rubbish")  # the new one serves the others' copy
        os.kill(int(workers[0]), signal.SIGKILL)

        def others():
            return {pid for pid in children.read_text().split() if _is_worker(pid)} - {workers[0]}

        # One that is still starting may take its time, and is waited for first.
        wait_for(lambda: len(others()) == 2, seconds=120)
        wait_for(lambda: server.ask("POST", "/predict", rows)[0] == 200)
        server.process.terminate()
        assert server.wait() == 0, server.log


def _is_worker(pid: str) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
