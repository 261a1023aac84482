"""Valid input for the words of a link over shared memory, by name."""

from ftcomm.transport.shm_layout import MIN_RING_BYTES, WORDS_BYTES, words_of


def ring_words() -> dict[str, bytes]:
    """At rest, with bytes to read, full; and thrice, as room is given and taken."""

    def page(**words: int) -> bytes:
        raw = memoryview(bytearray(WORDS_BYTES)).cast("Q")
        for name, value in words.items():
            raw[getattr(words_of(0), name)] = value
        return raw.tobytes()

    return {
        "at-rest": page(their_waits_for_data=1, their_waits_for_room=1),
        "to-read": page(their_written=100),
        "read-all": page(their_read=MIN_RING_BYTES, their_written=MIN_RING_BYTES),
        "too-far": page(their_written=MIN_RING_BYTES + 1, their_read=2**64 - 1),
        "taken-back": page() + page(their_read=200) + page(their_read=120),
    }
