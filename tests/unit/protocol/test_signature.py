"""Codes in a signature: the type of a broadcast number, and what is kept of a call."""

from dataclasses import replace

import pytest

from ftcomm.errors import ProtocolError
from ftcomm.protocol.signature import (
    Kind,
    LogMode,
    Scalar,
    Signature,
    Wire,
    agree,
    differing_fields,
    is_contributed,
    logged_as,
    scalar_of,
)

ARRAY = Signature(Kind.BROADCAST, dtype=12, root=0, count=1)
NUMBERS = {scalar: replace(ARRAY, dims=(scalar, 0, 0, 0)) for scalar in Scalar}
OPEN = Signature(Kind.BROADCAST, root=0)


def test_the_types_of_a_number_differ_and_a_rank_without_one_agrees_with_each() -> None:
    raw = {scalar: signature.encode() for scalar, signature in NUMBERS.items()}
    alike = [(one, other) for one in raw for other in raw if agree(raw[one], raw[other])]
    assert alike == [(scalar, scalar) for scalar in Scalar]
    assert all(agree(OPEN.encode(), whole) for whole in raw.values())
    assert [scalar_of(whole) for whole in raw.values()] == list(Scalar)


def test_only_a_broadcast_without_dimensions_has_the_type_of_a_number() -> None:
    others = (
        replace(ARRAY, ndim=1, dims=(1, 0, 0, 0)),
        replace(NUMBERS[Scalar.PYTHON], kind=Kind.ALLREDUCE),
    )
    assert [scalar_of(other.encode()) for other in others] == [Scalar.ARRAY] * 2


def test_an_unknown_type_of_a_number_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown code"):
        Signature.decode(replace(ARRAY, dims=(3, 0, 0, 0)).encode())


def test_what_is_kept_of_a_call_is_part_of_its_signature() -> None:
    whole = Signature(Kind.ALLTOALL, dtype=12, count=4, wire=Wire.BF16)
    contributed = replace(whole, log=LogMode.CONTRIBUTIONS)
    assert [is_contributed(each.encode()) for each in (whole, contributed)] == [False, True]
    assert Signature.decode(contributed.encode()) == contributed
    assert not agree(whole.encode(), contributed.encode())
    named = differing_fields(whole.encode(), contributed.encode())
    assert named == "log: whole and contributions"
    assert "wire=bf16, log=contributions" in str(contributed)


def test_an_unknown_log_mode_is_refused() -> None:
    raw = bytearray(Signature(Kind.ALLTOALL, log=LogMode.CONTRIBUTIONS).encode())
    raw[7] = 0xF0
    with pytest.raises(ProtocolError, match="unknown code"):
        Signature.decode(bytes(raw))


def test_a_log_that_was_chosen_by_size_agrees_with_the_call_that_left_it_open() -> None:
    def of(log: LogMode) -> bytes:
        return Signature(Kind.GATHERV, dtype=12, root=0, ndim=1, log=log).encode()

    open_, whole, inputs = map(of, (LogMode.BY_SIZE, LogMode.WHOLE, LogMode.CONTRIBUTIONS))
    assert logged_as(open_) == (whole, inputs)
    assert logged_as(whole) == (whole,)
    assert agree(open_, whole)
    assert agree(inputs, open_)
    assert not agree(whole, inputs)
    assert logged_as(b"short") == (b"short",)
