"""Ending on a signal: as a cancellation at a checkpoint, never as an exception at any bytecode.

A `KeyboardInterrupt` that Python raises inside a destructor or a weak reference's callback is
printed and forgotten, and the process goes on as if nobody had asked it to end.
"""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


def end_signals() -> tuple[signal.Signals, ...]:
    """The signals by which a terminal, a user or a service manager ends a process."""
    return (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def user_signals() -> tuple[signal.Signals, ...]:
    """Signals that mean something to the user's script alone: a scheduler's warning, say."""
    return (signal.SIGUSR1, signal.SIGUSR2)


@asynccontextmanager
async def until_signal() -> AsyncIterator[list[int]]:
    """Run the block until it ends or the first signal cancels it.

    Yields:
        a list that holds the signal's number once one has come.
    """
    caught: list[int] = []
    with trio.open_signal_receiver(*end_signals()) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_on_first, signals, nursery.cancel_scope, caught)
            yield caught
            nursery.cancel_scope.cancel()


async def _cancel_on_first(
    signals: AsyncIterator[int], scope: trio.CancelScope, caught: list[int]
) -> None:
    async for number in signals:
        caught.append(number)
        scope.cancel()
        return
