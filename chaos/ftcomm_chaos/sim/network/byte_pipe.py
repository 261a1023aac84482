"""A simulated connection: bytes in order in each direction, in any slices, until something breaks.

As with TCP, a direction is never reordered; what is under way when the connection is reset is lost
at any byte; and an end learns of its death only if something tells it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ftcomm_chaos.sim.world import World

SLICED = 0.3  # share of writes that arrive in pieces
MOST_SLICES = 4
TOLD_S = (0.001, 0.1)  # until a kernel knows of a reset
SMALL_BYTES = 160  # of a piece that passes where large packets vanish: handshakes, small frames


class Process(Protocol):
    """Owner of an end: the tracker, or an incarnation of a worker."""

    def deliver(self, action: Callable[..., None], *args: Any) -> None:
        """Run `action`, now or when the process goes on; never if it has ended."""


@dataclass
class Direction:
    """Bytes that one end sends to the other.

    Attributes:
        arrives: when the last piece that was sent arrives; a later one is not earlier.
        silent: whatever is sent vanishes.
        left: bytes that still arrive before the connection is reset, None without limit.
    """

    arrives: float = 0.0
    silent: bool = False
    left: int | None = None


class End:
    """One process's end of a connection.

    Attributes:
        over: closed here, or known to be dead.
        on_bytes: takes what arrives.
        on_over: told once that the connection has ended, if not by this end.
    """

    def __init__(self, pipe: "Pipe", owner: Process) -> None:
        self.pipe, self.owner = pipe, owner
        self.out = Direction()
        self.over = False
        self.on_bytes: Callable[[bytes], None] = _ignore
        self.on_over: Callable[[str], None] = _ignore

    @property
    def other(self) -> "End":
        """The far end."""
        one, two = self.pipe.ends
        return two if self is one else one

    def send(self, data: bytes) -> None:
        """Send bytes; nobody says whether they arrive."""
        if self.over or self.pipe.is_reset or not data:
            return
        self.out.silent |= self.pipe.has_hole and len(data) > SMALL_BYTES
        if self.pipe.forgotten:  # the other end's host knows nothing of it
            self.pipe.reset()
            return
        world = self.pipe.world
        for piece in _slices(world, data):
            when = max(world.now + world.transit(), self.out.arrives)
            self.out.arrives = when
            world.at(when, self.pipe.arrive, self, piece)

    def close(self, *, gently: bool = False) -> None:
        """End it from here: the other end is told after what was sent, or at once by a reset.

        Gently, it waits for the other end: nothing that was sent is lost.
        """
        if self.over:
            return
        self.over = True
        world, far = self.pipe.world, self.other
        if self.pipe.is_reset or self.out.silent:
            return
        if not gently and world.chance(0.5):
            self.pipe.is_reset = True
            world.after(world.transit(), far.owner.deliver, far.learn, "reset")
        else:
            when = max(world.now + world.transit(), self.out.arrives)
            world.at(when, self.pipe.close_arrives, far)

    def learn(self, reason: str) -> None:
        """The kernel of this end knows that it is over."""
        if not self.over:
            self.over = True
            self.on_over(reason)

    def take(self, data: bytes) -> None:
        """Bytes reach the process."""
        if not self.over:
            self.on_bytes(data)


class Pipe:
    """One connection.

    Attributes:
        ends: of who dialled, of who accepted.
        is_reset: nothing passes any more; each end learns it in its time.
        forgotten: one end is gone and has said nothing: who sends is told so, or hears nothing.
        has_hole: nothing arrives behind the first large piece that an end sends.
    """

    def __init__(self, world: World, near: Process, far: Process) -> None:
        self.world = world
        self.is_reset = False
        self.forgotten = False
        self.has_hole = False
        self.ends = (End(self, near), End(self, far))

    @property
    def is_open(self) -> bool:
        """A fault may still hurt it."""
        return not self.is_reset and not any(end.over or end.out.silent for end in self.ends)

    def arrive(self, sender: End, data: bytes) -> None:
        """A piece has crossed the network, unless there is no way any more."""
        out = sender.out
        if self.is_reset or out.silent:
            return
        if out.left is not None:
            data = data[: out.left]
            out.left -= len(data)
        far = sender.other
        if data:
            far.owner.deliver(far.take, data)
        if out.left == 0:
            self.reset()

    def close_arrives(self, far: End) -> None:
        """The far end's kernel hears that nothing more comes."""
        if not self.is_reset:
            far.owner.deliver(far.learn, "closed")

    # --- faults -------------------------------------------------------------------------------

    def reset(self) -> None:
        """The connection breaks now: what is under way is lost, both ends are told in time."""
        if self.is_reset:
            return
        self.is_reset = True
        for end in self.ends:
            self.world.after(
                self.world.between(*TOLD_S), end.owner.deliver, end.learn, "connection reset"
            )

    def cut_after(self, sender: End, count: int) -> None:
        """It breaks when `count` more bytes of `sender` have arrived: within a message or not."""
        sender.out.left = count
        if not count:
            self.reset()

    def stall(self, sender: End, seconds: float) -> None:
        """Nothing of `sender` arrives for a while; then all of it does."""
        sender.out.arrives = max(sender.out.arrives, self.world.now + seconds)

    def silence(self, *senders: End) -> None:
        """Drop all messages from these processes, without notice to either side."""
        for sender in senders or self.ends:
            sender.out.silent = True

    def forget(self, gone: End, *, audible: bool) -> None:
        """`gone` loses it at once; the other end thinks that it is up until it sends, or longer."""
        self.forgotten = audible
        gone.owner.deliver(gone.learn, "connection reset")
        gone.out.silent = True
        if not audible:
            gone.other.out.silent = True


def _slices(world: World, data: bytes) -> list[bytes]:
    if len(data) < 2 or not world.chance(SLICED):
        return [data]
    count = world.rng.randint(1, MOST_SLICES - 1)
    cuts = sorted({world.rng.randrange(1, len(data)) for _ in range(count)})
    return [data[lo:hi] for lo, hi in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _ignore(_: object) -> None:
    """Nobody listens yet."""
