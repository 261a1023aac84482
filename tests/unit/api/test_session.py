"""A session that is given up tells the others so, and later calls why."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.api.messages import MessageCalls
from ftcomm.api.session import Session
from ftcomm.config.job_settings import JobSettings
from ftcomm.engine.single_process import SingleProcessEngine
from ftcomm.errors import ClosedError


class Engine(SingleProcessEngine):
    """The engine of one rank of two, which notes how its worker left."""

    world_size = 2

    def __init__(self, interrupts: int = 0) -> None:
        super().__init__(JobSettings())
        self.left: list[str] = []
        self.stopped = 0
        self._interrupts = interrupts

    def leave(self, reason: str, site: str = "") -> None:
        if self._interrupts:
            self._interrupts -= 1
            raise KeyboardInterrupt
        self.left.append(reason)

    def stop(self) -> None:
        self.stopped += 1


def session_of(engine: Any) -> Session:
    session = Session(engine, "w0", lambda: None)
    ends: Any = SimpleNamespace(
        end=lambda abort, finish: finish(),
        wait_for_tasks=lambda limit: None,
        wait_for_callbacks=lambda: None,
    )
    session.background = ends
    return session


def interrupt() -> None:
    raise KeyboardInterrupt


ENDS: dict[str, Any] = {
    "abort": lambda session: session.abort("over"),
    "close": lambda session: session.close(None),
    "with block": lambda session: session.leave_block(KeyboardInterrupt()),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_leave_that_is_interrupted_is_sent_by_what_ends_the_communicator(end: str) -> None:
    engine = Engine(interrupts=1)
    session = session_of(engine)
    with pytest.raises(KeyboardInterrupt):
        session.guard.run(interrupt)
    assert (session.is_usable, engine.left, engine.stopped) == (False, [], 0)
    ENDS[end](session)
    assert (engine.left, engine.stopped) == (["KeyboardInterrupt"], 1)


def test_a_leave_is_sent_once() -> None:
    engine = Engine()
    session = session_of(engine)
    with pytest.raises(KeyboardInterrupt):
        session.guard.run(interrupt)
    for end in ENDS.values():
        end(session)
    assert engine.left == ["KeyboardInterrupt"]


# --- messages -----------------------------------------------------------------------------------


class Port:
    """Messages of which one step raises; `is_filling` if one comes into the user's array then."""

    open_receive = None

    def __init__(self, step: str, error: BaseException, *, is_filling: bool = False) -> None:
        self._step, self._error, self._is_filling = step, error, is_filling

    def _at(self, step: str) -> None:
        if step == self._step:
            raise self._error

    def receive_directly(self, direct: Any) -> None:
        direct.is_filling = self._is_filling
        self._at("direct")

    def post(self, _: object) -> None:
        self._at("post")

    def cool(self) -> None:
        self._at("cool")


def messages_of(port: Any) -> tuple[Session, MessageCalls]:
    engine: Any = Engine()
    engine.position, engine.messages = engine.position.at_version(0), port
    session = session_of(engine)
    return session, MessageCalls(session)


def recv(calls: MessageCalls) -> None:
    calls.receive_now(calls.receive(1, 0, None, None, None))


def irecv(calls: MessageCalls) -> None:
    calls.post(calls.posted(calls.receive(1, 0, None, None, None), lambda *_: None))


CUT_SHORT: dict[str, tuple[Any, str]] = {
    "direct": (recv, "direct"),
    "recv": (recv, "post"),
    "recv_object": (lambda calls: calls.wait(calls.receive_object(1, 0, None)), "post"),
    "probe": (lambda calls: calls.probe(1, 0, None), "post"),
    "irecv": (irecv, "cool"),
}


@pytest.mark.parametrize("name", CUT_SHORT)
def test_calls_behind_an_interrupted_receive_say_what_has_ended_it(name: str) -> None:
    receive, step = CUT_SHORT[name]
    session, calls = messages_of(Port(step, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        receive(calls)
    assert not session.is_usable
    with pytest.raises(ClosedError, match="ended by KeyboardInterrupt"):
        recv(calls)


@pytest.mark.parametrize("is_filling", [True, False])
def test_a_handler_s_error_ends_a_direct_receive_that_has_begun_to_take_a_message(
    is_filling: bool,
) -> None:
    session, calls = messages_of(Port("direct", TimeoutError("of SIGALRM"), is_filling=is_filling))
    with pytest.raises(TimeoutError):
        recv(calls)
    assert session.is_usable != is_filling
