"""A session that is given up tells the others so, whatever interrupts that."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftcomm.api.session import Session
from ftcomm.config.job_settings import JobSettings
from ftcomm.engine.single_process import SingleProcessEngine


class Engine(SingleProcessEngine):
    """The engine of one rank of two, which notes how its worker left."""

    world_size = 2

    def __init__(self, interrupts: int = 0) -> None:
        super().__init__(JobSettings())
        self.left: list[str] = []
        self.stopped = 0
        self._interrupts = interrupts

    def leave(self, reason: str) -> None:
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
