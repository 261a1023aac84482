"""``--help`` of an example teaches, and runs nothing."""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FRAMEWORKS = {"torch": "torch", "dask": "distributed", "ray": "ray", "keras": "tensorflow"}
OPTION = re.compile(r"^  (?:-h, )?--[a-z-]+(?: [A-Z_]+)?(?P<meaning>\n? {2,}\S.*)?$", re.MULTILINE)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_help_says_what_an_example_does_and_each_option(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    framework = FRAMEWORKS.get(path.stem.partition("_")[0])
    if framework is not None:
        pytest.importorskip(framework, reason=f"{framework} is not installed")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"python examples/{path.name}  " in said  # how to start it, beside a remark
    assert len(said.partition("options:")[0].split()) > 50
    options = list(OPTION.finditer(said))
    assert options
    assert [found[0] for found in options if found["meaning"] is None] == []
