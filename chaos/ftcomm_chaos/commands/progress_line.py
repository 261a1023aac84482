"""Lines of a session on standard error; below them, the progress of the run that goes on now."""

import time
from collections.abc import Callable

import click

from ftcomm_chaos.report.escaping import printable
from ftcomm_tracker.launcher.live_area import LiveArea

LOG_EVERY_S = 60.0  # of a session whose output is not a terminal


class ProgressLine:
    """Writes lines that stay, and one line of progress.

    On a terminal the progress is redrawn in place.  Elsewhere, as in a log of CI, it becomes a line
    of its own once in `LOG_EVERY_S`.
    """

    def __init__(
        self,
        *,
        is_terminal: bool,
        clock: Callable[[], float] = time.monotonic,
        width: Callable[[], int] | None = None,
    ) -> None:
        """Args: `width` is of the terminal, in columns; None asks it."""
        self._area = LiveArea(width) if is_terminal else None
        self._clock = clock
        self._logged_at = clock()

    def say(self, text: str) -> None:
        """Write a line that stays; the progress goes, since it is of what came before."""
        if self._area is not None:
            click.echo(self._area.erase(), err=True, nl=False)
        click.echo(f"ftcomm-chaos: {printable(text)}", err=True)
        self._logged_at = self._clock()

    def show(self, text: str) -> None:
        """Show the progress of a run, in place of what was shown before."""
        if self._area is not None:
            self._area.set_status(f"ftcomm-chaos:   {printable(text)}")
            click.echo(self._area.erase() + self._area.draw(), err=True, nl=False)
        elif self._clock() >= self._logged_at + LOG_EVERY_S:
            self.say(f"  {text}")
