"""``ftcomm-chaos check``: exit status and output."""

import json
from pathlib import Path

from click.testing import CliRunner

from ftcomm_chaos.checkers import RULES
from ftcomm_chaos.cli import main
from tests.unit.checkers.edits import FIRST, LAST, OTHER, set_to
from tests.unit.checkers.scenarios import ScenarioRun, peace


def written(folder: Path, scenario: ScenarioRun) -> Path:
    folder.mkdir()
    for name, lines in scenario.files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["check", *map(str, arguments)])
    return done.exit_code, done.output


def broken() -> ScenarioRun:
    scenario = peace()
    set_to("w1-1", "return", at=FIRST, result=OTHER)(scenario)
    return scenario


def test_where_all_rules_hold_it_says_what_it_has_seen(tmp_path: Path) -> None:
    folder = written(tmp_path / "job", peace())
    lines = f"3 incarnations of 3 ranks, 21 calls returned\nall {len(RULES)} rules hold\n"
    assert run(folder) == (0, lines)
    assert run(folder, "--reference", folder) == (0, lines)


def test_a_broken_rule_is_named_with_its_evidence(tmp_path: Path) -> None:
    folder = written(tmp_path / "job", broken())
    status, output = run(folder)
    assert (status, output.splitlines()[-1]) == (1, "FAILED")
    assert "same-bytes: w1-1 at 1.0: was given " in output
    assert "(w1-1.jsonl:14, w0-1.jsonl:14)" in output


def test_the_reference_counts(tmp_path: Path) -> None:
    wrong = peace()
    for incarnation in ("w0-1", "w1-1", "w2-1"):
        set_to(incarnation, "return", at=FIRST, result=OTHER)(wrong)
    folder = written(tmp_path / "job", wrong)
    status, output = run(folder, "--reference", written(tmp_path / "peace", peace()))
    assert (run(folder)[0], status, output.count("as-reference")) == (0, 1, 1)


def test_nothing_to_check_and_nothing_to_read_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, output = run(tmp_path / "empty")
    assert (status, "no incarnation is recorded there" in output) == (2, True)
    folder = written(tmp_path / "job", peace())
    assert run(folder, "--reference", tmp_path / "empty")[0] == 2
    (folder / "w1-1.jsonl").write_text("nonsense\n")
    status, output = run(folder)
    assert (status, "w1-1.jsonl:1: it is not JSON" in output) == (3, True)
    assert run(tmp_path / "nowhere")[0] == 3


def test_what_a_unknown_peer_wrote_cannot_command_the_terminal(tmp_path: Path) -> None:
    scenario = broken()
    scenario.find("w1-1", "enter", position=LAST)["kind"] = "barrier"
    for lines in scenario.files.values():
        for line in lines:
            if line.get("worker") == "w1":
                line["worker"] = "w1\x1b[2J"
    status, output = run(written(tmp_path / "job", scenario))
    assert (status, "\x1b" in output, "w1\\x1b[2J-1" in output) == (1, False, True)
