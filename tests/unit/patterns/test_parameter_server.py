"""The parameter server: tables as if they were in one place, whoever has which rows."""

from typing import Any

import numpy as np
import pytest

import ftcomm
from ftcomm.patterns import ParameterServer
from ftcomm.testing import local_group

Array = np.ndarray[Any, Any]
RANKS = 3
RATE = 0.5


def sgd(rows: Array, sums: Array) -> Array:
    return rows - RATE * sums


def table(rows: int) -> Array:
    return np.arange(rows * 2.0).reshape(rows, 2)


def pushed(rank: int, shape: tuple[int, ...]) -> Array:
    """Small whole numbers, whose sums are exact in any order."""
    return np.random.default_rng(rank).integers(-8, 8, shape).astype(float)


@pytest.mark.parametrize("rows", [7, 2, 0])
def test_a_push_of_all_rows_and_a_pull(rows: int) -> None:
    """Also with more ranks than rows."""

    def job(comm: ftcomm.Communicator) -> Any:
        server = ParameterServer(comm, {"w": table(rows)}, sgd)
        comm.load_checkpoint()
        before = server.pull("w")
        server.push("w", pushed(comm.rank, before.shape))
        return before, server.pull("w"), server.shards["w"]

    with local_group(RANKS) as group:
        found = group.run(job)
    wanted = table(rows) - RATE * sum(pushed(rank, (rows, 2)) for rank in range(RANKS))
    for before, after, _ in found:
        assert (before.tolist(), after.tolist()) == (table(rows).tolist(), wanted.tolist())
    assert np.concatenate([shard for _, _, shard in found]).tolist() == wanted.tolist()


INDICES: tuple[list[int], ...] = ([6, 0, 6, 3], [], [3, 1, 6])


def test_a_push_and_a_pull_of_some_rows() -> None:
    """Rows that are named several times, by one rank or by two, and a rank that names none."""

    def job(comm: ftcomm.Communicator) -> Any:
        index = INDICES[comm.rank]
        server = ParameterServer(comm, {"w": table(7)}, sgd)
        comm.load_checkpoint()
        server.push("w", pushed(comm.rank, (len(index), 2)), index)
        return server.pull("w", index), server.pull("w")

    with local_group(RANKS) as group:
        found = group.run(job)
    wanted = table(7)
    for rank, index in enumerate(INDICES):
        for row, values in zip(index, pushed(rank, (len(index), 2)), strict=True):
            wanted[row] -= RATE * values
    for (some_rows, all_rows), index in zip(found, INDICES, strict=True):
        assert some_rows.tolist() == wanted[index].tolist()
        assert all_rows.tolist() == wanted.tolist()


def test_only_named_rows_are_updated() -> None:
    seen = []

    def note(rows: Array, sums: Array) -> Array:
        seen.append((rows.tolist(), sums.tolist()))
        return rows

    with ftcomm.init("none") as comm:
        server = ParameterServer(comm, {"w": table(4)}, note)
        server.push("w", np.ones((3, 2)), [2, 0, 2])
    assert seen == [([[0.0, 1.0], [4.0, 5.0]], [[1.0, 1.0], [2.0, 2.0]])]


def test_shards_are_loaded_and_the_servers_own() -> None:
    with ftcomm.init("none") as comm:
        given = table(3)
        server = ParameterServer(comm, {"w": given}, sgd)
        loaded = {"w": table(3) + 1.0}
        server.load(loaded)
        loaded["w"][:] = given[:] = -1.0
        assert server.pull("w").tolist() == (table(3) + 1.0).tolist()
        with pytest.raises(ValueError, match=r"the checkpoint has \['v'\], the server \['w'\]"):
            server.load({"v": given})
        with pytest.raises(ValueError, match=r"rows of table 'w' are float64\[2, 2\], must be"):
            server.load({"w": table(2)})


@pytest.mark.parametrize(
    ("call", "differs"),
    [
        (lambda server, rank: server.pull("wv"[rank], [0]), "tag: '[wv]' and '[wv]'"),
        (lambda server, rank: server.pull("v", [0]), "tag: [78] and [78]"),
        (lambda server, rank: server.push("v", np.ones((1, 2)), [0]), "tag: [78] and [78]"),
        (lambda server, rank: server.push("v", np.ones((7 + rank, 2))), "shape: "),
        (lambda server, rank: server.pull("v"), "counts: "),
    ],
    ids=["name", "rows pulled", "rows pushed", "all pushed", "all pulled"],
)
def test_calls_for_other_tables_do_not_match(call: Any, differs: str) -> None:
    def job(comm: ftcomm.Communicator) -> None:
        server = ParameterServer(comm, {"w": table(7), "v": table(7 + comm.rank)}, sgd)
        comm.load_checkpoint()
        call(server, comm.rank)

    with (
        local_group(2) as group,
        pytest.raises(ftcomm.CollectiveMismatchError, match=f"they differ in {differs}"),
    ):
        group.run(job)


@pytest.mark.parametrize("consistency", ["async", "bounded:4"])
def test_what_follows_from_timing_is_not_implemented(consistency: str) -> None:
    with (
        ftcomm.init("none") as comm,
        pytest.raises(NotImplementedError, match=f"'{consistency}' is not implemented"),
    ):
        ParameterServer(comm, {}, sgd, consistency=consistency)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda server: server.pull("v"), r"pull\('v'\): there are only the tables \['w'\]"),
        (lambda server: server.push("w", table(3)), r"the values of table 'w' are float64\[3, 2\]"),
        (lambda server: server.push("w", table(4).astype("f4")), r"are float32\[4, 2\], must be"),
        (lambda server: server.push("w", table(1), [0, 1]), r"must be float64\[2, 2\]"),
        (lambda server: server.pull("w", [0, 4]), "has 0 to 4, and its rows are 0 to 3"),
        (lambda server: server.pull("w", [-1]), "has -1 to -1, and its rows are 0 to 3"),
        (lambda server: server.pull("w", [0.5]), r"is float64\[1\], must be a list of row numbers"),
        (lambda server: server.pull("w", [[1]]), r"is int64\[1, 1\], must be a list"),
        (lambda server: server.pull("w", 1), r"is int64\[\], must be a list of row numbers"),
    ],
    ids=["table", "rows", "dtype", "count", "behind", "before", "kind", "shape", "number"],
)
def test_a_wrong_call_names_the_table_and_sends_nothing(call: Any, error: str) -> None:
    with ftcomm.init("none") as comm:
        server, before = ParameterServer(comm, {"w": table(4)}, sgd), comm.position
        with pytest.raises((TypeError, ValueError, IndexError), match=error):
            call(server)
        assert comm.position == before


def test_an_update_returns_rows() -> None:
    with ftcomm.init("none") as comm:
        server = ParameterServer(comm, {"w": table(4)}, lambda rows, _: rows[0])
        with pytest.raises(ValueError, match=r"the rows that update\(\) returned of table 'w' are"):
            server.push("w", table(4))


def test_tables_have_rows_and_consistency_is_known() -> None:
    with ftcomm.init("none") as comm:
        with pytest.raises(ValueError, match="table 'w' is one number, must have rows"):
            ParameterServer(comm, {"w": np.array(1.0)}, sgd)
        with pytest.raises(ValueError, match="consistency is 'bps', must be 'bsp'"):
            ParameterServer(comm, {}, sgd, consistency="bps")
