"""The same run on Ray: its scheduler places the workers, and starts them again where one died."""

from __future__ import annotations

import logging
import shutil
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
from .meeting import world
from .run import train_table, work_folder

__all__ = ["encode_on_ray", "train_on_ray"]

RESTARTS = 5
REFUSAL = "refused.txt"


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
    """Train with so many workers of the cluster this process is in, or of one it starts.

    `data` and `out` are paths that every machine sees. Where a worker dies the run goes on from the
    last checkpoint, at most `restarts` times.
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
    if not running.resume:
        remove_folder(work_folder(out))
    aside = out.with_name(f".{out.name}.ray")  # what Ray keeps of a run
    shutil.rmtree(aside, ignore_errors=True)
    threads = running.n_jobs or max(1, int(ray.cluster_resources().get("CPU", 1)) // n_workers)
    asked = n_workers * threads
    if asked > ray.cluster_resources().get("CPU", 0):
        raise SettingError(
            f"{n_workers} workers of {threads} threads ask for {asked} processors and the cluster "
            f"has {ray.cluster_resources().get('CPU', 0):g}; ask for less"
        )
    loop = {
        "data": _absolute(data), "out": str(out), "reading": reading, "overwrite": overwrite,
        "n_groups": n_groups, "fitting": fitting, "refusal": str(aside / REFUSAL),
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
    except Exception as error:  # Ray has one for each way to fail
        raise TrainingError(
            f"the run on Ray failed {restarts + 1} times: {str(error)[:500]}. What was saved last "
            "is intact: start it again with --resume"
        ) from error
    refused = (aside / REFUSAL).read_text() if (aside / REFUSAL).exists() else None
    shutil.rmtree(aside, ignore_errors=True)
    if refused is not None:
        raise FieldwiseError(refused)
    return FieldwiseModel.load(out)


def _started(*, show: bool) -> Any:
    """Ray, in the cluster this process is in or one of its own."""
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "distributed") from error
    if not ray.is_initialized():
        ray.init(log_to_driver=show, logging_level=logging.WARNING)
    return ray


def _absolute(data: Any) -> Any:
    """A path as other machines have it."""
    is_path = isinstance(data, (str, Path)) and Path(data).exists()
    return str(Path(data).absolute()) if is_path else data


def _worker(given: dict[str, Any]) -> None:
    """What every worker does. A mistake is written down and not tried again."""
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
    except TrainingError:
        raise
    except FieldwiseError as error:  # the same one in all of them
        if (world() or (0, 1))[0]:
            return
        Path(given["refusal"]).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(given["refusal"]), str(error).encode())


def encode_on_ray(
    data: Any, out: str | Path, *, n_workers: int | None = None, **options: Any
) -> Store:
    """`encode` with every file of the table read by a task of the cluster, so many at a time; the
    store is the same bytes. `data` and `out` are paths that every machine sees."""
    ray = _started(show=False)
    at_once = n_workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
    if at_once < 1:
        raise SettingError(f"workers={n_workers} must be at least 1")

    def over(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        task = ray.remote(num_cpus=1, max_retries=RESTARTS)(_task)
        todo = (task.remote(work, item) for item in items)  # begun when asked for
        running = list(islice(todo, at_once))
        while running:
            found, said = ray.get(running.pop(0))
            if said is not None:
                raise DataError(said)
            running += islice(todo, 1)
            yield found

    out = str(out) if is_remote(out) else Path(out).absolute()
    return encode(data, out, over=over, **options)


def _task(work: Callable[[Any], Any], item: Any) -> tuple[Any, str | None]:
    """The result, or what is wrong with the table, which another try would not mend."""
    try:
        return work(item), None
    except FieldwiseError as error:
        return None, str(error)
