"""One state of a small job around the real cores, and every move that is possible in it."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ftcomm.config.job_settings import JobSettings
from ftcomm.protocol.messages import Fetched, Hello, Revoke, Settled, Welcome
from ftcomm.protocol.position import START, Position
from ftcomm.recovery.archive.archive import Contribution, ResultCopy
from ftcomm.recovery.contributions.contributed_calls import Offer
from ftcomm.recovery.events import (
    Attached,
    CheckpointFetched,
    CopyFetched,
    CopyLost,
    Event,
    FetchEnded,
    LocalFetched,
    OwnCloseDone,
    PartFetched,
    PartsWanted,
    Received,
    ResultFetched,
)
from ftcomm.recovery.machine import Completion, Identity, NextStep, WorkerMachine, WorkerState
from ftcomm_chaos.explorer import invariants, messages, transitions
from ftcomm_chaos.explorer.state_table import CoreStore, Table
from ftcomm_chaos.explorer.workload import (
    CONTRIBUTED,
    COPIED,
    LocalItem,
    Script,
    result_of,
    results_of,
)
from ftcomm_chaos.sim.workload import InputDigests
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.core.durable_state import Durable
from ftcomm_tracker.core.events import ConnectionLost, Disconnect, Joined, Persist, Said, Send
from ftcomm_tracker.core.events import Event as TrackerEvent
from ftcomm_tracker.core.roster import Roster

P = TypeVar(
    "P",
    transitions.PendingFetch,
    transitions.PendingPart,
    transitions.PendingMessages,
    transitions.PendingCopy,
)
COPYING = {"P": transitions.copy_locals, "K": transitions.copy_results}  # then a barrier
EOF = "EOF"  # last item of a connection whose worker has died
QUIET = (Welcome, Settled, Fetched)  # delivered at once: their order decides nothing

Move = tuple[Any, ...]  # what happens, and to whom
Stage = dict[tuple[int, int], Position]  # by epoch and rank: the position that it has come to


class ModelProcess(NamedTuple):
    """One process: its core, its connection, what it is fetching, what it has completed when.

    The core and the messages are numbers in the model's `Parts`.
    """

    port: int
    worker_id: str
    core: int
    up: tuple[int, ...] = ()
    down: tuple[int, ...] = ()
    fetches: tuple[transitions.PendingFetch, ...] = ()
    parts: tuple[transitions.PendingPart, ...] = ()
    copies: tuple[transitions.PendingCopy, ...] = ()
    done: tuple[tuple[Position, int], ...] = ()
    used: tuple[tuple[Position, InputDigests], ...] = ()  # of which its results were made
    links: tuple[transitions.PendingMessages, ...] = ()
    passed: tuple[Position, int] = (START, 0)  # how many of the messages at a position
    contents: tuple[tuple[messages.Place, bytes], ...] = ()  # of messages, in this version
    has_closed: bool = False
    over: bool = False


class Parts:
    """Shared parts of the states of one search."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.cores = CoreStore()
        self.rosters = CoreStore()
        self.messages = Table()
        self.journals = Table()
        self.processes = Table()
        self.rests = Table()

    def check(self) -> None:
        """Assert that no move has changed what states share."""
        self.cores.check()
        self.rosters.check()


class Model:
    """One state of the job."""

    def __init__(self, parts: Parts, roster: int, journal: Durable) -> None:
        self.parts = parts
        self.script = parts.script
        self.number_of_roster = roster
        self.journal = journal
        self.processes: dict[int, ModelProcess] = {}
        self.gone: dict[int, tuple[int, ...]] = {}  # what dead incarnations had sent
        self.sent: Stage = {}
        self.copied: Stage = {}  # local states
        self.balances: dict[tuple[int, int], int] = {}  # of messages, by epoch and rank, at a cut
        self.crashes = 0
        self.ports = 0
        self.stable_below = START
        self.closed: frozenset[int] = frozenset()

    # --- building -----------------------------------------------------------------------------

    @classmethod
    def start(cls, script: Script) -> "Model":
        """All workers have said hello; what follows is delivered in one order up to epoch 1."""
        parts, durable = Parts(script), Durable.fresh("x", script.ranks)
        settings = JobSettings(replicas=script.replicas)
        roster = Roster(settings, durable, generation=1, now=0.0)
        model = cls(parts, parts.rosters.put(roster), durable)
        for rank in range(script.ranks):
            model.add_process(f"w{rank}")
        while any(model.core(process).view.epoch == 0 for process in model.processes.values()):
            for port in list(model.processes):
                if model.processes[port].up:
                    model.apply(("up", port))
                if model.processes[port].down:
                    model.apply(("down", port))
        return model

    def row(self) -> tuple[int, ...]:
        """This state as numbers: equal states are equal rows."""
        parts = self.parts
        rest = (
            tuple(self.gone.items()),
            tuple(sorted(self.sent.items())),
            tuple(sorted(self.copied.items())),
            tuple(sorted(self.balances.items())),
            self.crashes,
            self.ports,
            self.stable_below,
            self.closed,
        )
        return (
            self.number_of_roster,
            parts.journals.number(self.journal),
            parts.rests.number(rest),
            *(parts.processes.number(process) for process in self.processes.values()),
        )

    @classmethod
    def of_row(cls, parts: Parts, row: tuple[int, ...]) -> "Model":
        """The state whose numbers these are."""
        model = cls(parts, row[0], parts.journals[row[1]])
        gone, sent, copied, balances, *counts, below, model.closed = parts.rests[row[2]]
        model.gone, model.sent, model.copied = dict(gone), dict(sent), dict(copied)
        model.balances, model.stable_below = dict(balances), below
        model.crashes, model.ports = counts
        processes = (parts.processes[number] for number in row[3:])
        model.processes = {process.port: process for process in processes}
        return model

    def core(self, process: ModelProcess) -> WorkerMachine:
        """Its core, to look at."""
        core: WorkerMachine = self.parts.cores[process.core]
        return core

    @property
    def roster(self) -> Roster:
        """The tracker's machine, to look at."""
        roster: Roster = self.parts.rosters[self.number_of_roster]
        return roster

    def add_process(self, worker_id: str) -> None:
        """A fresh process dials."""
        self.ports += 1
        port = self.ports
        identity = Identity(worker_id, str(port).encode(), worker_id, "x", port)
        limits = replace(
            transitions.LIMITS,
            replicas=self.script.replicas,
            keep_by_all=transitions.LIMITS.keep_by_all if self.script.kept_by_all else 0,
        )
        core = self.parts.cores.put(WorkerMachine(identity, limits, now=0.0))
        self.processes[port] = ModelProcess(port, worker_id, core)
        self.hear(port, Attached())

    # --- moves --------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Everything that can happen next; one quiet delivery alone if there is one."""
        table = self.parts.messages
        for port, process in self.processes.items():
            for way, queue in (("up", process.up), ("down", process.down)):
                if queue and isinstance(table[queue[0]], QUIET):
                    yield (way, port)
                    return
        yield from (("gone", port) for port in self.gone)
        for port, process in self.processes.items():
            yield from self._moves_of(port, process)

    def _moves_of(self, port: int, process: ModelProcess) -> Iterator[Move]:
        if process.up and not self._overtakes(process):
            yield ("up", port)
        if process.down:
            yield ("down", port)
        yield from self._moves_between(port, process)
        if self._can_act(process):
            yield ("act", port)
        if self.crashes < self.script.crashes and not process.over:
            yield ("crash", port)

    def _moves_between(self, port: int, process: ModelProcess) -> Iterator[Move]:
        """All that other ranks have for this process."""
        for index in range(len(process.fetches)):
            if self._source(process, index) is not None:
                yield ("fetch", port, index)
        for index in range(len(process.parts)):
            if self._offered(process, index) is not None:
                yield ("part", port, index)
        for index in range(len(process.links)):
            if messages.can_serve(self, process, index):
                yield ("message", port, index)
        for index in range(len(process.copies)):
            if self._copy_answer(process, index) is not None:
                yield ("copy", port, index)

    def _overtakes(self, process: ModelProcess) -> bool:
        """A process is started after its predecessor's death, and its handshake takes turns.

        So its hello does not arrive before one that the predecessor had sent.
        """
        table = self.parts.messages
        if not self.gone or not isinstance(table[process.up[0]], Hello):
            return False
        earlier = (table[number] for queue in self.gone.values() for number in queue)
        return any(m.worker_id == process.worker_id for m in earlier if isinstance(m, Hello))

    def apply(self, move: Move) -> None:
        """Let `move` happen."""
        match move:
            case ("gone", port):
                message, *later = self.gone[port]
                if later:
                    self.gone[port] = tuple(later)
                else:
                    del self.gone[port]
                self._deliver_up(port, message)
            case ("up", port):
                message, *later = self.processes[port].up
                self.processes[port] = self.processes[port]._replace(up=tuple(later))
                self._deliver_up(port, message)
            case ("down", port):
                message, *later = self.processes[port].down
                self.processes[port] = self.processes[port]._replace(down=tuple(later))
                self.hear(port, Received(self.parts.messages[message]))
            case ("fetch", port, index):
                self._fetch(port, index)
            case ("part", port, index):
                self._take_part(port, index)
            case ("message", port, index):
                messages.serve(self, port, index)
            case ("copy", port, index):
                self._take_copy(port, index)
            case ("act", port):
                self._act(port)
            case ("crash", port):
                self._crash(port)
        self._tidy()

    def _crash(self, port: int) -> None:
        process = self.processes.pop(port)
        self.crashes += 1
        self.gone[port] = (*process.up, self.parts.messages.number(EOF))
        self.add_process(process.worker_id)

    def _deliver_up(self, port: int, number: int) -> None:
        message = self.parts.messages[number]
        if message == EOF:
            self.tell(ConnectionLost(port, "x"))
        elif isinstance(message, Hello):
            self.tell(Joined(port, message))
        else:
            self.tell(Said(port, message))

    def tell(self, event: TrackerEvent) -> None:
        """Feed the roster; a later effect happens only after an earlier `Persist`."""
        rosters = self.parts.rosters
        effects, self.number_of_roster = rosters.call(
            self.number_of_roster, transitions.tell, event
        )
        for effect in effects:
            if isinstance(effect, Persist):
                self.journal = effect.durable
                invariants.check_verdict(self)
            elif isinstance(effect, Send) and effect.conn in self.processes:
                message: Any = effect.message
                if isinstance(message, Revoke):
                    message = Revoke(message.epoch, "x")
                invariants.check_sent(self, message)
                process = self.processes[effect.conn]
                number = self.parts.messages.number(message)
                self.processes[effect.conn] = process._replace(down=(*process.down, number))
            elif isinstance(effect, Disconnect) and effect.conn in self.processes:
                self.processes[effect.conn] = self.processes[effect.conn]._replace(over=True)

    def hear(self, port: int, event: Event) -> None:
        """Feed a core; its messages go up, its fetches begin."""
        process = self.processes[port]
        before = self.core(process).progress.position
        heard, number = self.parts.cores.call(process.core, transitions.hear, event)
        core = self.parts.cores[number]
        if core.progress.position.version > before.version:
            messages.check_cut(self)

        def current(pending: Iterable[P]) -> tuple[P, ...]:
            live = self._live(core)
            return tuple(each for each in pending if live and each.epoch == core.view.epoch)

        self.processes[port] = process._replace(
            core=number,
            up=(*process.up, *map(self.parts.messages.number, heard.messages)),
            over=process.over or core.view.state in (WorkerState.FAILED, WorkerState.FINISHED),
            fetches=current((*process.fetches, *heard.fetches)),
            parts=current((*process.parts, *heard.parts)),
            links=current((*process.links, *heard.links)),
            copies=current((*process.copies, *heard.copies)),
        )

    @staticmethod
    def _live(core: WorkerMachine) -> bool:
        return core.view.state in (WorkerState.RUNNING, WorkerState.CATCHING_UP)

    def serving(self, process: ModelProcess, epoch: int, rank: int) -> ModelProcess | None:
        """The process of `rank`, from the view of another one, where it serves in `epoch`."""
        source = self.processes.get(self.core(process).view.members[rank].port)
        core = None if source is None else self.core(source)
        if core is None or core.view.epoch != epoch or not self._live(core):
            return None  # dead, or not yet, or no longer in this epoch: a Revoke will come
        return source

    # --- fetching -----------------------------------------------------------------------------

    def _source(self, process: ModelProcess, index: int) -> WorkerMachine | None:
        epoch, rank, _ = process.fetches[index]
        source = self.serving(process, epoch, rank)
        return None if source is None else self.core(source)

    def _fetch(self, port: int, index: int) -> None:
        process = self.processes[port]
        source = self._source(process, index)
        assert source is not None
        epoch, rank, items = process.fetches[index]
        fetches = list(process.fetches)
        if not items:
            del fetches[index]
            self.processes[port] = process._replace(fetches=tuple(fetches))
            self.hear(port, FetchEnded(epoch, rank))
            return
        item = items[0]
        fetches[index] = transitions.PendingFetch(epoch, rank, items[1:])
        self.processes[port] = process._replace(fetches=tuple(fetches))
        if isinstance(item, int):
            held = source.archive.committed
            if held is None or held.version != item:
                raise Violation(f"rank {rank} was named for checkpoint {item}, but has {held}")
            self.hear(port, CheckpointFetched(epoch, item, held.value))
            return
        local = isinstance(item, LocalItem)
        found = (
            source.archive.locals.get(item.version, item.rank) if local else source.log.get(item)
        )
        if found is None:
            raise Violation(f"rank {rank} was named as a holder of {item}, but has it not")
        if local:
            self.hear(port, LocalFetched(epoch, item.version, item.rank, found))
        else:
            self.hear(port, ResultFetched(epoch, item, found.signature, found.value))

    def _offered(self, process: ModelProcess, index: int) -> Contribution | None:
        """The contribution of another rank, once its process has made the call in this epoch."""
        epoch, position, rank = process.parts[index]
        source = self.serving(process, epoch, rank)
        if source is None:
            return None
        offer = self.core(source).contributed.offer(position)
        if offer is Offer.GONE:
            raise Violation(f"rank {rank} has passed {position}, and holds no input to it (R20)")
        return offer if isinstance(offer, Contribution) else None

    def _take_part(self, port: int, index: int) -> None:
        process = self.processes[port]
        contribution, part = self._offered(process, index), process.parts[index]
        assert contribution is not None
        parts = (*process.parts[:index], *process.parts[index + 1 :])
        self.processes[port] = process._replace(parts=parts)
        value = contribution.value
        self.hear(port, PartFetched(part.epoch, part.position, part.rank, value))

    def _copy_answer(self, process: ModelProcess, index: int) -> CopyFetched | CopyLost | None:
        """The answer of a rank that is asked for a result; None while it has not come so far."""
        epoch, rank, name = process.copies[index]
        source = self.serving(process, epoch, rank)
        if source is None:
            return None
        offer = self.core(source).copied.offer(name, self.core(process).view.rank)
        if isinstance(offer, ResultCopy):
            return CopyFetched(epoch, name, rank, offer)
        if offer is Offer.GONE and rank == name.owner:
            raise Violation(f"rank {rank} has passed {name}, and has not its own result (R20)")
        lost = CopyLost(epoch, name, rank, offer.value, is_gone=True)
        return None if offer is Offer.NOT_YET else lost

    def _take_copy(self, port: int, index: int) -> None:
        process = self.processes[port]
        answer = self._copy_answer(process, index)
        assert answer is not None
        copies = (*process.copies[:index], *process.copies[index + 1 :])
        self.processes[port] = process._replace(copies=copies)
        self.hear(port, answer)

    # --- the user's thread --------------------------------------------------------------------

    def _can_act(self, process: ModelProcess) -> bool:
        core = self.core(process)
        if not process.over and messages.due(self, process) is not None:
            return messages.can_pass(self, process)
        if process.over or core.view.is_frozen or (core.progress.closed and process.has_closed):
            return False
        letter = self.script.kind_at(core.progress.position)
        if core.progress.closed or core.log.get(core.progress.position) is not None:
            if letter in COPIED and not core.progress.closed:
                return core.copied.own() is not None
            return letter not in CONTRIBUTED or not process.parts
        if not letter:
            return False
        if letter == "L" and core.view.frontier.past_load:
            lacks = core.archive.locals.lacks(core.view.frontier.version, core.view.rank)
            return core.archive.committed is not None and not lacks
        if letter in "CP" and core.view.pending_fetches:
            return False
        if core.progress.position < core.view.frontier:
            return False
        if self.sent.get((core.view.epoch, core.view.rank), None) != core.progress.position:
            return True  # it has not entered yet
        needed = (0,) if letter == "B" else range(self.script.ranks)
        must_copy = self.copied.get((core.view.epoch, core.view.rank)) != core.progress.position
        stage = self.sent if letter not in COPYING or must_copy else self.copied
        reached = (stage.get((core.view.epoch, rank)) for rank in needed)
        return all(place is not None and place >= core.progress.position for place in reached)

    def _act(self, port: int) -> None:
        core = self.core(self.processes[port])
        if messages.due(self, self.processes[port]) is not None:
            messages.pass_next(self, port)
            return
        if core.progress.closed:
            self.processes[port] = self.processes[port]._replace(has_closed=True)
            self.hear(port, OwnCloseDone())
            return
        letter = self.script.kind_at(core.progress.position)
        if letter in CONTRIBUTED and core.log.get(core.progress.position) is not None:
            self._replay_parts(port, letter)
            return
        if letter in COPIED and core.log.get(core.progress.position) is not None:
            self._replay_copied(port, letter)
            invariants.check_copies(self)
            return
        step = self.step(port, transitions.begin, letter)
        if step is None:
            self._note_done(port, core.progress.position, 0)
        elif step is NextStep.EXECUTE:
            self._execute(port, letter)
        if self.core(self.processes[port]).progress.closed:
            self.closed |= {core.view.rank}
        invariants.check_copies(self)

    def _replay_parts(self, port: int, letter: str) -> None:
        """Log the own input and ask for those of others; once they are here, replay the call."""
        position = self.core(self.processes[port]).progress.position
        used = self.step(port, transitions.replay_parts, letter)
        if used is not None:
            self._note_done(port, position, 0)
            self._note_used(port, position, used)
            return
        differs = self.step(port, transitions.contribute, letter, port)
        self.hear(port, PartsWanted() if differs is None else differs)

    def _note_used(self, port: int, position: Position, used: InputDigests) -> None:
        process = self.processes[port]
        self.processes[port] = process._replace(used=(*process.used, (position, used)))
        invariants.check_inputs(self, port, position, used)

    def _replay_copied(self, port: int, letter: str) -> None:
        position = self.core(self.processes[port]).progress.position
        result = self.step(port, transitions.replay_copied, letter)
        self._note_done(port, position, 0)
        self._note_result(port, position, result)

    def _note_result(self, port: int, position: Position, result: bytes) -> None:
        """All results of a copied call are of the processes that executed it together."""
        ports = result[1 : 1 + self.script.ranks]
        self._note_used(port, position, results_of(ports))
        rank = self.core(self.processes[port]).view.rank
        if result != result_of(rank, ports):
            raise Violation(f"rank {rank} was given the result of another rank (R20)")

    def step(self, port: int, function: Any, *args: Any) -> Any:
        """Let a core take one step of the user's thread; what that returns."""
        process = self.processes[port]
        result, number = self.parts.cores.call(process.core, function, *args)
        self.processes[port] = process._replace(core=number)
        return result

    def _note_done(self, port: int, position: Position, epoch: int) -> None:
        process = self.processes[port]
        self.processes[port] = process._replace(done=(*process.done, (position, epoch)))

    def _execute(self, port: int, letter: str) -> None:
        core = self.core(self.processes[port])
        position, epoch, rank = core.progress.position, core.view.epoch, core.view.rank
        if self.sent.get((epoch, rank)) != position:
            self.sent[epoch, rank] = position
            self.step(port, transitions.offer, letter)
            if letter in "CPE":
                self.balances[epoch, rank] = self.step(port, messages.balance)
            if letter in CONTRIBUTED:
                self.step(port, transitions.contribute, letter, port)
            if letter != "B" or rank != 0:
                return  # a broadcast's root completes alone, at once
        if letter in COPYING and self.copied.get((epoch, rank)) != position:
            self.step(port, COPYING[letter], epoch)
            self.copied[epoch, rank] = position
            return
        if letter in "CPE" and messages.is_open(self, epoch):
            self.hear(port, messages.OPEN)
            return
        if self.step(port, transitions.complete, letter, epoch) is Completion.DONE:
            if letter in "CPE":
                messages.check_cut(self)
            invariants.check_first(self, port, position, epoch)
            self._note_done(port, position, epoch)
            if letter in CONTRIBUTED or letter in COPIED:
                entry = self.core(self.processes[port]).log.get(position)
                assert entry is not None, "it was completed just now"
                self._note_used(port, position, entry.value)
            if letter != "B":
                self.stable_below = max(self.stable_below, position)

    def _tidy(self) -> None:
        """Forget what decides nothing, so that equal states are equal rows."""
        oldest = min(self.core(process).view.epoch for process in self.processes.values())
        for kept in (self.sent, self.copied, self.balances):
            for key in [key for key in kept if key[0] < oldest]:
                del kept[key]
