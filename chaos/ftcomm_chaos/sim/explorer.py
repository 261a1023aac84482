"""Breadth-first search over the states of the real cores: every order of events of a small job.

Where the simulator draws one order of events from a seed, the explorer takes all of them.  To be
finite it knows no time (no heartbeats, no deadlines), a crash is a process replaced at once by a
fresh one, and a collective is its dataflow: a rank may complete when the messages that it needs
have been sent, whenever that was.  Each control connection keeps its order, and nothing else does.
"""

import enum
import hashlib
import io
import pickle
from collections import deque
from dataclasses import dataclass
from typing import Any

from ftcomm.protocol.position import Position
from ftcomm_chaos.sim.model import Model, Move
from ftcomm_chaos.sim.script import Script


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    states: int
    moves: int
    ends: int
    violation: str = ""
    path: tuple[Move, ...] = ()


class _Pickler(pickle.Pickler):
    """Writes frozen values as their number in a table: they are most of a state."""

    def reducer_override(self, value: Any) -> Any:
        """Called for everything that is neither a builtin type nor a builtin value."""
        kind = type(value)
        keys = _KEYS.get(kind)
        if keys is not None:
            state = vars(value)
            assert tuple(state) == keys, f"{kind} has got new attributes"
            return _rebuilt, (kind, tuple(state.values()))
        shared = _SHARED.get(kind)
        if shared is None:
            parameters = getattr(kind, "__dataclass_params__", None)
            frozen = bool(parameters and parameters.frozen)
            shared = _SHARED[kind] = kind is Position or frozen or issubclass(kind, enum.Enum)
        if not shared:
            return NotImplemented
        number = _NUMBERS.get(value)
        if number is None:
            number = _NUMBERS[value] = len(_VALUES)
            _VALUES.append(value)
        return _value, (number,)


def _rebuilt(kind: type, values: tuple[Any, ...]) -> Any:
    blank: Any = object.__new__(kind)
    vars(blank).update(zip(_KEYS[kind], values, strict=True))
    return blank


def _keys() -> dict[type, tuple[str, ...]]:
    model = Model.start(Script("S", 1, 0))
    core = model.lives[1].core
    parts = (model, model.roster, model.lives[1], core, core.log, core.locals)
    return {type(x): tuple(vars(x)) for x in parts}


_KEYS: dict[type, tuple[str, ...]] = _keys()  # of the mutable parts: names need not be written
_SHARED: dict[type, bool] = {}  # which types are frozen
_NUMBERS: dict[Any, int] = {}
_VALUES: list[Any] = []


def _value(number: int) -> Any:
    return _VALUES[number]


def _frozen(model: Model) -> bytes:
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol=5)
    pickler.fast = True  # without a memo: equal values are equal bytes
    pickler.dump(model)
    return buffer.getvalue()


def explore(script: Script, *, max_states: int = 1_000_000) -> Found:
    """Visit every state of `script`'s job; stop at the first violation, with the shortest path."""
    first = _frozen(Model.start(script))
    seen = {hashlib.blake2b(first, digest_size=12).digest()}
    queue: deque[tuple[bytes, tuple[Move, ...]]] = deque([(first, ())])
    count = ends = 0
    while queue:
        frozen, path = queue.popleft()
        model = _thawed(frozen)
        moves, count_of_state = list(model.moves()), 0
        ends += not moves
        for move in moves or [()]:
            if count_of_state:  # the first move may use up the copy that named the moves
                model = _thawed(frozen)
            count_of_state += 1
            count += 1
            try:
                if move:
                    model.apply(move)
                else:
                    model.check_stuck()
                    continue
            except Exception as error:  # noqa: BLE001 - whatever escapes a core is a finding
                what = f"{type(error).__name__}: {error}"
                return Found(len(seen), count, ends, what, (*path, move))
            after = _frozen(model)
            key = hashlib.blake2b(after, digest_size=12).digest()
            if key not in seen:
                seen.add(key)
                queue.append((after, (*path, move)))
        if len(seen) > max_states:
            return Found(len(seen), count, ends, f"more than {max_states} states", path)
    return Found(len(seen), count, ends)


def _thawed(frozen: bytes) -> Model:
    model: object = pickle.loads(frozen)  # noqa: S301 - made by this very process
    assert isinstance(model, Model)
    return model
