"""A framework that is missing or too old is one sentence, and `import ftcomm` imports none."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.plans import ROOT, worker_environment

NEWEST = "__version__ = '99.0'\n"
KERAS_ON_JAX = NEWEST + "class backend: backend = staticmethod(lambda: 'jax')\n"

FRAMEWORKS = pytest.mark.parametrize(
    ("adapter", "module", "oldest", "older", "what"),
    [
        ("torch", "torch", "2.6", "2.5.1+cpu", "ftcomm with its extra `torch`"),
        ("lightgbm", "lightgbm", "4.5", "4.4.0", "ftcomm with its extra `lightgbm`"),
        ("xgboost", "xgboost", "3.0", "2.1.4", "ftcomm with its extra `xgboost`"),
        ("dask", "distributed", "2025.1", "2024.12.1", "ftcomm with its extra `dask`"),
        ("ray", "ray", "2.40", "2.39.0", "ftcomm with its extra `ray`"),
        ("keras", "tensorflow", "2.18", "2.17.1", "ftcomm with its extra `keras`"),
        ("keras", "keras", "3.5", "3.4.1", "ftcomm with its extra `keras`"),
        ("torch.accelerate", "accelerate", "1.1", "0.9", "'accelerate>=1.1'"),
    ],
)


def said_by(code: str, folder: Path, **stand_ins: str) -> str:
    """Last line of what `code` writes where modules of these texts stand for frameworks."""
    for name, text in stand_ins.items():
        (folder / f"{name}.py").write_text(text)
    environ = worker_environment()
    environ["PYTHONPATH"] = f"{folder}:{environ['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}"],
        env=environ, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr).splitlines()[-1]


def test_import_ftcomm_imports_none(tmp_path: Path) -> None:
    names = "{'torch', 'lightgbm', 'xgboost', 'distributed', 'ray', 'keras', 'tensorflow'}"
    code = f"import ftcomm; ftcomm.init; ftcomm.current; print({names} & {{*sys.modules}})"
    assert said_by(code, tmp_path) == "set()"


@FRAMEWORKS
@pytest.mark.parametrize("is_missing", [False, True], ids=["old", "missing"])
def test_one_that_is_missing_or_too_old_is_one_sentence(
    adapter: str,
    module: str,
    oldest: str,
    older: str,
    what: str,
    tmp_path: Path,
    *,
    is_missing: bool,
) -> None:
    if adapter == "torch.accelerate":
        pytest.importorskip("torch")
    stand_ins = {"tensorflow": NEWEST} if adapter == "keras" else {}
    stand_ins[module] = (  # it says of itself that it is missing, as the interpreter would
        f"raise ModuleNotFoundError('none', name='{module}')\n"
        if is_missing
        else f"__version__ = '{older}'\n"
    )
    found = "which is not installed" if is_missing else f"and {older} is installed"
    assert said_by(f"import ftcomm.{adapter}", tmp_path, **stand_ins) == (
        f"ImportError: ftcomm.{adapter} needs {module} {oldest} or newer, {found}: install {what}"
    )


def test_keras_on_another_backend_is_one_sentence(tmp_path: Path) -> None:
    assert said_by("import ftcomm.keras", tmp_path, tensorflow=NEWEST, keras=KERAS_ON_JAX) == (
        "ImportError: ftcomm.keras needs Keras on TensorFlow, and it runs on jax here: set "
        "KERAS_BACKEND=tensorflow"
    )
