"""Counts of calls: several threads may send and receive at once."""

from ftcomm.api.public_values import KindStats
from ftcomm.api.session import CallStats
from ftcomm.protocol.signature import Kind
from ftcomm.recovery.unasked_calls import UnaskedCalls


def test_calls_of_several_threads_are_counted_one_after_another() -> None:
    class Size(int):
        """A size that another thread may not add to the same row while it is added."""

        def __radd__(self, total: int) -> int:
            assert stats._lock.locked()
            return total + int(self)

    stats = CallStats(UnaskedCalls())
    for nbytes in (3, 4):
        stats.add(Kind.SEND, Size(nbytes), 0.5)
    assert stats.snapshot() == {"send": KindStats(2, 7, 1.0)}
