"""A Dask or Ray that is missing or too old is one sentence, and `import ftcomm` imports none."""

from pathlib import Path

import pytest

from tests.adapters.torch.test_requirement import said_by

CASES = pytest.mark.parametrize(
    ("name", "module", "oldest", "older"),
    [("dask", "distributed", "2025.1", "2024.12.1"), ("ray", "ray", "2.40", "2.39.0")],
)


@CASES
def test_an_old_one_is_one_sentence(
    name: str, module: str, oldest: str, older: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(f"__version__ = '{older}'\n")
    said = said_by(f"import ftcomm.{name}", path=str(tmp_path))
    assert said == (
        f"ImportError: ftcomm.{name} needs {module} {oldest} or newer, and {older} is installed:"
        f" install ftcomm with its extra `{name}`"
    )


@CASES
def test_a_missing_one_is_one_sentence(
    name: str, module: str, oldest: str, older: str, tmp_path: Path
) -> None:
    text = f"raise ModuleNotFoundError('none', name='{module}')\n"
    (tmp_path / f"{module}.py").write_text(text)
    said = said_by(f"import ftcomm.{name}", path=str(tmp_path))
    assert said == (
        f"ImportError: ftcomm.{name} needs {module} {oldest} or newer, which is not installed:"
        f" install ftcomm with its extra `{name}`"
    )


@CASES
def test_import_ftcomm_imports_none(name: str, module: str, oldest: str, older: str) -> None:
    assert said_by(f"import ftcomm; ftcomm.init; print({module!r} in sys.modules)") == "False"
