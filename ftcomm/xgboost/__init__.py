"""XGBoost on ftcomm: a training whose booster is the same whoever is killed.

It needs xgboost, which `import ftcomm` alone never imports: the extra `xgboost`.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftcomm
from ftcomm.requirement import require

__all__ = ["train"]
OLDEST = (3, 0)  # the oldest that was tested

if TYPE_CHECKING:
    from ftcomm.xgboost.training import train
else:  # or a type checker would take a name that is not there for Any

    def __getattr__(name: str) -> Any:
        if name != "train":
            raise AttributeError(f"module 'ftcomm.xgboost' has no attribute {name!r}")
        value = importlib.import_module("ftcomm.xgboost.training").train
        globals()[name] = value
        return value


require("xgboost", OLDEST, "ftcomm.xgboost", "ftcomm with its extra `xgboost`")
# A message about a call names the script's line, not one of these.
ftcomm.passes_on(str(Path(__file__).parent))
