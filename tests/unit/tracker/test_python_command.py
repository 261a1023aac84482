"""Command lines of workers, read as the interpreter reads them."""

import pytest

from ftcomm.errors import ConfigError
from ftcomm_tracker.launcher.processes.python_command import (
    PythonCommand,
    parse_python_command,
)

A_FILE = ("file", "a.py", "")


@pytest.mark.parametrize(
    ("line", "options", "kind", "target", "arguments"),
    [
        ("python train.py", "", "file", "train.py", ""),
        ("/opt/x/bin/python3.11 -u train.py --lr 1 -m x", "-u", "file", "train.py", "--lr 1 -m x"),
        ("python3 -OO -Wignore -X dev dir/a.py", "-O -O -W ignore -X dev", "file", "dir/a.py", ""),
        ("python -m package.train -c 3", "", "module", "package.train", "-c 3"),
        ("python -umpackage -v", "-u", "module", "package", "-v"),
        ("python -c pass -u", "", "code", "pass", "-u"),
        ("python -- train.py", "", "file", "train.py", ""),
        ("python --check-hash-based-pycs never a.py", "--check-hash-based-pycs never", *A_FILE),
    ],
)
def test_a_command_is_split_as_by_the_interpreter(
    line: str, options: str, kind: str, target: str, arguments: str
) -> None:
    words = line.split()
    command = parse_python_command(words)
    wanted = (
        tuple(words),
        words[0],
        tuple(options.split()),
        kind,
        target,
        tuple(arguments.split()),
    )
    assert command == PythonCommand(*wanted)
    assert PythonCommand.from_dict(command.to_dict()) == command


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bash train.sh", "'bash' is no Python interpreter"),
        ("./train.py", "'./train.py' is no Python interpreter"),
        ("python", "the command names no script"),
        ("python -u", "the command names no script"),
        ("python -", "a script on standard input can be read once only"),
        ("python -i train.py", "'-i' is no option of Python that it knows"),
        ("python -m", "'-m' is no option of Python that it knows"),
        ("python train.pyc", "'train.pyc' is no source file"),
    ],
)
def test_what_cannot_be_forked_is_refused_by_name(line: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_python_command(line.split())
    assert words in str(caught.value)
    assert "python train.py" in str(caught.value)
