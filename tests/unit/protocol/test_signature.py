"""The type of a broadcast number: part of the signature, refused where its code is unknown."""

from dataclasses import replace

import pytest

from ftcomm.errors import ProtocolError
from ftcomm.protocol.signature import Kind, Scalar, Signature, agree, scalar_of

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
