"""Tags of collectives: codes that differ where the tags do, and texts for messages."""

import numpy as np
import pytest

from ftcomm.protocol.signature import (
    NO_TAG,
    Kind,
    LogMode,
    Signature,
    agree,
    differing_fields,
    is_compatible,
    logged_as,
    tag_code,
    tag_text,
    with_tag,
)

TAGS = [
    0,
    1,
    -1,
    2**55 - 1,
    -(2**55),
    2**55,
    2**64,
    -(2**64),
    10**5000,
    "",
    "0",
    "1",
    "bucket7",
    "bucket 10",
    "bücket",
]


def test_tags_that_differ_have_codes_that_differ() -> None:
    codes = [tag_code(tag) for tag in [None, *TAGS]]
    assert len(set(codes)) == len(codes)
    assert all(0 <= code < 1 << 64 for code in codes)
    assert tag_code(None) == NO_TAG


@pytest.mark.parametrize(
    ("tag", "text"),
    [(None, "none"), (0, "0"), (-7, "-7"), ("", "''"), ("bucket7", "'bucket7'"), (np.int8(3), "3")],
    ids=str,
)
def test_a_short_tag_is_named(tag: int | str | None, text: str) -> None:
    assert tag_text(tag_code(tag)) == text


@pytest.mark.parametrize("tag", [2**60, "gradients of layer 3", "ééééé"], ids=str)
def test_a_long_tag_is_named_by_its_digest(tag: int | str) -> None:
    assert tag_text(tag_code(tag)).startswith("#")


@pytest.mark.parametrize("code", [0xFF, 25, 16 + 7 + (0xFF << 8), 2**64 - 1])
def test_a_code_that_no_tag_has_is_only_shown(code: int) -> None:
    assert tag_text(code).isascii()


@pytest.mark.parametrize("tag", [1.0, b"raw", ("a",)], ids=repr)
def test_what_is_no_tag_is_refused(tag: object) -> None:
    with pytest.raises(TypeError, match="tag must be an int or a str, not"):
        tag_code(tag)  # type: ignore[arg-type]  # that is the point


def test_signatures_with_different_tags_do_not_agree() -> None:
    plain = Signature(Kind.ALLREDUCE, dtype=12, count=3).encode()
    one, other = (with_tag(plain, tag_code(tag)) for tag in ("a", "b"))
    assert with_tag(one, NO_TAG) == plain
    assert not agree(one, other)
    assert not agree(one, plain)
    assert differing_fields(one, other) == "tag: 'a' and 'b'"
    assert differing_fields(one, plain) == "tag: 'a' and none"
    assert str(Signature.decode(one)).endswith(", tag='a')")


def test_the_tag_is_known_before_the_input_and_kept_by_the_log() -> None:
    code = tag_code(5)
    known = Signature(Kind.ALLTOALL, log=LogMode.BY_SIZE, tag=code).encode()
    whole = Signature(Kind.ALLTOALL, dtype=12, count=3, log=LogMode.CONTRIBUTIONS, tag=code)
    assert is_compatible(known, whole.encode())
    assert not is_compatible(known, with_tag(whole.encode(), tag_code(6)))
    assert [Signature.decode(raw).tag for raw in logged_as(known)] == [code, code]
