"""A simulated connection does what TCP does, and what networks do to it."""

from collections.abc import Callable
from typing import Any

import pytest

from ftcomm_chaos.sim.network.byte_pipe import End, Pipe
from ftcomm_chaos.sim.world import World

WORDS = [bytes([number]) * (number + 1) for number in range(40)]
ALL = b"".join(WORDS)


class Ear:
    """A process with one end of a connection."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.over: list[str] = []

    def deliver(self, action: Callable[..., None], *args: Any) -> None:
        action(*args)

    def listen(self, end: End) -> None:
        end.on_bytes, end.on_over = self.heard.extend, self.over.append


def connected(seed: int = 1) -> tuple[World, Pipe, Ear, Ear]:
    world, near, far = World(seed), Ear(), Ear()
    pipe = Pipe(world, near, far)
    for ear, end in zip((near, far), pipe.ends, strict=True):
        ear.listen(end)
    return world, pipe, near, far


def say_all(world: World, end: End) -> None:
    for word in WORDS:
        end.send(word)


def run(world: World) -> None:
    while world.run_one():
        pass


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_once_in_order_in_any_slices(seed: int) -> None:
    world, pipe, near, far = connected(seed)
    say_all(world, pipe.ends[0])
    say_all(world, pipe.ends[1])
    run(world)
    assert (bytes(near.heard), bytes(far.heard)) == (ALL, ALL)
    assert near.over == far.over == []


@pytest.mark.parametrize("count", [0, 1, 7, 100, len(ALL) - 1])
def test_a_cut_lets_so_many_bytes_through_and_both_ends_hear_of_it(count: int) -> None:
    world, pipe, near, far = connected()
    pipe.cut_after(pipe.ends[0], count)
    say_all(world, pipe.ends[0])
    run(world)
    assert bytes(far.heard) == ALL[:count]
    assert (near.over, far.over) == (["connection reset"], ["connection reset"])


def test_what_is_held_up_arrives_later_and_whole() -> None:
    world, pipe, _, far = connected()
    pipe.stall(pipe.ends[0], 3.0)
    say_all(world, pipe.ends[0])
    while world.run_one() and not far.heard:
        pass
    assert world.now >= 3.0
    run(world)
    assert bytes(far.heard) == ALL


def test_one_way_is_one_way_and_nobody_is_told() -> None:
    world, pipe, near, far = connected()
    pipe.silence(pipe.ends[0])
    say_all(world, pipe.ends[0])
    say_all(world, pipe.ends[1])
    run(world)
    assert (bytes(near.heard), bytes(far.heard)) == (ALL, b"")
    assert near.over == far.over == []


@pytest.mark.parametrize(("audible", "told"), [(True, ["connection reset"]), (False, [])])
def test_a_half_open_connection_is_up_for_one_end(audible: bool, told: list[str]) -> None:
    world, pipe, near, far = connected()
    pipe.forget(pipe.ends[0], audible=audible)
    run(world)
    assert (near.over, far.over) == (["connection reset"], [])
    say_all(world, pipe.ends[1])
    run(world)
    assert (bytes(near.heard), far.over) == (b"", told)


def test_closing_gently_loses_nothing_that_was_sent() -> None:
    for seed in range(20):
        world, pipe, near, far = connected(seed)
        say_all(world, pipe.ends[0])
        pipe.ends[0].close(gently=True)
        run(world)
        assert (bytes(far.heard), far.over, near.over) == (ALL, ["closed"], [])


def test_closing_may_lose_what_was_sent_but_never_what_came_before() -> None:
    heard = set()
    for seed in range(20):
        world, pipe, _, far = connected(seed)
        say_all(world, pipe.ends[0])
        pipe.ends[0].close()
        run(world)
        assert ALL.startswith(bytes(far.heard))
        assert len(far.over) == 1
        heard.add(len(far.heard))
    assert len(ALL) in heard
    assert len(heard) > 1
