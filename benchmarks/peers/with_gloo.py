"""torch.distributed's gloo, over TCP; in place, as its API is."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any, cast

from _turns import Array, Call, take_turns

NAME = "gloo"


def missing() -> str | None:
    """None where torch is installed."""
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def commands(world_size: int, folder: Path) -> list[list[str]]:
    """One process a rank, which meet in a file."""
    store = str(folder / "store")
    return [
        [sys.executable, __file__, str(rank), str(world_size), store] for rank in range(world_size)
    ]


def environment() -> dict[str, str]:
    """Stay on this machine."""
    return {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}


def main() -> None:
    """Be one rank."""
    rank, world_size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch: Any = importlib.import_module("torch")
    distributed: Any = importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size
    )

    def prepare(operand: Array) -> Call:
        tensor = torch.from_numpy(operand)

        def call() -> Array:
            distributed.all_reduce(tensor)
            return cast("Array", tensor.numpy())

        return call

    take_turns(rank, world_size, prepare)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
