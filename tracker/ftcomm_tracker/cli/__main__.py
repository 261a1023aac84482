"""``python -m ftcomm_tracker.cli`` is refused: the command is ``python -m ftcomm_tracker``."""

from ftcomm_tracker.cli.options import refuse_module

refuse_module("ftcomm-tracker")
