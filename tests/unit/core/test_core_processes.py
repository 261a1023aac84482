"""Ranks in processes of their own: one that is killed, one that is stopped, and Ctrl-C."""

import contextlib
import os
import random
import signal
import threading

import numpy as np
import pytest
import ranks_of_a_host as harness

from ftcomm.core.segment import READY_AT

pytestmark = [
    harness.needs_a_core,
    pytest.mark.process,
    pytest.mark.smoke,
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]
KILLS = 20
COUNTS = (300, 200_000)  # the second one has five chunks


class Forked:
    """A child that is one rank.

    Attributes:
        pid: of the process.
    """

    def __init__(self, act) -> None:
        """Fork; the child runs `act` of a function that waits for `say`, and ends with 0 or 1."""
        heard, self._say = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                os.close(self._say)
                act(lambda: os.read(heard, 1))
                status = 0
            os._exit(status)
        os.close(heard)

    def say(self) -> None:
        os.write(self._say, b"x")

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def status(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self._say)
        return os.waitstatus_to_exitcode(status)


def calls_until_interrupted(core, rank, ranks, count, interrupted):
    """Make calls; each result must be right, and the input intact in the one that fails."""
    form = core.form(harness.SUFFIX, np.add, np.dtype("i8"), 8 * count)
    x, out = np.zeros(count, "i8"), np.zeros(count, "i8")

    def interrupt():
        interrupted()
        core.interrupt()

    threading.Thread(target=interrupt, daemon=True).start()
    seqno = 0
    while True:
        x[:] = (rank + 1) * seqno
        status = form.run(x, out, 1, 0, 0, seqno, 0)
        assert (x == (rank + 1) * seqno).all()
        if status:
            break
        assert (out == ranks * (ranks + 1) // 2 * seqno).all()
        seqno += 1
    last = max(seqno - 1, 0)
    assert (status, form.run(x, out, 1, 0, 0, seqno, 0)) == (-1, -1)
    if count == COUNTS[0]:  # a large call may have filled a part of it
        assert (out == ranks * (ranks + 1) // 2 * last).all()


@pytest.mark.parametrize("count", COUNTS)
def test_a_rank_that_is_killed_spoils_nothing(kind, count):
    seeds = random.Random(5)
    for _ in range(KILLS):
        host = harness.Host(kind, 3)

        def act(interrupted, rank):
            core = host.cores[rank]  # noqa: B023 - forked
            calls_until_interrupted(core, rank, 3, count, interrupted)

        children = [Forked(lambda heard, rank=rank: act(heard, rank)) for rank in host.ranks]
        enough, spins = seeds.randrange(200), seeds.randrange(2000)
        harness.await_condition(lambda: host.word(0, READY_AT) > enough)  # noqa: B023 - in this turn
        for _ in range(spins):
            pass
        victim = children.pop(seeds.randrange(3))
        victim.signal(signal.SIGKILL)
        assert victim.status() == -signal.SIGKILL
        for child in children:
            child.say()
        assert [child.status() for child in children] == [0, 0]


@pytest.mark.parametrize("count", [1, 100_000])
def test_a_rank_that_is_stopped_is_waited_for_and_named(kind, count):
    """It stops itself between two calls."""
    host, number = harness.Host(kind, 2), 100

    def calls(rank, before_call):
        form = host.cores[rank].form(harness.SUFFIX, np.add, np.dtype("i8"), 8 * count)
        x, out, statuses = np.ones(count, "i8"), np.zeros(count, "i8"), []
        for seqno in range(number):
            before_call(seqno)
            statuses.append(form.run(x, out, 1, 0, 0, seqno, 0))
        return statuses

    def stop(seqno):
        if seqno == number // 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    def act(_):
        assert calls(1, stop) == [0] * number

    child = Forked(act)
    own = harness.Background(lambda: calls(0, lambda _: None))
    os.waitpid(child.pid, os.WUNTRACED)
    harness.await_condition(lambda: host.cores[0].missing() == (1,))
    assert own.outcome is None
    child.signal(signal.SIGCONT)
    assert (own.result(), child.status()) == ([0] * number, 0)


def test_ctrl_c_ends_a_process_that_waits(kind):
    host = harness.Host(kind, 2)

    def act(_):
        form = host.cores[0].form(harness.SUFFIX, None, None, 0)
        with pytest.raises(KeyboardInterrupt):
            form.run(None, None, *harness.POSITION)

    child = Forked(act)
    harness.await_condition(lambda: host.word(0, READY_AT) == 1)
    child.signal(signal.SIGINT)
    assert child.status() == 0
