"""An xgboost that is missing or too old is one sentence, and `import ftcomm` imports none."""

from pathlib import Path

from tests.adapters.torch.test_requirement import said_by

SENTENCE = "ImportError: ftcomm.xgboost needs xgboost 3.0 or newer, "
REMEDY = ": install ftcomm with its extra `xgboost`"


def test_import_ftcomm_imports_no_framework() -> None:
    code = "import ftcomm; ftcomm.current; print('xgboost' in sys.modules)"
    assert said_by(code) == "False"


def test_an_old_xgboost_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "xgboost.py").write_text("__version__ = '2.1.4'\n")
    said = said_by("import ftcomm.xgboost", path=str(tmp_path))
    assert said == f"{SENTENCE}and 2.1.4 is installed{REMEDY}"


def test_a_missing_xgboost_is_one_sentence(tmp_path: Path) -> None:
    """A module that says of itself that it is missing, as the interpreter would."""
    text = "raise ModuleNotFoundError('no xgboost', name='xgboost')\n"
    (tmp_path / "xgboost.py").write_text(text)
    said = said_by("import ftcomm.xgboost", path=str(tmp_path))
    assert said == f"{SENTENCE}which is not installed{REMEDY}"
