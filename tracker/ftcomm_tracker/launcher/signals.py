"""Ending on a signal: as a cancellation at a checkpoint, never as an exception at any bytecode.

A `KeyboardInterrupt` that Python raises inside a destructor or a weak reference's callback is
printed and forgotten, and the process goes on as if nobody had asked it to end.
"""

import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio


def end_signals() -> tuple[signal.Signals, ...]:
    """The signals by which a terminal, a user or a service manager ends a process.

    Under ``nohup`` SIGHUP is ignored, and stays so: the job outlives its terminal.
    """
    return (signal.SIGINT, signal.SIGTERM, *unless_ignored(signal.SIGHUP))


def unless_ignored(number: signal.Signals) -> tuple[signal.Signals, ...]:
    """The signal, or nothing where a parent has had it ignored."""
    return () if signal.getsignal(number) == signal.SIG_IGN else (number,)


def user_signals() -> tuple[signal.Signals, ...]:
    """Signals that mean something to the user's script alone: a scheduler's warning, say."""
    return (signal.SIGUSR1, signal.SIGUSR2)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Have Ctrl-C raise `KeyboardInterrupt` in the block, as trio needs it."""
    before = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or not callable(before):  # ignored, as by nohup
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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


def leaves_of(error: BaseException) -> list[BaseException]:
    """The errors in a group and in its groups, or `error` alone."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves_of(inner)]
    return [error]
