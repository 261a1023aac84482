"""A whole job whose checkpoints are in a bucket: killed, resumed, and with a store that is busy."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("s3fs", reason="s3fs is not installed")
pytest.importorskip("moto.server", reason="moto[server] is not installed")

from tests.integration.test_durable_checkpoints import job, models, versions
from tests.unit.durable.moto_bucket import SECRET, fresh_bucket, served
from tests.unit.durable.s3_proxy import Fault, Faults

pytestmark = pytest.mark.process

URL = "s3://ckpt/run"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[Faults]:
    with served() as moto, fresh_bucket(moto, monkeypatch) as found:
        yield found


def test_a_job_with_a_bucket_goes_on_when_all_are_killed(faults: Faults, tmp_path: Path) -> None:
    clean = job(tmp_path / "clean")
    marks = tmp_path / "marks"
    marks.mkdir()
    ends = [job(URL, marks=marks, whole=True) for _ in range(3)]
    assert [done.returncode for done in ends] == [-9, -9, 0], ends[-1].stderr
    assert [max(versions(done)) for done in ends] == [0, 4, 6]
    assert models(ends[-1]) == models(clean)
    assert job(URL).returncode == 77  # it has finished
    assert not [done for done in ends if SECRET in done.stdout + done.stderr]


def test_a_busy_bucket_is_asked_again_and_training_ends_well(
    faults: Faults, tmp_path: Path
) -> None:
    """Shards are answered by 503 for longer than one call's own tries, a record's reply is lost."""
    clean = job(tmp_path / "clean")
    faults.due += [Fault("PUT /ckpt/run/data", "busy")] * 20
    faults.due += [Fault("PUT /ckpt/run/chain", "lost after")]
    done = job(URL)
    assert (done.returncode, faults.due) == (0, []), done.stderr
    assert models(done) == models(clean)
    records = {request for request in faults.seen if request.startswith("PUT /ckpt/run/chain")}
    assert {int(each) for each in re.findall(r"chain/(\d+)", " ".join(records))} >= set(range(1, 9))
