"""Workers of a distributed run as a test starts them: processes of their own, on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["ended", "free_port", "launched", "started", "torchrun", "two_hosts"]

# Every case is one model: train_table's arguments by name, TrainSettings apart. `die` is a worker
# and the number of its steps after which it is killed, once: the file it names is there then. After
# those of `wait` it makes its file, and goes on when it is gone.
SCRIPT = """
import json, os, signal, sys, time, warnings
from pathlib import Path
import fieldwise.distributed as distributed
from fieldwise.callbacks import TensorBoardLogger
from fieldwise.engines.sharded import ShardedEngine
from fieldwise.errors import FieldwiseError
from fieldwise.train import Running, TrainSettings

from interpreted import mended

warnings.simplefilter("ignore")
mended()
given = json.loads(sys.argv[1])
rank = int(os.environ["RANK"])
how = next((how for how in ("die", "wait") if how in given), None)
if how:
    worker, after, mark = given[how]
    step = ShardedEngine._forward

    def watched(engine, *data):
        if rank == worker and engine.n_steps == after and not Path(mark).exists():
            Path(mark).touch()
            if how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            while Path(mark).exists():
                time.sleep(0.05)
        return step(engine, *data)

    ShardedEngine._forward = watched
for case in given["cases"]:
    about = {name: case.pop(name) for name in ("resume", "device") if name in case}
    if "logs" in case:
        about["callbacks"] = [TensorBoardLogger(case.pop("logs"))]
    running = Running(show=False, checkpoint_minutes=0, **about)
    settings = TrainSettings(**case.pop("settings", {}))
    data = case.pop("data")
    data = data[rank] if isinstance(data, list) else data
    try:
        distributed.train_table(
            data, case.pop("out"), running=running, settings=settings, **case
        )
    except FieldwiseError as error:
        print("error:", error, file=sys.stderr)
        os._exit(2)
"""


@contextmanager
def two_hosts() -> Iterator[tuple[list[str], str, Callable[[str], None]]]:
    """Two network namespaces with a cable between them: their names, the address of the first, and
    what sets the cable `down` or `up`. Raises OSError where the machine does not allow that."""
    names, ends = [[f"{kind}{os.getpid()}{side}" for side in "ab"] for kind in ("fw", "fv")]

    def ip(*words: str) -> None:
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip())

    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for k, (name, end) in enumerate(zip(names, ends, strict=True)):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.0.{k + 1}/24", "dev", end)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", end, "up")
        yield names, "10.77.0.1", lambda state: ip("-n", names[1], "link", "set", ends[1], state)
    finally:
        for name in names:  # and the cable with them
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started(
    n: int,
    given: dict[str, Any],
    ranks: list[int] | None = None,
    hosts: list[str] | None = None,
    script: str = SCRIPT,
    **more: str,
) -> list[subprocess.Popen]:
    """Some of n workers, all if not said which, as a launcher starts them; on hosts of their own,
    which are network namespaces of this machine, or all on it. `script` is what they do with what
    is given, `more` is environment."""
    port = free_port()
    out = []
    for rank in range(n) if ranks is None else ranks:
        env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(n),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(n),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
            **more,
        }
        there = ["ip", "netns", "exec", hosts[rank]] if hosts else []
        command = [*there, sys.executable, "-c", script, json.dumps(given)]
        out.append(
            subprocess.Popen(
                command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    return out


def launched(n: int, given: dict[str, Any], expect: int | None = 0, **more: Any) -> list[str]:
    """What n workers write on standard error, once they all have ended; `more` as in `started`."""
    return ended(started(n, given, **more), expect)


def ended(processes: list[subprocess.Popen], expect: int | None = 0) -> list[str]:
    """What these write on standard error; they are killed if they do not end by themselves."""
    try:
        said = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if expect is not None:
        assert [process.returncode for process in processes] == [expect] * len(processes), (
            "\n".join(said)
        )
    return said


def torchrun(folder: Path, n: int, given: dict[str, Any], restarts: int) -> str:
    """The same under torchrun, which starts all workers again where one died."""
    script = folder / "worker.py"
    script.write_text(SCRIPT)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n)),
        *("--max-restarts", str(restarts), "--master-port", str(free_port())),
        *(str(script), json.dumps(given)),
    ]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        command, env=env, text=True, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr
