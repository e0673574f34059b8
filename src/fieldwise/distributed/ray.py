"""Training and encoding on Ray: it places the workers, and restarts them after one died."""

from __future__ import annotations

import logging
import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ..data.encoding import encode
from ..data.remote import is_remote
from ..data.store import Store
from ..errors import DataError, FieldwiseError, MissingExtra, SettingError, TrainingError
from ..files import remove_folder, write_atomically
from ..model import FieldwiseModel
from ..train import Running
from .peers import LostWorker
from .run import train_table, work_folder

__all__ = ["encode_on_ray", "train_on_ray"]

RESTARTS = 5
REFUSAL = "refused.txt"
CONNECT_SECONDS = 20.0


def train_on_ray(
    data: Any,
    out: str | Path,
    *,
    n_workers: int,
    n_groups: int = 1,
    reading: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    running: Running | None = None,
    restarts: int = RESTARTS,
    **fitting: Any,
) -> FieldwiseModel:
    """Train with `n_workers` on the Ray cluster this process is in, or on one it starts.

    `data` and `out` are paths that every machine sees. When a worker dies the run continues from
    the last checkpoint, at most `restarts` times.
    """
    if n_workers < 1:
        raise SettingError(f"workers={n_workers} must be at least 1")
    running = running or Running()
    ray = _started(show=running.show is not False)
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    out = Path(out).absolute()
    if out.exists() and not overwrite:
        raise SettingError(f"{out} is there already; set overwrite=True or choose another name")
    threads = _threads(ray, n_workers, running)
    if not running.resume:
        remove_folder(work_folder(out))
    aside = out.with_name(f".{out.name}.ray")  # Ray's own files of a run
    shutil.rmtree(aside, ignore_errors=True)
    refusal = aside / REFUSAL
    loop = {
        "data": _absolute(data), "out": str(out), "reading": reading, "overwrite": overwrite,
        "n_groups": n_groups, "fitting": fitting, "refusal": str(refusal),
        "running": replace(running, n_jobs=threads, resume=True),
    }  # fmt: skip
    trainer = TorchTrainer(
        _worker,
        train_loop_config=loop,
        scaling_config=ScalingConfig(
            num_workers=n_workers,
            resources_per_worker={"CPU": threads},
            use_gpu=running.device == "cuda",
        ),
        run_config=RunConfig(
            storage_path=str(aside),
            failure_config=FailureConfig(max_failures=restarts),
        ),
        torch_config=TorchConfig(backend="gloo"),
    )
    try:
        trainer.fit()
    except Exception as error:  # Ray has many kinds
        if not refusal.exists():
            raise TrainingError(
                f"the run on Ray failed {restarts + 1} times: {str(error)[:500]}. The last "
                "checkpoint is intact: start it again with --resume"
            ) from error
    refused = refusal.read_text() if refusal.exists() else None
    shutil.rmtree(aside, ignore_errors=True)
    if refused is not None:
        raise FieldwiseError(refused)
    return FieldwiseModel.load(out)


def _threads(ray: Any, n_workers: int, running: Running) -> int:
    """Threads per worker, so that all fit; raises if they cannot: Ray would wait forever."""
    with_gpu = running.device == "cuda"
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def room(threads: int) -> int:
        workers = [int(has.get("CPU", 0)) // threads for has in machines]
        if with_gpu:
            gpus = [int(has.get("GPU", 0)) for has in machines]
            workers = [min(pair) for pair in zip(workers, gpus, strict=True)]
        return sum(workers)

    n_cpus = int(ray.cluster_resources().get("CPU", 0))
    found = running.n_jobs or 1
    if running.n_jobs is None:
        shares = range(n_cpus // n_workers, 1, -1)
        found = next((threads for threads in shares if room(threads) >= n_workers), 1)
    if room(found) < n_workers:
        raise SettingError(
            f"{n_workers} workers of {found} threads ask for {n_workers * found} processors"
            f"{' and a GPU each' if with_gpu else ''}; the cluster has {n_cpus}, and room for "
            f"{room(found)} such workers; ask for less"
        )
    return found


def _started(*, show: bool) -> Any:
    """The module ray, connected to the cluster this process is in, or to a new one."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "distributed") from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            _reach(address)
            ray.init(log_to_driver=show, logging_level=logging.WARNING)
        except OSError as error:
            raise SettingError(
                f"no Ray cluster answers at RAY_ADDRESS={address!r}: {error}. Start one there, or "
                "unset RAY_ADDRESS to start one on this machine"
            ) from error
    return ray


def _reach(address: str) -> None:
    """Raise an OSError if nothing answers; Ray itself would try for many minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()


def _absolute(data: Any) -> Any:
    """A path or glob made absolute, for other machines; anything else as it is."""
    if is_remote(data) or not isinstance(data, (str, Path)):
        return data
    return str(Path(data).absolute())


def _worker(given: dict[str, Any]) -> None:
    """What every worker runs. Only a lost worker makes Ray try again: any other error is written to
    the file `refusal`."""
    refusal = Path(given["refusal"])
    if refusal.exists():  # a worker refused, and the others lost it
        return
    try:
        train_table(
            given["data"],
            given["out"],
            reading=given["reading"],
            overwrite=given["overwrite"],
            running=given["running"],
            n_groups=given["n_groups"],
            **given["fitting"],
        )
    except LostWorker:
        raise
    except FieldwiseError as error:
        refusal.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(refusal, str(error).encode())


def encode_on_ray(
    data: Any, out: str | Path, *, n_workers: int | None = None, **options: Any
) -> Store:
    """`encode`, with every file of the table read by a task of the cluster, `n_workers` at a time;
    the store is the same byte for byte. `data` and `out` are paths that every machine sees."""
    ray = _started(show=False)
    at_once = n_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    if at_once < 1:
        raise SettingError(f"workers={n_workers} must be at least 1")

    def over(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        task = ray.remote(num_cpus=1, max_retries=RESTARTS)(_task)
        todo = (task.remote(work, item) for item in items)  # each starts when it is drawn
        running = list(islice(todo, at_once))
        while running:
            try:
                found, said = ray.get(running.pop(0))
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError as error:  # Ray's, not the work's
                raise DataError(
                    f"a file could not be read on the cluster: {str(error).splitlines()[0]}"
                ) from error
            if said is not None:
                raise DataError(said)
            running += islice(todo, 1)
            yield found

    out = str(out) if is_remote(out) else Path(out).absolute()
    return encode(data, out, over=over, **options)


def _task(work: Callable[[Any], Any], item: Any) -> tuple[Any, str | None]:
    """The result, or the message of an error in the table, which a retry would not fix."""
    try:
        return work(item), None
    except FieldwiseError as error:
        return None, str(error)
