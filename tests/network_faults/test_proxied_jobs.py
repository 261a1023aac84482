"""Jobs whose links, to each other or to the tracker, go through impaired network above TCP.

Each worker listens at a port of its own choice and advertises its proxy's; or dials the tracker's
proxy.  The model is bit for bit that of a run in peace; what cannot be so is said by the test.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import trio

from ftcomm.errors import CollectiveMismatchError
from tests.helpers.unused_port import unused_port
from tests.network_faults.impairment_proxy import Proxy
from tests.network_faults.impairments import FIN, RST, Impairments
from tests.network_faults.jobs import Job, Reference, job

pytestmark = [pytest.mark.trio, pytest.mark.process]

GATE = 6
LATE = Impairments(latency_s=0.002, jitter_s=0.004)
PIECES = Impairments(slice_bytes=3000)
slow = pytest.mark.slow


class ImpairedJob:
    """A job, a proxy in front of each worker, and one in front of the tracker."""

    def __init__(self, made: Job, nursery: trio.Nursery) -> None:
        self.job = made
        self.data: list[Proxy] = []
        self.control = Proxy(("127.0.0.1", 0), seed="control")
        self._nursery = nursery
        self._ports = [unused_port("127.0.0.1") for _ in range(made.n)]

    async def begin(self, *options: str) -> None:
        self.control.target = await self.job.serve(*options)
        await self.control.serve(self._nursery)
        for worker, port in enumerate(self._ports):
            self.data.append(Proxy(("127.0.0.1", port), seed=f"data {worker}"))
            await self.data[worker].serve(self._nursery)
            await self.start(worker)

    async def start(self, worker: int) -> None:
        await self.job.start(
            worker,
            FTCOMM_TRACKER="{}:{}".format(*self.control.address),
            FTCOMM_BIND=f"127.0.0.1:{self._ports[worker]}",
            FTCOMM_ADVERTISE="{}:{}".format(*self.data[worker].address),
        )

    def carried(self) -> int:
        """Bytes that went between workers through the proxies."""
        return sum(up.taken + down.taken for proxy in self.data for up, down in proxy.streams)


@contextlib.asynccontextmanager
async def impaired_job(
    folder: Path,
    before: Callable[[ImpairedJob], None] | None = None,
    *,
    n: int = 3,
    detect_s: float = 5.0,
    options: Sequence[str] = (),
) -> AsyncIterator[ImpairedJob]:
    """A job at its gate; `before` makes impairments before the workers start."""
    async with trio.open_nursery() as nursery, job(folder, n, [GATE]) as made:
        stage = ImpairedJob(made, nursery)
        if before is not None:
            before(stage)
        await stage.begin("--detect-within", str(detect_s), *options)
        await made.gate(GATE)
        yield stage
        nursery.cancel_scope.cancel()


async def same_model(stage: ImpairedJob, reference: Reference) -> None:
    assert await stage.job.models() == {await reference(stage.job.n)}, stage.job.scenario()
    assert {status for _, status in stage.job.statuses} == {0}, stage.job.scenario()
    assert stage.carried() > 1_000_000  # the data really went this way


@pytest.mark.parametrize("impairments", [LATE, pytest.param(PIECES, marks=slow)])
async def test_late_links_and_links_in_pieces_change_no_bit(
    tmp_path: Path, reference: Reference, impairments: Impairments
) -> None:
    async with impaired_job(tmp_path) as stage:
        for proxy in (*stage.data, stage.control):
            proxy.set_impairments(impairments)
        await stage.job.open_gate()
        await same_model(stage, reference)
        assert stage.job.epoch == 1, stage.job.scenario()


@slow
async def test_a_control_link_a_byte_at_a_time_is_a_control_link(
    tmp_path: Path, reference: Reference
) -> None:
    async with impaired_job(tmp_path) as stage:
        stage.control.set_impairments(Impairments(slice_bytes=1, latency_s=0.005))
        await stage.job.open_gate()
        stage.data[1].cut_all(RST)
        await same_model(stage, reference)


@pytest.mark.parametrize(
    ("after", "how"),
    [
        pytest.param(0, FIN, marks=slow),
        pytest.param(1, RST, marks=slow),
        pytest.param(95, FIN, marks=slow),  # within a header
        pytest.param(96, RST, marks=slow),  # between header and payload
        (100_000, FIN),  # within a payload
        pytest.param(100_000, RST, marks=slow),
    ],
)
async def test_links_that_end_behind_a_byte_cost_an_epoch_and_no_bit(
    tmp_path: Path, reference: Reference, after: int, how: str
) -> None:
    """Each open link of ranks 1 and 2 ends so many bytes behind where it stands at the gate."""
    async with impaired_job(tmp_path) as stage:
        place = max(up.taken for proxy in stage.data for up, _ in proxy.streams)
        broken = Impairments(cut_after=place + after, cut_by=how)
        for proxy in stage.data:
            proxy.set_impairments(broken, Impairments())
        await stage.job.open_gate()
        await stage.job.tracker.wait_for("epoch 2")
        for proxy in stage.data:
            proxy.set_impairments()
        await same_model(stage, reference)


@pytest.mark.parametrize(
    ("up", "down"),
    [
        (Impairments(swallow=True), Impairments(swallow=True)),
        pytest.param(Impairments(swallow=True), Impairments(), marks=slow),
        pytest.param(Impairments(), Impairments(swallow=True), marks=slow),
    ],
)
async def test_half_open_links_are_noticed_and_replaced(
    tmp_path: Path, reference: Reference, up: Impairments, down: Impairments
) -> None:
    async with impaired_job(tmp_path, detect_s=2.0) as stage:
        stage.data[2].set_impairments(up, down)
        await stage.job.open_gate()
        await stage.job.tracker.wait_for("epoch 2")
        stage.data[2].set_impairments()
        await same_model(stage, reference)


@slow
async def test_a_link_that_is_paused_for_less_than_the_limit_costs_nothing(
    tmp_path: Path, reference: Reference
) -> None:
    async with impaired_job(tmp_path, detect_s=5.0) as stage:
        stage.data[1].set_impairments(Impairments(paused=True))
        await stage.job.open_gate()
        with trio.move_on_after(1.0):
            await stage.job.tracker.wait_for("epoch 2")
        stage.data[1].set_impairments()
        await same_model(stage, reference)
        assert stage.job.epoch == 1, stage.job.scenario()


@pytest.mark.parametrize("how", [RST, pytest.param(FIN, marks=slow)])
async def test_control_links_that_are_cut_are_opened_again(
    tmp_path: Path, reference: Reference, how: str
) -> None:
    async with impaired_job(tmp_path) as stage:
        assert stage.control.cut_all(how) == 3
        await stage.job.open_gate()
        await same_model(stage, reference)


@pytest.mark.parametrize("how", [RST, pytest.param(FIN, marks=slow)])
async def test_workers_that_the_word_of_the_jobs_end_does_not_reach_call_again(
    tmp_path: Path, reference: Reference, how: str
) -> None:
    """Nothing from the tracker passes behind the gate; with its last word their links end."""
    async with impaired_job(tmp_path) as stage:
        stage.control.set_impairments(Impairments(), Impairments(paused=True))
        await stage.job.open_gate()
        await stage.job.tracker.wait_for("all ranks have closed")
        assert stage.control.cut_all(how) == 3
        stage.control.set_impairments()
        await same_model(stage, reference)
        assert (len(stage.control.streams), stage.job.epoch) == (6, 1), stage.job.scenario()


@slow
async def test_control_links_that_are_half_open_are_noticed(
    tmp_path: Path, reference: Reference
) -> None:
    async with impaired_job(tmp_path, detect_s=2.0) as stage:
        stage.control.set_impairments(Impairments(), Impairments(swallow=True))
        await stage.job.tracker.wait_for("epoch 2: lost worker")
        stage.control.set_impairments()
        await stage.job.open_gate()
        await same_model(stage, reference)


async def ends_in_a_mismatch(stage: ImpairedJob) -> None:
    for worker in range(stage.job.n):
        assert await stage.job.end_of(str(worker)) == CollectiveMismatchError.exit_code


@pytest.mark.smoke
async def test_a_flipped_bit_of_a_header_is_seen_and_costs_the_link(
    tmp_path: Path, reference: Reference
) -> None:
    """Rank 0 dials rank 1, which waits for its next frame: the epoch is in bytes 4 to 7."""
    async with impaired_job(tmp_path, n=2) as stage:
        ((up, _),) = stage.data[1].streams
        stage.data[1].set_impairments(Impairments(flips=(up.taken + 5,)), Impairments())
        await stage.job.open_gate()
        await same_model(stage, reference)
        assert (len(up.flipped), stage.job.epoch) == (1, 2), stage.job.scenario()


@slow
async def test_a_flipped_bit_of_a_signature_is_another_collective_to_all(tmp_path: Path) -> None:
    async with impaired_job(tmp_path, n=2) as stage:
        ((up, _),) = stage.data[1].streams
        stage.data[1].set_impairments(Impairments(flips=(up.taken + 40,)), Impairments())
        await stage.job.open_gate()
        await ends_in_a_mismatch(stage)


async def test_a_flipped_bit_of_a_payload_is_found_at_the_next_checkpoint(tmp_path: Path) -> None:
    """Without --checksum links have TCP's alone: one rank's sum differs until digests are compared.

    The application gets wrong numbers for two more steps.
    """
    async with impaired_job(tmp_path, n=2) as stage:
        ((up, _),) = stage.data[1].streams
        stage.data[1].set_impairments(Impairments(flips=(up.taken + 96 + 1007,)), Impairments())
        await stage.job.open_gate()
        await ends_in_a_mismatch(stage)
        assert "checkpoint" in stage.job.scenario()


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(5, marks=slow),  # of a record's own head
        16 + 40,  # of a signature, which without a checksum ends the job
        16 + 96 + 1007,  # of a payload
    ],
)
async def test_a_flipped_bit_is_found_under_a_checksum_and_costs_an_epoch(
    tmp_path: Path, reference: Reference, place: int
) -> None:
    async with impaired_job(tmp_path, n=2, options=("--checksum", "xxh3")) as stage:
        ((up, _),) = stage.data[1].streams
        stage.data[1].set_impairments(Impairments(flips=(up.taken + place,)), Impairments())
        await stage.job.open_gate()
        await same_model(stage, reference)
        assert (len(up.flipped), stage.job.epoch) == (1, 2), stage.job.scenario()
        assert "the checksum of record" in stage.job.scenario()
