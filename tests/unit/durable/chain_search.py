"""Every interleaving of processes that use one store, over the real code of the chain.

A process is a function of a store.  It runs anew for every step, on the answers that its calls have
had so far, up to the call that has none yet: so its state is the list of those answers, and states
of the whole can be compared.  Listing and putting are the steps.  A put may succeed, lose its
answer before or after it took effect, or take effect at any later time.  Records never change, so
that reading one is no step of its own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from ftcomm.durable.store import Buffer, MissingObjectError, StoredObject, StoreError

Process = Callable[["PlayedStore"], object]
Answer = object


class PausedError(BaseException):
    """The process has come to a call that has no answer yet."""


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    name: str
    data: bytes = b""


@dataclass(slots=True)
class PlayedStore:
    """Implements `Store` by answers that were given before."""

    answers: tuple[Answer, ...]
    url: str = "store"
    next_call: Call | None = None
    _used: int = 0

    def put_new(self, name: str, data: Buffer) -> bool:
        return bool(self._answer(Call("put_new", name, bytes(data))))

    def get(self, name: str) -> bytes:
        data = self._answer(Call("get", name))
        if data is None:
            raise MissingObjectError(name)
        assert isinstance(data, bytes)
        return data

    def list(self, prefix: str) -> list[StoredObject]:
        names = self._answer(Call("list", prefix))
        assert isinstance(names, tuple)
        return [StoredObject(name, 0) for name in names]

    def put(self, name: str, parts: Iterable[Buffer]) -> int:
        raise NotImplementedError

    def read_into(self, name: str, offset: int, out: memoryview) -> int:
        raise NotImplementedError

    def delete(self, name: str) -> None:
        raise NotImplementedError

    def remove_leftovers(self) -> int:
        raise NotImplementedError

    def _answer(self, call: Call) -> Answer:
        if self._used == len(self.answers):
            self.next_call = call
            raise PausedError
        self._used += 1
        answer = self.answers[self._used - 1]
        if answer is StoreError:
            raise StoreError("unclear")
        return answer


@dataclass(frozen=True, slots=True)
class World:
    """One state of the whole.

    Attributes:
        objects: name and content of each.
        late: puts that have not taken effect yet, and whose processes have given them up.
        answers: of each process.
        faults: that may still happen.
    """

    objects: frozenset[tuple[str, bytes]]
    late: frozenset[tuple[str, bytes]]
    answers: tuple[tuple[Answer, ...], ...]
    faults: int

    def answered(self, process: int, answer: Answer) -> "World":
        mine = (*self.answers[process], answer)
        return replace(self, answers=(*self.answers[:process], mine, *self.answers[process + 1 :]))

    def with_object(self, name: str, data: bytes) -> "World":
        return replace(self, objects=self.objects | {(name, data)})

    @property
    def content(self) -> dict[str, bytes]:
        return dict(self.objects)


@dataclass(frozen=True, slots=True)
class Ended:
    outcome: object


@dataclass
class Search:
    """All states that `processes` can reach from a store with `objects`.

    Attributes:
        outcomes: what each process has returned in a state, None while it runs.
    """

    processes: tuple[Process, ...]
    seen: dict[World, tuple[World, str] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = cache(self._at)

    def worlds(self, objects: dict[str, bytes], *, faults: int) -> Iterator[World]:
        start = World(frozenset(objects.items()), frozenset(), ((),) * len(self.processes), faults)
        start = self._read_on(start)
        self.seen, todo = {start: None}, [start]
        while todo:
            world = todo.pop()
            yield world
            for what, after in self._steps(world):
                read = self._read_on(after)
                if read not in self.seen:
                    self.seen[read] = (world, what)
                    todo.append(read)

    def outcomes(self, world: World) -> list[object]:
        found = [self.at(number, each) for number, each in enumerate(world.answers)]
        return [each.outcome if isinstance(each, Ended) else None for each in found]

    def path(self, world: World) -> str:
        """The steps to a state, for a failure's text."""
        steps = []
        before = self.seen[world]
        while before is not None:
            world, what = before
            steps.append(what)
            before = self.seen[world]
        return "; ".join(reversed(steps))

    def _at(self, process: int, answers: tuple[Answer, ...]) -> Call | Ended:
        store = PlayedStore(answers)
        try:
            return Ended(self.processes[process](store))
        except PausedError:
            assert store.next_call is not None
            return store.next_call

    def _read_on(self, world: World) -> World:
        for process in range(len(self.processes)):
            while True:
                call = self.at(process, world.answers[process])
                if isinstance(call, Ended) or call.method != "get":
                    break
                world = world.answered(process, world.content.get(call.name))
        return world

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        for name, data in world.late:
            rest = replace(world, late=world.late - {(name, data)})
            if name not in world.content:
                yield f"{name} appears late", rest.with_object(name, data)
            else:
                yield f"a late {name} is refused", rest
        for process in range(len(self.processes)):
            call = self.at(process, world.answers[process])
            if isinstance(call, Call):
                for what, after in _answers(world, process, call):
                    yield f"{process}: {call.method} {call.name} {what}", after


def _answers(world: World, process: int, call: Call) -> Iterator[tuple[str, World]]:
    if call.method == "list":
        names = tuple(sorted(name for name in world.content if name.startswith(call.name)))
        yield f"-> {len(names)}", world.answered(process, names)
        return
    put, name = (call.name, call.data), call.name
    is_new = name not in world.content
    done = world.with_object(*put) if is_new else world
    yield ("done" if is_new else "is taken"), done.answered(process, answer=is_new)
    if world.faults:
        rest = replace(world, faults=world.faults - 1).answered(process, StoreError)
        yield "is lost", rest
        if is_new:
            yield "loses its answer", rest.with_object(*put)
            yield "is late", replace(rest, late=rest.late | {put})
