"""A LightGBM that is missing or too old is one sentence, and `import ftcomm` imports none."""

from pathlib import Path

from tests.adapters.torch.test_requirement import said_by

SENTENCE = "ImportError: ftcomm.lightgbm needs lightgbm 4.5 or newer, "
REMEDY = ": install ftcomm with its extra `lightgbm`"


def test_import_ftcomm_imports_no_lightgbm() -> None:
    code = "import ftcomm; ftcomm.init; ftcomm.current; print('lightgbm' in sys.modules)"
    assert said_by(code) == "False"


def test_an_old_lightgbm_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lightgbm.py").write_text("__version__ = '4.4.0'\n")
    said = said_by("import ftcomm.lightgbm", path=str(tmp_path))
    assert said == f"{SENTENCE}and 4.4.0 is installed{REMEDY}"


def test_a_missing_lightgbm_is_one_sentence(tmp_path: Path) -> None:
    """A module that says of itself that it is missing, as the interpreter would."""
    text = "raise ModuleNotFoundError('no lightgbm', name='lightgbm')\n"
    (tmp_path / "lightgbm.py").write_text(text)
    said = said_by("import ftcomm.lightgbm", path=str(tmp_path))
    assert said == f"{SENTENCE}which is not installed{REMEDY}"
