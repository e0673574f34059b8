"""Training past one process: columns are shared out between workers, which exchange one float a
sample and output.

    grid      who holds what                 meeting   how workers find each other
    peers     what they tell each other      run       train, by all of them
    shards    their checkpoints              ray       the same on a Ray cluster
    planning  what it takes
"""

from typing import TYPE_CHECKING

from .._lazy import lazily

if TYPE_CHECKING:
    from .grid import Grid, share_columns
    from .meeting import joined, world
    from .peers import TorchPeers
    from .run import train_sharded, train_table

_WHERE = {
    "Grid": ".grid",
    "TorchPeers": ".peers",
    "joined": ".meeting",
    "share_columns": ".grid",
    "train_sharded": ".run",
    "train_table": ".run",
    "world": ".meeting",
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
