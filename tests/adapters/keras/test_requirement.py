"""A Keras that is missing, too old or on another backend is one sentence."""

from pathlib import Path

import pytest

from tests.adapters.torch.test_requirement import said_by

REMEDY = ": install ftcomm with its extra `keras`"
NEW = {"tensorflow": "__version__ = '2.18.0'\n", "keras": "__version__ = '3.5.0'\n"}
BACKEND = "class backend: backend = staticmethod(lambda: 'jax')\n"


def said_with(folder: Path, **texts: str) -> str:
    """Last line of an import's output, where modules of these texts stand for the frameworks."""
    for name, text in {**NEW, **texts}.items():
        (folder / f"{name}.py").write_text(text)
    return said_by("import ftcomm.keras", path=str(folder))


def test_import_ftcomm_imports_no_keras() -> None:
    names = "{'keras', 'tensorflow'} & {*sys.modules}"
    assert said_by(f"import ftcomm; ftcomm.init; ftcomm.current; print({names})") == "set()"


@pytest.mark.parametrize(
    ("name", "old", "least"), [("tensorflow", "2.17.1", "2.18"), ("keras", "3.4.1", "3.5")]
)
def test_an_old_one_is_one_sentence(name: str, old: str, least: str, tmp_path: Path) -> None:
    said = said_with(tmp_path, **{name: f"__version__ = '{old}'\n"})
    assert said == (
        f"ImportError: ftcomm.keras needs {name} {least} or newer, and {old} is installed{REMEDY}"
    )


def test_a_missing_one_is_one_sentence(tmp_path: Path) -> None:
    """A module that says of itself that it is missing, as the interpreter would."""
    said = said_with(tmp_path, keras="raise ModuleNotFoundError('no keras', name='keras')\n")
    assert said == (
        f"ImportError: ftcomm.keras needs keras 3.5 or newer, which is not installed{REMEDY}"
    )


def test_another_backend_is_one_sentence(tmp_path: Path) -> None:
    assert said_with(tmp_path, keras=NEW["keras"] + BACKEND) == (
        "ImportError: ftcomm.keras needs Keras on TensorFlow, and it runs on jax here: set "
        "KERAS_BACKEND=tensorflow"
    )
