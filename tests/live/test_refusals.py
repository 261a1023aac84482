"""What ``ftcomm-chaos run`` refuses before it starts anything, and what it says then."""

import json
import sys
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftcomm_chaos.cli import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere all is refused")
KILL = [{"at": {"position": "1.5.0.0@enter"}, "kind": "sigkill"}]


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (["-n", "2", "--plan", "{plan}", "--", "no-such-command"], 3, "'no-such-command'"),
        (["-n", "2", "--", "true"], 2, "what to break is not said"),
        (["-n", "2", "--random", "--plan", "{plan}", "--", "true"], 2, "or twice"),
        (["-n", "1", "--plan", "{plan}", "--", "true"], 2, "there are ranks 0 to 0"),
        (["-n", "2", "--plan", "/none", "--", "true"], 2, "the plan /none cannot be read"),
        (["-n", "2", "--trace", "{trace}", "--min-lost", "2", "--", "true"], 2, "takes 1 workers"),
        (["-n", "2", "--random", "--compare", "../x", "--", "true"], 2, "is not in {out}"),
        (["-n", "2", "--random", "-o", "state-dir=x", "--", "true"], 2, "is not NAME=VALUE"),
        (["-n", "2", "--random", "--keep", "{folder}", "--", "true"], 2, "name a folder that"),
        (["-n", "2", "--random", "--duration", "2x", "--", "true"], 2, "is not a time such as"),
    ],
)
def test_what_cannot_be_run_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], status: int, complaint: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))  # nothing is made yet
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.csv"
    plan.write_text(json.dumps(KILL))
    trace.write_text("0,add,a\n1,remove,a")
    line = [part.format(plan=plan, trace=trace, out="{out}", folder=tmp_path) for part in options]
    done = CliRunner().invoke(main, ["run", *line])
    assert (done.exit_code, done.stdout) == (status, ""), done.stderr
    assert complaint in done.stderr
