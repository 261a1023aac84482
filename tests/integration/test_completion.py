"""Completion in the shells themselves: what they read, and what they offer for a line."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tracker.test_launcher import environment

pytestmark = pytest.mark.process

COMPINIT = "autoload -Uz compinit && compinit -i -D"
# Outside of a completion widget these builtins fail; here they print what they would offer.
ZSH_OFFERS = """
_path_files() { print -r -- files }
_describe() { print -rl -- ${(P)3} }
compadd() { local all=$@[-1]; print -rl -- ${(P)all} }
words=(${(z)LINE}); [[ $LINE == *' ' ]] && words+=('')
CURRENT=$#words
_ftcomm_tracker_completion
"""
BASH_OFFERS = """
compopt() { [[ $2 == default ]] && echo files; [[ $2 == dirnames ]] && echo directories; }
COMP_WORDS=($LINE); [[ $LINE == *' ' ]] && COMP_WORDS+=('')
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ftcomm_tracker_completion ftcomm-tracker
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a command ftcomm-tracker of this Python, and nothing else."""
    command = tmp_path / "bin" / "ftcomm-tracker"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ftcomm_tracker "$@"\n')
    command.chmod(0o755)
    return tmp_path


def shell(home: Path, name: str, script: str, **variables: str) -> tuple[str, str]:
    """Output and errors of `script` in a shell that reads no start files."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    plain = {"bash": ["--noprofile", "--norc"], "zsh": ["-f"]}[name]
    path = f"{home / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        [found, *plain, "-c", script],
        env=environment(HOME=str(home), PATH=path, **variables),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("before", ["", COMPINIT], ids=["without", "with"])
def test_zsh_reads_the_script_with_and_without_compinit(home: Path, before: str) -> None:
    read = "source <(ftcomm-tracker completion zsh)"
    script = f"{before}\n{read}\nprint -r -- ${{_comps[ftcomm-tracker]}}"
    assert shell(home, "zsh", script) == ("_ftcomm_tracker_completion\n", "")


@pytest.mark.parametrize(("name", "offers"), [("bash", BASH_OFFERS), ("zsh", ZSH_OFFERS)])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ftcomm-tracker run -n 2 pyth", "files"),
        ("ftcomm-tracker run -n 2 -- ", "files"),
        ("ftcomm-tracker run -n 2 -- python tr", "files"),
        ("ftcomm-tracker run -n 2 python train.py --work", "files"),
        ("ftcomm-tracker supervise python tr", "files"),
        ("ftcomm-tracker run --work", "--workers"),
        ("ftcomm-tracker supe", "supervise"),
    ],
)
def test_a_shell_offers(home: Path, name: str, offers: str, line: str, expected: str) -> None:
    script = f"source <(ftcomm-tracker completion {name})\n{offers}"
    out, errors = shell(home, name, script, LINE=line)
    assert (expected in out, errors) == (True, ""), out
