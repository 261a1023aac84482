"""Valid input made slightly wrong, as a broken or ill-meaning peer makes it."""

from collections.abc import Callable, Collection

from hypothesis import strategies as st

Change = Callable[[bytes], bytes]
PLACE = st.integers(0, 1 << 16)  # taken modulo the input's length
# What a length field says when it lies: nothing, too little, the limits and all that follows.
LENGTHS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


def mutations(whole: Collection[bytes], limit: int) -> st.SearchStrategy[bytes]:
    """Some input of `whole`, changed in up to four ways, of at most `limit` bytes."""
    ways = _flip() | _cut() | _double() | _inflate() | _splice(whole)

    def change(raw: bytes, changes: list[Change]) -> bytes:
        for each in changes:
            raw = each(raw)[:limit]
        return raw

    return st.builds(change, st.sampled_from(sorted(whole)), st.lists(ways, max_size=4))


def _flip() -> st.SearchStrategy[Change]:
    def change(raw: bytes, at: int, bits: int) -> bytes:
        flipped = bytearray(raw or b"\0")
        flipped[at % len(flipped)] ^= bits
        return bytes(flipped)

    return _of(change, PLACE, st.integers(1, 255))


def _cut() -> st.SearchStrategy[Change]:
    return _of(lambda raw, at: raw[: at % (len(raw) + 1)], PLACE)


def _double() -> st.SearchStrategy[Change]:
    def change(raw: bytes, at: int, count: int, times: int) -> bytes:
        at %= len(raw) + 1
        return raw[:at] + raw[at : at + count] * times + raw[at:]

    return _of(change, PLACE, st.integers(1, 64), st.integers(1, 64))


def _inflate() -> st.SearchStrategy[Change]:
    def change(raw: bytes, at: int, width: int, value: int, order: str) -> bytes:
        at %= len(raw) + 1
        field = (value % (1 << 8 * width)).to_bytes(width, "big" if order == "big" else "little")
        return raw[:at] + field + raw[at + width :]

    widths, orders = st.sampled_from([1, 2, 4, 8]), st.sampled_from(["big", "little"])
    return _of(change, PLACE, widths, st.sampled_from(LENGTHS), orders)


def _splice(whole: Collection[bytes]) -> st.SearchStrategy[Change]:
    def change(raw: bytes, other: bytes, at: int, start: int) -> bytes:
        return raw[: at % (len(raw) + 1)] + other[start % (len(other) + 1) :]

    return _of(change, st.sampled_from(sorted(whole)), PLACE, PLACE)


def _of(
    change: Callable[..., bytes], *arguments: st.SearchStrategy[object]
) -> st.SearchStrategy[Change]:
    return st.tuples(*arguments).map(lambda given: lambda raw: change(raw, *given))
