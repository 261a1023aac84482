"""ftcomm without its log: what keeping results for replay costs."""

from pathlib import Path

from peers import with_ftcomm

NAME = "ftcomm, replay off"
missing = with_ftcomm.missing
environment = with_ftcomm.environment


def commands(world_size: int, folder: Path) -> list[list[str]]:
    """As `with_ftcomm`, but nothing is kept."""
    return [with_ftcomm.launcher(world_size, folder, "--replay", "off")]
