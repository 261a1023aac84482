"""Starts that are refused: nothing is left of them, and the words name the option."""

import tempfile
from pathlib import Path

import pytest

from tests.unit.tracker.test_cli import invoke


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("run", "-n", "0", "true"), "-n 0: a job has 1 to"),
        (("run", "-n", "1", "--detect-within", "0", "true"), "--detect-within"),
        (("run", "-n", "1", "--host", "nosuch.invalid", "true"), "cannot listen on nosuch.invalid"),
        (("run", "-n", "1", "nosuchprogram"), "- check the name of the program"),
        (
            ("run", "-n", "1", "m.py"),
            "cannot run 'm.py': no such program can be executed - a Python",
        ),
        (("run", "-n", "1", "m.py"), "a Python script? `python m.py`"),
        (("run", "-n", "1", "pyhton", "m.py"), "did you mean `python`?"),
        (("run", "true", "-n", "3"), "`-n 3` stands behind the command, and is passed to it: put"),
        (("run", "true", "--workers=3"), "`--workers=3` stands behind the command"),
        (("run", "true", "-n3"), "`-n3` stands behind the command"),
        (("run", "true", "3"), "a new job needs its number of workers - give -n"),
        (("serve", "-n", "1", "--checkpoint", "foo://x"), "foo"),
        (("serve", "-n", "1", "--host", "nosuch.invalid"), "cannot listen on nosuch.invalid"),
    ],
)
def test_a_refused_start_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    status, text = invoke(*options)
    assert (status, words in text, list(tmp_path.iterdir())) == (64, True, []), text


@pytest.mark.parametrize(
    ("program", "mode", "cause"),
    [
        ("./train.py", 0o644, "this file is not executable"),
        ("train.py", 0o644, "this file is not executable"),
        ("train.py", 0o755, "no such program can be executed"),  # not on PATH
        ("./train.py", 0o755, "Exec format error"),
    ],
)
def test_a_script_that_cannot_be_run_by_itself_is_told_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, mode: int, cause: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))
    (tmp_path / "system").mkdir()
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass\n")
    Path("train.py").chmod(mode)
    status, text = invoke("run", "-n", "1", program)
    said = f"cannot run '{program}': {cause} - name its interpreter: python {program}"
    assert (status, said in text) == (64, True), text


@pytest.mark.parametrize("option", ["--state-dir", "--token-file"])
def test_an_empty_path_is_not_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, text = invoke("serve", "-n", "0", option, "")
    said = f"Invalid value for '{option}': an empty path" in text
    assert (status, said, list(tmp_path.iterdir())) == (2, True, []), text
