"""Entry point of ``ftcomm-chaos``: sets up the streams before any import, as ``ftcomm-tracker``."""

from collections.abc import Callable

from ftcomm_tracker.entry import run_program


def main() -> None:
    """Run ``ftcomm-chaos``."""
    run_program("ftcomm-chaos", _load)


def _load() -> Callable[..., object]:
    from ftcomm_chaos.cli import main as command  # noqa: PLC0415 - see `ftcomm_tracker.entry`

    return command
