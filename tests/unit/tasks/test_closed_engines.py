"""Engines of tasks that were closed: what is kept of them until the end of the communicator."""

import threading

import pytest

import ftcomm

WITHIN_S = 60.0  # a hang is a failure; nothing here takes a second


def test_an_error_of_a_closed_engine_is_raised_at_the_end_whatever_was_made_since() -> None:
    began = threading.Event()

    def function() -> None:
        began.set()
        raise ZeroDivisionError("of a closed engine")

    comm = ftcomm.init("none")
    engine = comm.engine()
    engine.push(function)
    assert began.wait(WITHIN_S)
    engine.close()
    comm.engine().close()
    with pytest.raises(ZeroDivisionError, match="of a closed engine"):
        comm.close()
    comm.close()
    assert comm.is_over


def test_a_closed_engine_is_dropped_once_it_is_done() -> None:
    with ftcomm.init("none") as comm:
        for _ in range(3):
            with comm.engine() as engine:
                engine.push(lambda: None)
        assert len(comm._nonblocking._engines) == 1
