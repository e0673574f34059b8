"""Workers of a distributed run as a test starts them: processes of their own, on this machine."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["free_port", "launched", "started"]

# Every case is one model: train_table's arguments by name, TrainSettings apart. `die` is a worker
# and the number of its steps after which it is killed, once: the file it names is there then.
SCRIPT = """
import json, os, signal, sys, warnings
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
if "die" in given:
    worker, after, once = given["die"]
    step = ShardedEngine._forward

    def mortal(engine, *data):
        if rank == worker and engine.n_steps == after and not Path(once).exists():
            Path(once).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return step(engine, *data)

    ShardedEngine._forward = mortal
if len(given["cases"]) > 1:
    import torch.distributed
    torch.distributed.init_process_group("gloo")
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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started(
    n: int, given: dict[str, Any], ranks: list[int] | None = None, **more: str
) -> list[subprocess.Popen]:
    """Some of n workers, all if not said which, as a launcher starts them."""
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
        command = [sys.executable, "-c", SCRIPT, json.dumps(given)]
        out.append(
            subprocess.Popen(
                command, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    return out


def launched(n: int, given: dict[str, Any], expect: int | None = 0, **more: str) -> list[str]:
    """What n workers write on standard error, once they all have ended; `more` is environment."""
    processes = started(n, given, **more)
    try:
        said = [process.communicate(timeout=240)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if expect is not None:
        assert [process.returncode for process in processes] == [expect] * n, "\n".join(said)
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
