"""The script of docs/dask.md computes what it did before, and the example survives a kill."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from tests.adapters.dask.clusters import Cluster
from tests.adapters.page_scripts import model_of, new_lines, output, scripts_of
from tests.conformance.plans import ROOT

pytestmark = [pytest.mark.process, pytest.mark.heavy, pytest.mark.timeout(600)]

BEFORE, AFTER = scripts_of("dask.md")
RANKS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("dask"), nannies=RANKS) as cluster:
        yield cluster


def run(script: str, cluster: Cluster, folder: Path) -> str:
    """Run a script of the page for five steps; returns what it computes."""
    script = script.replace("scheduler:8786", cluster.client.scheduler.address)
    script = re.sub(r"\b8\b", str(RANKS), script)
    script = re.sub(r"\b100\b", "5", script)
    path = folder / "script.py"
    path.write_text(f"{script}    print(weights.tobytes().hex())\n")
    return output(path)


def test_the_script_of_the_page_computes_the_same(cluster: Cluster, tmp_path: Path) -> None:
    assert new_lines(BEFORE, AFTER) <= 10
    assert run(AFTER, cluster, tmp_path) == run(BEFORE, cluster, tmp_path) != ""


def test_the_example_finds_the_same_centres_whoever_dies(tmp_path: Path) -> None:
    script, options = ROOT / "examples" / "dask_kmeans.py", ("--rows", "200", "--steps", "6")
    record = tmp_path / "faults"
    fault = {"FTCOMM_FAULTS": f"1.2.0.0@half_sent > {record}"}
    models = [model_of(output(script, *options, variables=each)) for each in ({}, fault)]
    assert models[0] == models[1]
    assert len(record.read_text().splitlines()) == 1, "the rank was killed"
