"""The model of the protocol, searched by spin: it holds, and a broken one does not."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[2] / "docs" / "recovery.pml"
MISSING = [name for name in ("spin", "cc") if shutil.which(name) is None]
NEEDS = pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} not installed")
SAFETY = ["-DSAFETY", "-O1"]
ENDLESS = ["-DNP", "-O1"]  # any cycle is reported: the model has no progress labels

# What is left out, on how many ranks and with how many suspicions, and the assertion that sees it.
BROKEN = {
    "FRONTIER": ("3", "0", "w[r].position<=era[e].frontier"),
    "HOLDER": ("3", "0", "holder[0]].log"),
    "ABSORB": ("2", "1", "holder[0]].log"),
    "STALE": ("2", "1", "holder[0]].log"),
    "KEEPERS": ("3", "0", "p>=2"),
    "RETENTION": ("3", "0", "crashes>=2"),
    "STOP": ("3", "0", "w[r].position<=era[e].frontier"),
}


def search(folder: Path, defines: list[str], compiled: list[str], flags: list[str]) -> str:
    subprocess.run(["spin", "-a", *defines, str(MODEL)], cwd=folder, check=True)
    compiler = ["cc", "-w", "-DCOLLAPSE", "-DVECTORSZ=2048", *compiled, "-o", "pan", "pan.c"]
    subprocess.run(compiler, cwd=folder, check=True)
    command = ["./pan", "-m100000", *flags]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@NEEDS
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("defines", "compiled", "flags", "states"),
    [
        (["-DRANKS=3"], SAFETY, [], 209_375),
        (["-DRANKS=2", "-DSUSPICIONS=1"], SAFETY, [], 10_000),
        (["-DRANKS=2"], ENDLESS, ["-l"], 10_000),
    ],
    ids=["three", "two that also suspect", "two that always end"],
)
def test_the_protocol_keeps_its_rules_and_every_run_ends(
    tmp_path: Path, defines: list[str], compiled: list[str], flags: list[str], states: int
) -> None:
    output = search(tmp_path, defines, compiled, flags)
    assert "errors: 0" in output, output
    assert "not completed" not in output, output
    found = re.search(r"(\d+) states, stored", output)
    assert found is not None
    assert int(found[1]) >= states, output


@NEEDS
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BROKEN)
def test_a_protocol_without_one_of_its_rules_is_found_out(tmp_path: Path, name: str) -> None:
    ranks, suspicions, assertion = BROKEN[name]
    defines = [f"-DBROKEN_{name}", f"-DRANKS={ranks}", f"-DSUSPICIONS={suspicions}"]
    output = search(tmp_path, defines, SAFETY, [])
    first = next(line for line in output.splitlines() if line.startswith("pan:1:"))
    assert "assertion violated" in first, output
    assert assertion in first, output
