"""Effect of an impaired network on one direction of a connection: pure, from a seed, by byte.

Which bits are flipped and where the bytes are cut into pieces follows from the seed and from the
bytes' places in the stream alone, and never from how they happened to arrive; a run can be had
again.  When each piece leaves follows from the time of its arrival, which is an argument.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

FIN: Final = "fin"
RST: Final = "rst"
CUTS: Final = (FIN, RST)
BITS = 8


@dataclass(frozen=True, slots=True)
class Impairments:
    """The conditions of one direction; the default is fair impairments.

    Attributes:
        latency_s: seconds that every byte is late.
        jitter_s: up to so many seconds more, drawn for each piece; the order stays.
        bytes_per_s: what goes through in a second, 0 for no limit.
        slice_bytes: bytes leave in pieces of 1 to so many, each sent alone; 0 leaves them whole.
        flip_every: one flipped bit in about so many bytes, 0 for none.
        flips: places of bytes in which a bit is flipped, beside those.
        cut_after: the connection ends behind so many bytes of this direction, None for never.
        cut_by: ``fin`` or ``rst``, for both ends.
        swallow: bytes are taken and thrown away, and the connection stays open, as if its other
            end had lost its power.  A direction that has lost bytes never carries any again.
        paused: nothing is taken, so that the sender's buffers fill.
    """

    latency_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float = 0.0
    slice_bytes: int = 0
    flip_every: int = 0
    flips: tuple[int, ...] = ()
    cut_after: int | None = None
    cut_by: str = FIN
    swallow: bool = False
    paused: bool = False

    def __post_init__(self) -> None:
        assert self.cut_by in CUTS, self.cut_by
        assert min(self.latency_s, self.jitter_s, self.bytes_per_s) >= 0, self
        assert min(self.slice_bytes, self.flip_every) >= 0, self


FAIR: Final = Impairments()


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes that leave together.

    Attributes:
        due_at: not before, on the clock of `ImpairedStream.take`'s `now`.
        data: the bytes, with flips; may be empty in front of a cut.
        cut: how the connection ends behind them, empty if it does not.
    """

    due_at: float
    data: bytes
    cut: str = ""


class ImpairedStream:
    """One direction of one connection.

    Attributes:
        taken: bytes taken so far: the place of the next one.
        flipped: places of the bytes in which a bit was flipped.
        deaf: bytes were swallowed, so that no more will come through.
    """

    def __init__(self, seed: str) -> None:
        self.taken = 0
        self.flipped: list[int] = []
        self.deaf = False
        self._seed = seed
        self._slice_dice, self._flip_dice, self._jitter_dice = (
            random.Random(f"{seed}/{what}") for what in ("slices", "flips", "jitter")
        )
        self._next_slice = 0
        self._next_flip = -1
        self._free_at = 0.0  # when the narrow place has let everything before through
        self._last_due = 0.0

    def take(self, data: bytes, impairments: Impairments, *, now: float) -> list[Piece]:
        """Pieces into which the next bytes fall, in order; empty if they are swallowed."""
        if impairments.swallow or self.deaf:
            self.deaf = True
            self.taken += len(data)
            return []
        end = self.taken + len(data)
        cut = impairments.cut_after is not None and end >= impairments.cut_after
        if cut:
            assert impairments.cut_after is not None
            data = data[: max(impairments.cut_after - self.taken, 0)]
        pieces = [
            Piece(self._due(len(part), impairments, now), self._with_flips(part, impairments))
            for part in self._slices(data, impairments)
        ]
        if cut:
            pieces.append(Piece(self._due(0, impairments, now), b"", impairments.cut_by))
        return pieces

    def _slices(self, data: bytes, impairments: Impairments) -> Iterator[bytes]:
        """Cut at places that the seed gives; `taken` moves on with each part."""
        begin = 0
        while begin < len(data):
            end = len(data)
            if impairments.slice_bytes:
                while self._next_slice <= self.taken:
                    self._next_slice += self._slice_dice.randint(1, impairments.slice_bytes)
                end = min(end, begin + self._next_slice - self.taken)
            yield data[begin:end]
            begin = end

    def _with_flips(self, part: bytes, impairments: Impairments) -> bytes:
        first, self.taken = self.taken, self.taken + len(part)
        places = {place for place in impairments.flips if first <= place < self.taken}
        if impairments.flip_every:
            places.update(self._drawn_flips(first, impairments.flip_every))
        if not places:
            return part
        changed = bytearray(part)
        for place in sorted(places):
            changed[place - first] ^= 1 << self._bit(place)
            self.flipped.append(place)
        return bytes(changed)

    def _bit(self, place: int) -> int:
        """Choose the bit to flip; a separate generator makes it independent of how bytes arrive."""
        return random.Random(f"{self._seed}/bit {place}").randrange(BITS)

    def _drawn_flips(self, first: int, mean: int) -> list[int]:
        """Places from `first` to `taken` that the dice name; the next one is drawn ahead."""
        places = []
        if self._next_flip < 0:
            self._next_flip = first + self._gap(mean)
        while self._next_flip < self.taken:
            if self._next_flip >= first:
                places.append(self._next_flip)
            self._next_flip += 1 + self._gap(mean)
        return places

    def _gap(self, mean: int) -> int:
        return int(self._flip_dice.expovariate(1 / mean))

    def _due(self, count: int, impairments: Impairments, now: float) -> float:
        """Return when `count` bytes leave: after all earlier bytes, and within the bandwidth."""
        self._free_at = max(self._free_at, now)
        if impairments.bytes_per_s:
            self._free_at += count / impairments.bytes_per_s
        late = impairments.latency_s + self._jitter_dice.uniform(0, impairments.jitter_s)
        self._last_due = max(self._last_due, self._free_at + late)
        return self._last_due
