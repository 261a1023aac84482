"""Jobs whose ranks are actors of Ray: `run`.

It is in the tracker package, as all that starts jobs.
"""

import importlib
from typing import TYPE_CHECKING

from ftcomm.requirement import require

__all__ = ["run"]

OLDEST = (2, 40)  # the oldest that was tested
require("ray", OLDEST, "ftcomm.ray", "ftcomm with its extra `ray`")

if TYPE_CHECKING:
    from ftcomm_tracker.embedding.ray_gang import run
else:
    run = importlib.import_module("ftcomm_tracker.embedding.ray_gang").run
