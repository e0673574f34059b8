"""Training past one process: columns are shared out between workers, which exchange one float a
sample and output.

    grid      who holds what                 peers     what workers tell each other
    run       train, by all of them          shards    their checkpoints
    ray       the same on a Ray cluster      planning  what it takes
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .grid import Grid, share_columns
    from .peers import TorchPeers, joined, world
    from .run import train_sharded, train_table

_WHERE = {
    "Grid": ".grid",
    "TorchPeers": ".peers",
    "joined": ".peers",
    "share_columns": ".grid",
    "train_sharded": ".run",
    "train_table": ".run",
    "world": ".peers",
}

__all__ = [
    "Grid",
    "TorchPeers",
    "joined",
    "share_columns",
    "train_sharded",
    "train_table",
    "world",
]

__getattr__ = lazily(__name__, _WHERE)


def __dir__() -> list[str]:
    return __all__
