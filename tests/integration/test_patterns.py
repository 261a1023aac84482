"""Kills at each kind of step of each pattern: the weights are those of a run without them."""

import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.adapters.jobs import lose_all
from tests.integration.test_examples import EXAMPLES, run, victims_in

pytestmark = pytest.mark.process

JOB = Path(__file__).with_name("pattern_job.py")
Undisturbed = Callable[[str], str]
# Of twelve steps, three of which end with a checkpoint: a moment of the job, or a fault inside a
# call, which has the address `rank.version.seqno.0@point`.
AVERAGED = {
    "local step": "4.step",
    "averaging": "1.0.0@half_sent",
    "average done": "1.0.0@done",
    "averaged": "5.averaged",
    "checkpoint saved": "1.1.0@saved",
    "checkpoint committed": "8.committed",
}
KINDS = {
    "average_weights": {**AVERAGED, "checkpoint saved": "1.3.0@saved"},
    "local_sgd": AVERAGED,
    "diloco": AVERAGED,
    "gossip": {
        "before the exchange": "4.step",
        "half of the weights sent": "1.0.0@sent",
        "all sent": "4.exchanging",
        "receiving": "1.0.0@receiving",
        "half received": "1.0.0@received",
        "averaged": "4.averaged",
        "checkpoint saved": "1.0.0@saved",
        "checkpoint committed": "5.committed",
    },
    "parameter_server": {
        "before the first pull": "4.step",
        **{
            f"{call} {name}": f"4.{call} {name}"
            for call in ("pulled", "pushed", "pulled rows of", "pushed rows of")
            for name in ("small", "large")
        },
        "pulling": "1.6.0@half_received",
        "pushing": "1.7.0@half_sent",
        "pulling rows": "1.9.0@half_sent",
        "pushing the rows": "1.11.0@half_sent",
        "checkpoint saved": "1.36.0@saved",
        "checkpoint committed": "5.committed",
    },
}
# The first kill of each pattern in `make test-jobs`.
TELLING = {
    "average_weights": "averaging",
    "local_sgd": "averaged",
    "diloco": "checkpoint committed",
    "gossip": "half of the weights sent",
    "parameter_server": "pushed rows of large",
}


def model_in(said: str) -> str:
    """The one model that all ranks have."""
    (model,) = re.findall(r"^\[0\] model (.*)$", said, re.MULTILINE)
    assert re.fullmatch("[0-9a-f]{64}", model), f"ranks have different models: {model}"
    return str(model)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The model of a pattern without a kill, which runs once for all tests of a module."""
    return functools.cache(
        lambda pattern: model_in(run(JOB, pattern, cwd=tmp_path_factory.mktemp("undisturbed")))
    )


def check(undisturbed: Undisturbed, folder: Path, pattern: str, kind: str, victims: str) -> None:
    place = KINDS[pattern][kind]
    addresses = [f"{victim}.{place}" for victim in victims]
    if "@" in place:
        said = run(JOB, pattern, faults=",".join(addresses), cwd=folder)
    else:
        kills = [f"--kill={address}" for address in addresses]
        said = run(JOB, pattern, *kills, cwd=folder)
    assert victims_in(said) == list(victims), said[-3000:]
    assert model_in(said) == undisturbed(pattern)


@pytest.mark.parametrize(("pattern", "kind"), TELLING.items())
def test_a_kill_changes_nothing(
    pattern: str, kind: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, pattern, kind, "1")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", KINDS)
def test_a_kill_of_all_at_once_changes_nothing(
    pattern: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The next attempt begins from the durable checkpoint, with all local states."""
    said = lose_all(JOB, tmp_path / "job", pattern, at="7.step")
    assert re.search(r"attempt 2 begins from checkpoint \d", said), said[-3000:]
    assert model_in(said) == undisturbed(pattern)


@pytest.mark.slow
@pytest.mark.parametrize("victims", ["0", "1", "02"])
@pytest.mark.parametrize(
    ("pattern", "kind"),
    [pair for pattern, kinds in KINDS.items() for pair in itertools.product([pattern], kinds)],
)
def test_nothing_changes_whoever_is_killed_and_when(
    pattern: str, kind: str, victims: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    check(undisturbed, tmp_path, pattern, kind, victims)


def test_threads_without_locks_go_on_from_the_average_behind_a_kill(tmp_path: Path) -> None:
    """Their steps differ from run to run, and so do last bits; checkpoints compare the ranks."""
    script = EXAMPLES / "hogwild.py"
    options = ("--threads", "2", "--epochs", "3")
    said = run(script, *options, faults="1.1.0.0@half_sent,2.2.0.0@done", cwd=tmp_path)
    assert victims_in(said) == ["1", "2"]
    model_in(said)
    assert float(re.findall(r"epoch 3: test (\S+) %", said)[0]) > 98.0


def test_shares_that_were_measured_stay_as_they_were_dealt(tmp_path: Path) -> None:
    """A restarted worker measures again, and gets the rates that all had got."""
    script = EXAMPLES / "shares.py"
    options = ("--slow", "3", "--measure", "0.05", "--steps", "20")
    said = run(script, *options, faults="0.3.0.0@half_sent,2.-1.1.0@done", cwd=tmp_path)
    assert victims_in(said) == ["0", "2"]
    rows = [int(count) for count in re.findall(r"rank \d: (\d+) rows, computed", said)]
    assert (len(rows), sum(rows)) == (3, 6513)
    assert rows[0] < min(rows[1:]), "rank 0 takes three times as long"
    model_in(said)
