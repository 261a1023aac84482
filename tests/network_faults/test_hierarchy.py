"""Two hosts of two ranks and a slow link between: what goes through it, counted by the kernel."""

from pathlib import Path
from typing import Any

import pytest

from ftcomm_chaos.faults.network_namespaces import missing
from tests.conformance.plans import ROOT, worker_environment

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

NBYTES = 600_000
# In full blocks between two hosts of two ranks, in bytes of the array; a ring of ranks that are
# dealt out has every step on the network.
PROMISED = {
    False: {"auto": 1.0, "ring": 1.5, "recursive_doubling": 2.0},
    True: {"auto": 1.0, "ring": 3.0, "recursive_doubling": 2.0},
}
# Above that: headers of all layers, acknowledgements, what the kernel sends again.
OVERHEAD = 1.2


@pytest.fixture
def hierarchy(monkeypatch: pytest.MonkeyPatch) -> Any:
    lacking = missing(slow=True)
    if lacking:
        pytest.skip(lacking)
    monkeypatch.syspath_prepend(Path(ROOT) / "benchmarks")
    monkeypatch.setenv("PYTHONPATH", worker_environment()["PYTHONPATH"])
    return pytest.importorskip("hierarchy")


@pytest.mark.parametrize("dealt_out", [False, True])
def test_between_hosts_goes_what_the_algorithms_promise(hierarchy: Any, dealt_out: bool) -> None:
    options = ["--nbytes", str(NBYTES), "--rounds", "2", *["--dealt-out"][:dealt_out]]
    lines = hierarchy.calls(hierarchy.parser().parse_args(options))
    sums = {(line["algorithm"], line["sum"]) for line in lines}
    assert len(sums) == len(hierarchy.ALGORITHMS), "ranks have different results"
    for row in hierarchy.summary(lines):
        promised = PROMISED[dealt_out][row["algorithm"]] * NBYTES
        assert promised <= row["sent"] < OVERHEAD * promised, row
