"""docs/protocol.md says what the code does."""

from pathlib import Path

import pytest

from docs import generate
from ftcomm.protocol.field_types import MAX_CONTROL_FRAME, MAX_WORLD_SIZE
from ftcomm.protocol.frame_header import HEADER_BYTES
from ftcomm.protocol.handshake import PROTOCOL_VERSION, ROLES
from ftcomm.protocol.schema import Field

TEXT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")


def test_the_numbers_in_the_prose_are_those_of_the_code() -> None:
    roles = ", ".join(f"{name} {code}" for name, code in ROLES.items())
    for said in (
        f"1 to {MAX_CONTROL_FRAME:,} bytes",
        f"at most {MAX_WORLD_SIZE:,} members",
        f"header of {HEADER_BYTES} bytes",
        f"protocol version, now {PROTOCOL_VERSION}",
        roles,
    ):
        assert said in TEXT


def test_a_kind_without_words_is_noticed() -> None:
    class Odd(Field):
        def write(self, value: object) -> None: ...
        def read(self, reader: object) -> None: ...

    with pytest.raises(AssertionError, match="undescribed"):
        generate.describe(Odd())
