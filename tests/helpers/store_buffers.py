"""A model of processors that hold stores back, for code that two threads run on shared words.

A store waits in its thread's buffer until the model lets it out, in order, and at the latest at a
fence.  Before each load, store and fence a thread waits until it is its turn.  All orders of turns
and of stores let out are tried, each from the start, and each state is left in all ways once.  A
thread's state is what it has seen: its code must depend on nothing else.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

BOTH = (0, 1)
LIMIT_S = 30.0  # a hang is a failure


class Processor:
    """Words that two threads share, their store buffers, and whose turn it is."""

    def __init__(self, choices: list[int], words: int, known: set[object]) -> None:
        self.memory = [0] * words
        self.buffers: tuple[deque[tuple[int, int]], ...] = (deque(), deque())
        self.go = tuple(threading.Semaphore(0) for _ in BOTH)
        self.stopped = threading.Semaphore(0)
        self.running = [False, False]
        self.seen: tuple[list[object], ...] = ([], [])  # by each thread, a mark at each turn
        self.known = known  # states that have been left, over all orders
        self.choices = choices  # what to take where there is more than one thing to do
        self.widths: list[int] = []  # how many there were

    def turn(self, who: int) -> None:
        self.seen[who].append("turn")
        self.stopped.release()
        assert self.go[who].acquire(timeout=LIMIT_S)

    def flush(self, who: int) -> None:
        where, value = self.buffers[who].popleft()
        self.memory[where] = value

    def run(self, codes: list[Callable[[], Any]]) -> list[Any]:
        """Both codes to their ends, in the order that `choices` says."""
        outcomes: list[Any] = [None, None]

        def body(who: int) -> None:
            self.turn(who)
            try:
                outcomes[who] = codes[who]()
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                outcomes[who] = error
            self.running[who] = False
            self.stopped.release()

        threads = [threading.Thread(target=body, args=(who,), daemon=True) for who in BOTH]
        for who, thread in enumerate(threads):
            self.running[who] = True
            thread.start()
            assert self.stopped.acquire(timeout=LIMIT_S)
        while any(self.running) or any(self.buffers):
            self.step()
        for thread in threads:
            thread.join(LIMIT_S)
        return outcomes

    def step(self) -> None:
        may = [(self.resume, who) for who in BOTH if self.running[who]]
        may += [(self.flush, who) for who in BOTH if self.buffers[who]]
        number = len(self.widths)
        chosen = self.choices[number] if number < len(self.choices) else 0
        self.widths.append(1 if number >= len(self.choices) and self.is_known() else len(may))
        act, who = may[chosen]
        act(who)

    def is_known(self) -> bool:
        """True if this state has been left before: its other ways out have been taken, or will."""
        parts = (self.memory, *self.buffers, *self.seen, self.running)
        state = tuple(tuple(part) for part in parts)
        found = state in self.known
        self.known.add(state)
        return found

    def resume(self, who: int) -> None:
        self.go[who].release()
        assert self.stopped.acquire(timeout=LIMIT_S)


class Words:
    """Memory as one thread sees it: own stores at once, the other's when they are visible."""

    def __init__(self, processor: Processor, who: int) -> None:
        self.processor, self.who = processor, who

    def __getitem__(self, where: int) -> int:
        self.processor.turn(self.who)
        own = [value for at, value in self.processor.buffers[self.who] if at == where]
        value = own[-1] if own else self.processor.memory[where]
        self.processor.seen[self.who].append(value)
        return value

    def __setitem__(self, where: int, value: int) -> None:
        self.processor.turn(self.who)
        self.processor.buffers[self.who].append((where, value))

    def release(self) -> None:
        """As a view has it."""


class Fence:
    """A lock that empties the store buffer of whoever takes it."""

    def __init__(self, processor: Processor, who: int) -> None:
        self.processor, self.who = processor, who

    def acquire(self) -> None:
        self.processor.turn(self.who)
        while self.processor.buffers[self.who]:
            self.processor.flush(self.who)

    def release(self) -> None:
        """Nothing more."""


class NoFence(Fence):
    """A processor on which taking a lock orders nothing."""

    def acquire(self) -> None:
        self.processor.turn(self.who)


def every_order(play: Callable[[Processor], None], words: int) -> Iterator[Processor]:
    """Play from the start with every sequence of choices, depth first, on so many words."""
    choices: list[int] = []
    known: set[object] = set()
    while True:
        processor = Processor(choices, words, known)
        play(processor)
        yield processor
        widths = processor.widths
        choices += [0] * (len(widths) - len(choices))
        while choices and choices[-1] + 1 >= widths[len(choices) - 1]:
            choices.pop()
        if not choices:
            return
        choices[-1] += 1
