"""Names of reduction ops: in any case, with aliases, as members of an enumeration, or mistyped."""

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest

import ftcomm
from ftcomm.collectives.op_argument import OpName, canonical_name
from ftcomm.protocol.signature import OpCode
from ftcomm.requests.request import CallOptions


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


CANONICAL = ("sum", "prod", "min", "max", "mean", "band", "bor", "bxor", "land", "lor")
NAMES = {**{name: name for name in CANONICAL}, "avg": "mean", "product": "prod"}


def test_the_types_the_enumeration_and_the_wire_have_the_same_names() -> None:
    assert set(get_args(OpName)) == set(NAMES)
    assert {name.lower(): str(op) for name, op in ftcomm.Op.__members__.items()} == NAMES
    on_the_wire = {code.name.lower() for code in OpCode} - {"none", "function"}
    assert on_the_wire == set(NAMES.values())


def test_every_spelling_is_the_same_operation(comm: ftcomm.Communicator) -> None:
    def form(op: Any, kind: str) -> Any:
        return comm._session.builder.allreduce(np.ones(3, kind), CallOptions(op), "a.py:1").form

    for spelling, name in NAMES.items():
        kind = "f8" if name == "mean" else "i8"
        member = ftcomm.Op[spelling.upper()]
        for op in (spelling, spelling.upper(), spelling.capitalize(), member):
            assert form(op, kind) is form(name, kind), op
            assert type(canonical_name(op)) is str


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("sun", "did you mean 'sum'?"),
        ("average", "did you mean 'mean'?"),
        ("Maximum", "did you mean 'max'?"),
        ("MPI_PROD", "did you mean 'prod'?"),
        ("add", "did you mean 'sum'?"),
        ("logical_or", "did you mean 'lor'?"),
        ("produkt", "did you mean 'product'?"),
        ("", "called ''; use one of sum, prod, min, max, mean, band, bor, bxor, land, lor, avg,"),
        ("quantile", "called 'quantile'; use one of"),
    ],
)
def test_a_typo_gets_a_hint_in_every_call(
    comm: ftcomm.Communicator, typed: Any, words: str
) -> None:
    with comm.engine() as engine:
        calls: list[Any] = [comm.allreduce, comm.reduce, comm.iallreduce, comm.ireduce]
        for call in [*calls, engine.allreduce, lambda x, op: comm.bucketed([x], op)]:
            with pytest.raises(ValueError, match=words.replace("?", r"\?")):
                call(np.ones(3), typed)
    assert comm.seqno == 0


def test_every_call_takes_every_kind_of_op(comm: ftcomm.Communicator) -> None:
    x = np.array([1.0, 2.0])
    mine = ftcomm.reduction(lambda a, b: np.maximum(a, b) + 0, name="mine")
    for op in ("Max", ftcomm.Op.MAX, max, np.maximum, mine):
        results = [
            comm.allreduce(x, op),  # type: ignore[arg-type]  # any case is for run time
            comm.reduce(x, op),  # type: ignore[arg-type]  # likewise
            comm.iallreduce(x, op).wait(),  # type: ignore[arg-type]  # likewise
            comm.ireduce(x, op).wait(),  # type: ignore[arg-type]  # likewise
            comm.bucketed([x], op)[0],  # type: ignore[arg-type]  # likewise
        ]
        assert [None if r is None else r.tolist() for r in results] == [[1.0, 2.0]] * 5
        with comm.engine() as engine:
            engine.allreduce(x, op)  # type: ignore[arg-type]  # likewise
