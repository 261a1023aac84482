"""Keras on ftcomm: a callback by which ``model.fit`` ends with the same bits whoever is killed.

It needs Keras on TensorFlow, which `import ftcomm` alone never imports: the extra `keras`.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ftcomm
from ftcomm.requirement import require

__all__ = ["Training"]
OLDEST = {"tensorflow": (2, 18), "keras": (3, 5)}  # tested: TensorFlow 2.21, Keras 3.5 and 3.15

if TYPE_CHECKING:
    from ftcomm.keras.training import Training
else:  # or a type checker would take a name that is not there for Any

    def __getattr__(name: str) -> Any:
        if name != "Training":
            raise AttributeError(f"module 'ftcomm.keras' has no attribute {name!r}")
        value = importlib.import_module("ftcomm.keras.training").Training
        globals()[name] = value
        return value


def _prepare() -> None:
    remedy = "ftcomm with its extra `keras`"
    # Keras imports TensorFlow, so that is looked at first.
    tensorflow, keras = (
        require(name, oldest, "ftcomm.keras", remedy) for name, oldest in OLDEST.items()
    )
    # A message about a call names the script's line, not one of these.
    for file in (__file__, str(tensorflow.__file__), str(keras.__file__)):
        ftcomm.passes_on(str(Path(file).parent))
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise ImportError(
            f"ftcomm.keras needs Keras on TensorFlow, and it runs on {backend} here: set "
            "KERAS_BACKEND=tensorflow"
        )


_prepare()
