"""Messages of threads beside the calls of their ranks: in a checkpoint, a close, at the end."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import ftcomm
from ftcomm.api.call_guard import CallGuard
from ftcomm.api.messages import MessageCalls
from ftcomm.control.messages.posted_receives import PostedReceive
from ftcomm.engine.message_port import MessagePort
from ftcomm.engine.runs.cut_check import CutCheck
from ftcomm.execution.header_check import CallHeader
from ftcomm.testing import local_group

pytestmark = pytest.mark.process

LIMIT_S = 60.0  # of a call of a second on a machine that is busy with others


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when rank 0 has said in a cut which messages it has sent and received."""
    event, opening = threading.Event(), CutCheck.opening

    def told(check: CutCheck, epoch: int) -> tuple[int, bool]:
        said = opening(check, epoch)
        if check._core.view.rank == 0:
            event.set()
        return said

    monkeypatch.setattr(CutCheck, "opening", told)
    return event


def _checkpoint(comm: ftcomm.Communicator) -> None:
    comm.checkpoint(0, deadline=LIMIT_S)


def _close(comm: ftcomm.Communicator) -> None:
    comm.close(deadline=LIMIT_S)


CUTS = pytest.mark.parametrize("cut", [_checkpoint, _close])
Cut = Callable[[ftcomm.Communicator], None]


@CUTS
def test_a_rank_that_waits_in_a_cut_may_send_what_another_needs_to_come(
    cut: Cut, opened: threading.Event
) -> None:
    def job(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            sender = threading.Thread(target=lambda: opened.wait() and comm.send(7, 1))
            sender.start()
            cut(comm)
            return sender.join()
        got = comm.recv(0, deadline=LIMIT_S)
        cut(comm)
        return got

    with local_group(2) as group:
        assert group.run(job) == [None, 7]


@CUTS
def test_a_rank_that_waits_in_a_cut_may_receive_what_was_sent_before(
    cut: Cut, opened: threading.Event
) -> None:
    received, got = threading.Event(), list[Any]()

    def receive(comm: ftcomm.Communicator) -> None:
        opened.wait()
        got.append(comm.recv(1))
        received.set()

    def job(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            receiver = threading.Thread(target=receive, args=(comm,))
            receiver.start()
            cut(comm)
            receiver.join()
        else:
            comm.send(7, 0)
            received.wait()
            cut(comm)

    with local_group(2) as group:
        group.run(job)
    assert got == [7]


@pytest.fixture
def posted(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a receive has been posted."""
    event, post = threading.Event(), MessagePort.post

    def told(port: MessagePort, receive: PostedReceive) -> None:
        post(port, receive)
        event.set()

    monkeypatch.setattr(MessagePort, "post", told)
    return event


RECEIVES: dict[str, Callable[[ftcomm.Communicator], Any]] = {
    "recv": lambda comm: comm.recv(1),
    "recv_object": lambda comm: comm.recv_object(1),
    "probe": lambda comm: (comm.probe(1), comm.recv_object(1))[1],
}


def _send(comm: ftcomm.Communicator, kind: str) -> None:
    """Send what one of `RECEIVES` receives."""
    if kind == "recv":
        comm.send(7, 0)
    else:
        comm.send_object(7, 0)


@CUTS
@pytest.mark.parametrize("kind", RECEIVES)
def test_a_thread_may_have_begun_to_receive_before_its_rank_comes_to_a_cut(
    cut: Cut, kind: str, opened: threading.Event, posted: threading.Event
) -> None:
    received, got = threading.Event(), list[Any]()

    def receive(comm: ftcomm.Communicator) -> None:
        got.append(RECEIVES[kind](comm))
        received.set()

    def job(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            receiver = threading.Thread(target=receive, args=(comm,), daemon=True)
            receiver.start()
            posted.wait()
            cut(comm)
            receiver.join()
        else:
            assert opened.wait(LIMIT_S / 3)
            _send(comm, kind)
            assert received.wait(LIMIT_S / 3)
            cut(comm)

    with local_group(2) as group:
        group.run(job)
    assert got == [7]


@pytest.mark.parametrize("kind", RECEIVES)
def test_a_thread_that_receives_over_a_checkpoint_gets_a_message_of_the_next_version(
    kind: str, posted: threading.Event
) -> None:
    got: list[Any] = []

    def job(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            receiver = threading.Thread(
                target=lambda: got.append(RECEIVES[kind](comm)), daemon=True
            )
            receiver.start()
            posted.wait()
            _checkpoint(comm)
            receiver.join(LIMIT_S / 3)
        else:
            _checkpoint(comm)
            _send(comm, kind)

    with local_group(2) as group:
        group.run(job)
    assert got == [7]


@pytest.mark.parametrize("kind", RECEIVES)
def test_a_thread_that_receives_over_a_close_raises(kind: str, posted: threading.Event) -> None:
    raised: list[str] = []

    def receive(comm: ftcomm.Communicator) -> None:
        try:
            RECEIVES[kind](comm)
        except ftcomm.ClosedError as error:
            raised.append(str(error))

    def job(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            receiver = threading.Thread(target=receive, args=(comm,), daemon=True)
            receiver.start()
            posted.wait()
            _close(comm)
            receiver.join(LIMIT_S / 3)
        else:
            _close(comm)

    with local_group(2) as group:
        group.run(job)
    assert len(raised) == 1
    assert "the communicator ended before this message came" in raised[0]


@CUTS
def test_a_handle_that_is_pending_behind_a_thread_that_waits_is_refused_in_a_cut(
    cut: Cut, posted: threading.Event
) -> None:
    got: list[Any] = []

    def job(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            receiver = threading.Thread(target=lambda: got.append(comm.recv(1)), daemon=True)
            receiver.start()
            posted.wait()
            pending = comm.irecv(1)
            with pytest.raises(ValueError, match=r"while recv\(source=1, tag=0\) at .* is pending"):
                cut(comm)
            comm.barrier(deadline=LIMIT_S)
            got.append(pending.wait())
            receiver.join()
        else:
            comm.barrier(deadline=LIMIT_S)
            comm.send(7, 0)
            comm.send(8, 0)
        cut(comm)

    with local_group(2) as group:
        group.run(job)
    assert sorted(got) == [7, 8]


@CUTS
def test_what_a_rank_sends_while_it_waits_in_a_cut_must_be_received_too(
    cut: Cut, opened: threading.Event
) -> None:
    sent = threading.Event()

    def send(comm: ftcomm.Communicator) -> None:
        opened.wait()
        comm.send(7, 1)
        sent.set()

    def job(comm: ftcomm.Communicator) -> str:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            threading.Thread(target=send, args=(comm,)).start()
        else:
            sent.wait()
        with pytest.raises(ftcomm.CollectiveMismatchError) as raised:
            cut(comm)
        return raised.value.cause

    with local_group(2) as group:
        causes = group.run(job)
        group.abort("the job is over")
    assert causes[0] == causes[1]
    assert "rank 1 has received 0 of 1 message from rank 0 since the last checkpoint" in causes[0]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when all ranks have come to a cut, and rank 0 has said again what it has sent.

    It does not leave the cut before `send` has come to where messages are held up.
    """
    event, waits = threading.Event(), threading.Event()
    balances, wait = CutCheck._held_balances, MessagePort._move_to_wait_for

    def told(check: CutCheck, header: CallHeader) -> Any:
        all_balances = balances(check, header)
        if check._core.view.rank == 0:
            event.set()
            waits.wait()
        return all_balances

    def waiting(port: MessagePort) -> "threading.Lock | None":
        if event.is_set():
            waits.set()
        return wait(port)

    monkeypatch.setattr(CutCheck, "_held_balances", told)
    monkeypatch.setattr(MessagePort, "_move_to_wait_for", waiting)
    return event


@pytest.mark.smoke
def test_what_is_sent_when_all_have_come_to_a_checkpoint_is_of_the_next_version(
    held: threading.Event,
) -> None:
    def job(comm: ftcomm.Communicator) -> Any:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            sender = threading.Thread(target=lambda: held.wait() and comm.send(7, 1))
            sender.start()
            _checkpoint(comm)
            return sender.join()
        _checkpoint(comm)
        return comm.recv(0, deadline=LIMIT_S)

    with local_group(2) as group:
        assert group.run(job) == [None, 7]


def test_what_is_sent_when_all_have_come_to_a_close_raises(held: threading.Event) -> None:
    raised: list[BaseException] = []

    def send(comm: ftcomm.Communicator) -> None:
        held.wait()
        try:
            comm.send(7, 1)
        except ftcomm.ClosedError as error:
            raised.append(error)

    def job(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            sender = threading.Thread(target=send, args=(comm,))
            sender.start()
            _close(comm)
            sender.join()
        else:
            _close(comm)

    with local_group(2) as group:
        group.run(job)
    assert "this message was sent while the communicator was closed" in str(raised[0])


def test_what_is_held_up_for_a_plan_raises_when_its_rank_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error has ended a checkpoint between this rank's report and the plan, for example."""
    waits, wait = threading.Event(), MessagePort._move_to_wait_for
    raised: list[BaseException] = []

    def waiting(port: MessagePort) -> "threading.Lock | None":
        waits.set()
        return wait(port)

    monkeypatch.setattr(MessagePort, "_move_to_wait_for", waiting)

    def send(comm: ftcomm.Communicator) -> None:
        try:
            comm.send(7, 1)
        except ftcomm.ClosedError as error:
            raised.append(error)

    def job(comm: ftcomm.Communicator) -> None:
        comm.load_checkpoint(default=0)
        if comm.rank == 1:
            with pytest.raises(ftcomm.RankLostError):
                comm.allreduce(1.0)
            return
        engine: Any = comm._session.engine
        with engine._hub.lock:
            engine._core.messages.hold.report()
        sender = threading.Thread(target=send, args=(comm,), daemon=True)
        sender.start()
        waits.wait()
        comm.abort("it leaves")
        sender.join(LIMIT_S / 3)

    with local_group(2) as group:
        group.run(job)
        group.abort("the job is over")
    assert len(raised) == 1
    assert "the communicator ended before this message was sent" in str(raised[0])


def test_a_thread_that_hears_of_the_end_leaves_the_engine_to_the_call_that_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 1 leaves while rank 0 is in a call, and another thread of it in a receive."""
    ranks: dict[int, ftcomm.Communicator] = {}
    heard, running, raised = threading.Event(), list[bool](), list[type[BaseException]]()
    heed, leave = MessageCalls.heed, CallGuard.heed

    def is_running() -> bool:
        engine: Any = ranks[0]._session.engine
        return bool(engine._control._thread.is_alive())

    def heed_and_tell(calls: MessageCalls, error: BaseException) -> None:
        heed(calls, error)
        heard.set()

    def leave_after_it(guard: CallGuard, error: BaseException) -> None:
        if guard.lock.is_held_here:
            heard.wait()
            running.append(is_running())
        leave(guard, error)

    monkeypatch.setattr(MessageCalls, "heed", heed_and_tell)
    monkeypatch.setattr(CallGuard, "heed", leave_after_it)

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
        except ftcomm.FtcommError as error:
            raised.append(type(error))

    def job(comm: ftcomm.Communicator) -> None:
        ranks[comm.rank] = comm
        comm.load_checkpoint(default=0)
        if comm.rank == 0:
            receiver = threading.Thread(target=attempt, args=(lambda: comm.recv(1),))
            receiver.start()
            attempt(lambda: comm.allreduce(1.0))
            receiver.join()
            return
        waits: Any = ranks[0]._session
        receives = waits.engine._hub.receives
        while not (waits.guard.lock.holder and receives.longest_awaited()):
            os.sched_yield()
        comm.abort("it leaves")

    with local_group(2) as group:
        group.run(job)
        group.abort("the job is over")
    assert running == [True]
    assert raised == [ftcomm.RankLostError] * 2
    assert not is_running()
