"""Jobs whose ranks are tasks of a Dask cluster: `run`.

It is in the tracker package, as all that starts jobs.
"""

import importlib
from typing import TYPE_CHECKING

from ftcomm.requirement import require

__all__ = ["run"]

OLDEST = (2025, 1)  # the oldest that was tested
require("distributed", OLDEST, "ftcomm.dask", "ftcomm with its extra `dask`")

if TYPE_CHECKING:
    from ftcomm_tracker.embedding.dask_gang import run
else:
    run = importlib.import_module("ftcomm_tracker.embedding.dask_gang").run
