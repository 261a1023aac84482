"""Seeds whose connections are bytes: the real handshakes, codec and frames, in any slices."""

import pytest

from ftcomm.protocol.codec import Decoder, encode
from ftcomm.protocol.frame_header import FrameHeader
from ftcomm.protocol.link_messages import FetchRequest, FetchWait
from ftcomm.protocol.position import Position, PositionRange
from ftcomm.protocol.signature import Kind, Signature
from ftcomm.recovery.events import CheckpointFetched, LocalFetched, ResultFetched, StartFetch
from ftcomm_chaos.sim.fault_plan import OF_BYTES
from ftcomm_chaos.sim.network.frames import Frame
from ftcomm_chaos.sim.network.wire_data import FrameReader, frame_bytes
from ftcomm_chaos.sim.network.wire_fetch import FetchServer, ItemReader, item_bytes
from ftcomm_chaos.sim.simulation import Simulation

WIRED = [seed for seed in range(400) if Simulation(seed).conditions.wire]
HERE = Position(0, 2, 3)


def run_all(seeds: list[int]) -> set[str]:
    """The faults that happened."""
    return {fault for seed in seeds for fault in Simulation(seed).run().faults}


def frame(kind: Kind, *values: float) -> Frame:
    signature = Signature(kind).encode()
    return Frame(FrameHeader(7, HERE, 4, len(values), signature, "sim.py:1"), values)


@pytest.mark.parametrize("size", [1, 5, 96, 1000])
def test_frames_survive_any_slices(size: int) -> None:
    frames = [frame(Kind.ALLREDUCE, 0.1, -2.0), frame(Kind.BARRIER), frame(Kind.LOAD, 2**48 - 1)]
    raw = b"".join(frame_bytes(one) for one in frames)
    reader = FrameReader()
    slices = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert [one for piece in slices for one in reader.feed(piece)] == frames


@pytest.mark.parametrize("size", [1, 5, 96, 1000])
def test_items_survive_any_slices(size: int) -> None:
    items = [
        CheckpointFetched(7, 2, 2**48 - 1),
        LocalFetched(7, 2, 1, 5),
        ResultFetched(7, HERE, Signature(Kind.ALLREDUCE).encode(), (0.1, 0.2)),
        ResultFetched(7, HERE.next(), Signature(Kind.BARRIER).encode(), ()),
    ]
    raw = 3 * encode(FetchWait()) + b"".join(item_bytes(item) for item in items)
    reader = ItemReader(StartFetch(7, 1, 2, (PositionRange(2, 3, 5),), 2, (1,)))
    slices = [raw[at : at + size] for at in range(0, len(raw), size)]
    assert [one for piece in slices for one in reader.feed(piece)] == items


def test_checkpoints_are_packed_for_longer_than_a_silent_holder_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed: list[float] = []
    real = FetchServer._packing_s

    def noted(self: FetchServer, request: FetchRequest) -> float:
        seconds = real(self, request)
        packed.append(seconds / self.process.sim.settings.detect_within)
        return seconds

    monkeypatch.setattr(FetchServer, "_packing_s", noted)
    for seed in range(440, 1000):  # the first of them show it: it needs a late load of a lazy state
        if Simulation(seed).conditions.wire:
            run_all([seed])
        if 0 in packed and max(packed) > 2:
            return
    pytest.fail(f"packed for {sorted(packed)} times as long at most")


def test_every_fault_of_bytes_happens() -> None:
    missing = {kind.value for kind in OF_BYTES}
    for seed in WIRED:
        missing -= run_all([seed])
        if not missing:
            return
    pytest.fail(f"never happened: {missing}")


def test_a_decoder_that_loses_half_a_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Decoder.feed

    def forgetful(self: Decoder, data: bytes) -> list[object]:
        messages = whole(self, data)
        self._buffer.clear()
        return list(messages)

    monkeypatch.setattr(Decoder, "feed", forgetful)
    with pytest.raises(Exception, match=r"control frame of|malformed|unknown|does not end"):
        run_all(WIRED)
