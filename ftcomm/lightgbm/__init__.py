"""LightGBM on ftcomm: a training whose model is the same whoever is killed.

It needs lightgbm, which `import ftcomm` alone never imports: the extra `lightgbm`.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftcomm
from ftcomm.requirement import require

__all__ = ["train"]
OLDEST = (4, 5)  # the oldest that was tested

if TYPE_CHECKING:
    from ftcomm.lightgbm.training import train
else:  # or a type checker would take a name that is not there for Any

    def __getattr__(name: str) -> Any:
        if name != "train":
            raise AttributeError(f"module 'ftcomm.lightgbm' has no attribute {name!r}")
        value = importlib.import_module("ftcomm.lightgbm.training").train
        globals()[name] = value
        return value


_lightgbm = require("lightgbm", OLDEST, "ftcomm.lightgbm", "ftcomm with its extra `lightgbm`")
# A message about a call names the script's line, not one of these.
for _package in (__file__, _lightgbm.__file__):
    ftcomm.passes_on(str(Path(str(_package)).parent))
