"""The wheel that users install: its files, its metadata, and its commands without a checkout."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path

import pytest

from ftcomm_tracker.cli.documents import DOCUMENTS
from tests.unit.tracker.test_launcher import environment

pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PACKAGES = (("ftcomm", "."), ("ftcomm_tracker", "tracker"), ("ftcomm_chaos", "chaos"))
LEFT_OUT = (
    "ftcomm_chaos/sim/",
    "ftcomm_chaos/explorer/",
    "ftcomm_chaos/whole/",
    "ftcomm_chaos/commands/sim.py",
    "ftcomm_chaos/commands/whole.py",
    "ftcomm_chaos/commands/explore.py",
)


BINARY = "ftcomm/core/_core.abi3.so"


def build(folder: Path, **variables: str) -> Path:
    """Build a wheel into `folder`, and return it."""
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    environ = {**os.environ, **variables}
    subprocess.run(words, cwd=ROOT, env=environ, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The folder into which the wheel is unpacked."""
    with zipfile.ZipFile(built) as archive:
        archive.extractall(built.parent / "unpacked")
    return built.parent / "unpacked"


def needs_a_compiler() -> None:
    if shutil.which(os.environ.get("CC") or "cc") is None:
        pytest.skip("no C compiler built the core")


def run_module(wheel: Path, module: str, *words: str) -> tuple[int, str]:
    """Run a module that only the wheel's folder can provide."""
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        cwd=wheel,
        env=environment(PYTHONPATH=str(wheel)),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def metadata(wheel: Path) -> Message:
    (path,) = wheel.glob("*.dist-info/METADATA")
    return message_from_string(path.read_text(encoding="utf-8"))


def test_the_wheel_has_the_sources_but_what_tests_ftcomm(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT / above).as_posix()
        for name, above in PACKAGES
        for path in (ROOT / above / name).rglob("*.py")
    }
    expected = {name for name in expected if not name.startswith(LEFT_OUT)}
    packed = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*.*") if path.is_file()}
    packed = {name for name in packed if ".dist-info/" not in name and "__pycache__" not in name}
    documents = {f"ftcomm_tracker/help/{name}.md" for name in DOCUMENTS}
    assert packed - {BINARY} == expected | {"ftcomm/py.typed"} | documents


def test_the_wheel_has_the_compiled_core_for_every_python(built: Path, wheel: Path) -> None:
    needs_a_compiler()
    assert built.stem.split("-")[2:4] == ["cp311", "abi3"]
    status, text = run_module(wheel, "ftcomm_tracker", "doctor")
    assert "core: compiled (its results are numpy's)" in text, (status, text)


def test_without_a_compiler_the_wheel_is_pure_and_complete(wheel: Path, tmp_path: Path) -> None:
    pure = build(tmp_path, CC="/bin/false")
    assert pure.stem.endswith("-py3-none-any")
    with zipfile.ZipFile(pure) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    packed = {path.relative_to(wheel).as_posix() for path in wheel.rglob("*") if path.is_file()}
    packed = {name for name in packed if ".dist-info/" not in name and "__pycache__" not in name}
    assert names == packed - {BINARY}


def test_an_editable_installation_compiles_into_the_tree(tmp_path: Path) -> None:
    needs_a_compiler()
    (tmp_path / "ftcomm/core").mkdir(parents=True)
    for path in (ROOT / "hatch_build.py", *ROOT.glob("ftcomm/core/*.[ch]")):
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    hook = "CoreHook('.', {}, None, None, '', 'wheel')"
    code = f"from hatch_build import CoreHook; {hook}.initialize('editable', {{}})"
    for variables, is_compiled in (({}, True), ({"CC": "/bin/false"}, False)):
        environ = {**os.environ, **variables}
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, check=True)
        assert (tmp_path / BINARY).exists() == is_compiled


def test_the_documents_that_errors_name_are_shown_without_a_checkout(wheel: Path) -> None:
    for name in DOCUMENTS:
        text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        assert run_module(wheel, "ftcomm_tracker", "help", name) == (0, text + "\n")


def test_run_and_the_checkers_work_without_a_checkout(wheel: Path) -> None:
    status, text = run_module(wheel, "ftcomm_chaos", "run", "--help")
    assert (status, "Usage: ftcomm-chaos run" in text) == (0, True), text
    status, text = run_module(wheel, "ftcomm_chaos", "check", "--help")
    assert (status, "Usage: ftcomm-chaos check" in text) == (0, True), text


def test_a_user_is_shown_no_command_for_developers(wheel: Path) -> None:
    status, text = run_module(wheel, "ftcomm_chaos", "--help")
    commands = re.findall(r"^  (\w+) ", text.partition("Commands:")[2], re.MULTILINE)
    assert (status, commands) == (0, ["check", "run"]), text


def test_the_metadata_is_complete(wheel: Path) -> None:
    found = metadata(wheel)
    assert (found["Name"], found["Author"]) == ("ftcomm", "ftcomm developers")
    assert "allreduce" in found["Keywords"]
    assert found["License-Expression"] == "Apache-2.0"
    assert found["Description-Content-Type"] == "text/markdown"


def test_the_description_has_no_link_to_a_file(wheel: Path) -> None:
    description = metadata(wheel).get_payload()
    assert isinstance(description, str)
    links = [part.partition(")")[0] for part in description.split("](")[1:]]
    assert [link for link in links if not link.startswith(("#", "https:"))] == []
    assert "folder `docs` of the source distribution" in description
