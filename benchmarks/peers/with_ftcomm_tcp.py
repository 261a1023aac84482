"""ftcomm kept to TCP, as its peers are."""

from pathlib import Path

from peers import with_ftcomm

NAME = "ftcomm TCP"
missing = with_ftcomm.missing
environment = with_ftcomm.environment


def commands(world_size: int, folder: Path) -> list[list[str]]:
    """As `with_ftcomm`, but by TCP within the host too."""
    return [with_ftcomm.launcher(world_size, folder, "--transport", "tcp")]
