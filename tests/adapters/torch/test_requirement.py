"""A torch that is missing or too old is one sentence, and `import ftcomm` imports none."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.plans import ROOT, worker_environment

IMPORTED = "import ftcomm; ftcomm.init; print('torch' in sys.modules)"
SENTENCE = "ImportError: ftcomm.torch needs torch 2.6 or newer, "
REMEDY = ": install ftcomm with its extra `torch`"


def said_by(code: str, *, path: str = "") -> str:
    environ = worker_environment()
    environ["PYTHONPATH"] = f"{path}:{environ['PYTHONPATH']}"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}"],
        env=environ, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return (done.stdout + done.stderr).splitlines()[-1]


def test_import_ftcomm_imports_no_framework() -> None:
    assert said_by(IMPORTED) == "False"


def test_an_old_torch_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.5.1+cpu'\n")
    said = said_by("import ftcomm.torch", path=str(tmp_path))
    assert said == f"{SENTENCE}and 2.5.1+cpu is installed{REMEDY}"


def test_a_missing_torch_is_one_sentence(tmp_path: Path) -> None:
    """A module that says of itself that it is missing, as the interpreter would."""
    text = "raise ModuleNotFoundError('no torch', name='torch')\n"
    (tmp_path / "torch.py").write_text(text)
    said = said_by("import ftcomm.torch", path=str(tmp_path))
    assert said == f"{SENTENCE}which is not installed{REMEDY}"


def test_accelerate_is_asked_for_in_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sentence = "ImportError: ftcomm.torch.accelerate needs accelerate 1.1 or newer, "
    remedy = ": install 'accelerate>=1.1'"
    stand_in = tmp_path / "accelerate.py"
    stand_in.write_text("__version__ = '0.9'\n")
    said = said_by("import ftcomm.torch.accelerate", path=str(tmp_path))
    assert said == f"{sentence}and 0.9 is installed{remedy}"
    stand_in.write_text("raise ModuleNotFoundError('none', name='accelerate')\n")
    said = said_by("import ftcomm.torch.accelerate", path=str(tmp_path))
    assert said == f"{sentence}which is not installed{remedy}"
