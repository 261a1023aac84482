"""One state of a small job around the real cores, and every move that is possible in it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ftcomm.protocol.messages import AllBye, Fetched, Hello, Revoke, Settled, Welcome
from ftcomm.protocol.position import PRELUDE, START, Position
from ftcomm.recovery.events import (
    Attached,
    CheckpointFetched,
    Event,
    FetchEnded,
    LocalFetched,
    OwnCloseDone,
    Received,
    ResultFetched,
    SendControl,
    StartFetch,
)
from ftcomm.recovery.keepers import local_owners
from ftcomm.recovery.log import Entry
from ftcomm.recovery.worker import Checkpoint, Identity, Limits, Outcome, State, Step, WorkerCore
from ftcomm.settings import JobSettings
from ftcomm_chaos.sim.script import SIGNATURES, LocalItem, Script, local_value
from ftcomm_chaos.sim.world import Violation
from ftcomm_tracker.durable import Durable
from ftcomm_tracker.events import Disconnect, Joined, Lost, Persist, Said, Send
from ftcomm_tracker.roster import Roster

SETTINGS = JobSettings()
LIMITS = Limits()
SITE = "x"
EOF = "EOF"  # last item of a connection whose worker has died
QUIET = (Welcome, Settled, Fetched)  # delivered at once: their order decides nothing

Move = tuple[Any, ...]  # what happens, and to whom


@dataclass
class Life:
    """One process: its core, its connection, what it is fetching, what it has completed when."""

    port: int
    worker_id: str
    core: WorkerCore
    up: list[Any] = field(default_factory=list)
    down: list[Any] = field(default_factory=list)
    fetches: list[tuple[int, int, list[Any]]] = field(default_factory=list)
    done: dict[Position, int] = field(default_factory=dict)
    said_bye: bool = False
    over: bool = False


@dataclass
class Model:
    """One state of the job."""

    script: Script
    roster: Roster
    journal: Durable
    lives: dict[int, Life] = field(default_factory=dict)
    gone: dict[int, list[Any]] = field(default_factory=dict)  # what dead lives had sent
    sent: dict[tuple[int, int], Position] = field(default_factory=dict)
    copied: dict[tuple[int, int], Position] = field(default_factory=dict)  # local states
    crashes: int = 0
    ports: int = 0
    stable_below: Position = START
    closed: set[int] = field(default_factory=set)

    # --- building -----------------------------------------------------------------------------

    @classmethod
    def start(cls, script: Script) -> "Model":
        """All workers have said hello; what follows is delivered in one order up to epoch 1."""
        durable = Durable.fresh("x", script.ranks)
        model = cls(script, Roster(SETTINGS, durable, generation=1, now=0.0), durable)
        for rank in range(script.ranks):
            model.add_life(f"w{rank}")
        while any(life.core.epoch == 0 for life in model.lives.values()):
            for port in list(model.lives):
                for way in ("up", "down"):
                    if getattr(model.lives[port], way):
                        model.apply((way, port))
        return model

    def add_life(self, worker_id: str) -> None:
        """A fresh process dials."""
        self.ports += 1
        port = self.ports
        identity = Identity(worker_id, str(port).encode(), worker_id, "x", port)
        self.lives[port] = Life(port, worker_id, WorkerCore(identity, LIMITS, now=0.0))
        self.hear(self.lives[port], Attached())

    # --- moves --------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """Everything that can happen next; one quiet delivery alone if there is one."""
        for port, life in self.lives.items():
            for way, queue in (("up", life.up), ("down", life.down)):
                if queue and isinstance(queue[0], QUIET):
                    yield (way, port)
                    return
        yield from (("gone", port) for port in self.gone)
        for port, life in self.lives.items():
            yield from self._moves_of(port, life)

    def _moves_of(self, port: int, life: Life) -> Iterator[Move]:
        if life.up and not self._overtakes(life):
            yield ("up", port)
        if life.down:
            yield ("down", port)
        for index in range(len(life.fetches)):
            if self._source(life, index) is not None:
                yield ("fetch", port, index)
        if self._can_act(life):
            yield ("act", port)
        if self.crashes < self.script.crashes and not life.over:
            yield ("crash", port)

    def _overtakes(self, life: Life) -> bool:
        """A process is started after its predecessor's death, and its handshake takes turns.

        So its hello does not arrive before one that the predecessor had sent.
        """
        earlier = [m for queue in self.gone.values() for m in queue if isinstance(m, Hello)]
        return isinstance(life.up[0], Hello) and any(
            hello.worker_id == life.worker_id for hello in earlier
        )

    def apply(self, move: Move) -> None:
        """Let `move` happen."""
        match move:
            case ("gone", port):
                self._deliver_up(port, self.gone[port].pop(0))
            case ("up", port):
                self._deliver_up(port, self.lives[port].up.pop(0))
            case ("down", port):
                message = self.lives[port].down.pop(0)
                self.hear(self.lives[port], Received(message))
            case ("fetch", port, index):
                self._fetch(self.lives[port], index)
            case ("act", port):
                self._act(self.lives[port])
            case ("crash", port):
                self._crash(port)
        self._tidy()

    def _crash(self, port: int) -> None:
        life = self.lives.pop(port)
        self.crashes += 1
        self.gone[port] = [*life.up, EOF]
        self.add_life(life.worker_id)

    def _deliver_up(self, port: int, message: Any) -> None:
        if message == EOF:
            self.tell(Lost(port, "x"))
        elif isinstance(message, Hello):
            self.tell(Joined(port, message))
        else:
            self.tell(Said(port, message))

    def tell(self, event: Any) -> None:
        """Feed the roster; a later effect happens only after an earlier `Persist`."""
        for effect in self.roster.handle(event, now=0.0):
            if isinstance(effect, Persist):
                self.journal = effect.durable
                self._check_verdict()
            elif isinstance(effect, Send) and effect.conn in self.lives:
                message = effect.message
                if isinstance(message, Revoke):
                    message = replace(message, reason="x")
                self._check_sent(message)
                self.lives[effect.conn].down.append(message)
            elif isinstance(effect, Disconnect) and effect.conn in self.lives:
                self.lives[effect.conn].over = True

    def hear(self, life: Life, event: Event) -> None:
        """Feed a core; its messages go up, its fetches begin."""
        for effect in life.core.handle(event, now=0.0):
            if isinstance(effect, SendControl):
                life.up.append(effect.message)
            elif isinstance(effect, StartFetch):
                items: list[Any] = [effect.load] if effect.load > PRELUDE else []
                items += [LocalItem(effect.local_version, rank) for rank in effect.locals]
                items += [Position(0, run.version, s) for run in effect.runs for s in run.seqnos()]
                life.fetches.append((effect.epoch, effect.source, items))
        if life.core.state in (State.FAILED, State.FINISHED):
            life.over = True
        life.fetches = [f for f in life.fetches if f[0] == life.core.epoch and self._live(life)]

    @staticmethod
    def _live(life: Life) -> bool:
        return life.core.state in (State.RUNNING, State.CATCHING_UP)

    # --- fetching -----------------------------------------------------------------------------

    def _source(self, life: Life, index: int) -> Life | None:
        epoch, rank, _ = life.fetches[index]
        source = self.lives.get(life.core.members[rank].port)
        if source is None or source.core.epoch != epoch or not self._live(source):
            return None  # dead, or not yet, or no longer in this epoch: a Revoke will come
        return source

    def _fetch(self, life: Life, index: int) -> None:
        source = self._source(life, index)
        assert source is not None
        epoch, rank, items = life.fetches[index]
        if not items:
            del life.fetches[index]
            self.hear(life, FetchEnded(epoch, rank))
            return
        item = items.pop(0)
        if isinstance(item, int):
            held = source.core.checkpoint
            if held is None or held.version != item:
                raise Violation(f"rank {rank} was named for checkpoint {item}, but has {held}")
            self.hear(life, CheckpointFetched(epoch, item, held.value))
            return
        if isinstance(item, LocalItem):
            local = source.core.locals.get(item.version, item.rank)
            if local is None:
                raise Violation(f"rank {rank} was named as a holder of {item}, but has it not")
            self.hear(life, LocalFetched(epoch, item.version, item.rank, local))
            return
        entry = source.core.log.get(item)
        if entry is None:
            raise Violation(f"rank {rank} was named as a holder of {item}, but has it not")
        self.hear(life, ResultFetched(epoch, item, entry.signature, entry.value))

    # --- the user's thread --------------------------------------------------------------------

    def _can_act(self, life: Life) -> bool:
        core = life.core
        if life.over or core.is_frozen or (core.closed and life.said_bye):
            return False
        if core.closed or core.log.get(core.position) is not None:
            return True
        letter = self.script.kind_at(core.position)
        if not letter:
            return False
        if letter == "L" and core.frontier.past_load:
            lacks = core.locals.lacks(core.frontier.version, core.rank)
            return core.checkpoint is not None and not lacks
        if letter in "CP" and core.pending_fetches:
            return False
        if core.position < core.frontier:
            return False
        if self.sent.get((core.epoch, core.rank), None) != core.position:
            return True  # it has not entered yet
        needed = {0} if letter == "B" else set(range(self.script.ranks))
        must_copy = self.copied.get((core.epoch, core.rank)) != core.position
        stage = self.sent if letter != "P" or must_copy else self.copied
        reached = [stage.get((core.epoch, rank)) for rank in needed]
        return all(place is not None and place >= core.position for place in reached)

    def _act(self, life: Life) -> None:
        core, position = life.core, life.core.position
        if core.closed:
            life.said_bye = True
            self.hear(life, OwnCloseDone())
            return
        letter = self.script.kind_at(position)
        signature = SIGNATURES[letter]
        step: Any = (core.begin_load if letter == "L" else core.begin)(signature, SITE)
        if isinstance(step, Entry):
            replay = core.replay_close if letter == "E" else core.replay
            assert replay(now=0.0) is Outcome.DONE
            life.done[position] = 0
        elif isinstance(step, Checkpoint):
            assert core.replay_load(step, now=0.0) is Outcome.DONE
            life.done[position] = 0
        elif step is Step.EXECUTE:
            self._execute(life, letter, signature)
        if life.core.closed:
            self.closed.add(core.rank)
        self._check_copies()

    def _execute(self, life: Life, letter: str, signature: bytes) -> None:
        core, position, epoch = life.core, life.core.position, life.core.epoch
        if self.sent.get((epoch, core.rank)) != position:
            self.sent[epoch, core.rank] = position
            if letter in "CP" and core.tentative is None:
                version = position.version + 1
                local = local_value(version, core.rank) if letter == "P" else None
                core.offer_checkpoint(version, b"d", local)
            if letter != "B" or core.rank != 0:
                return  # a broadcast's root completes alone, at once
        if letter == "P" and self.copied.get((epoch, core.rank)) != position:
            self._copy_locals(core, epoch)
            return
        entry = Entry(signature, str(position))
        if letter == "L":
            outcome = core.complete_load(epoch, 0, b"", now=0.0)
        elif letter in "CP":
            outcome, _ = core.complete_checkpoint(epoch, now=0.0)
        elif letter == "E":
            outcome = core.complete_close(epoch, entry, now=0.0)
        else:
            outcome, _ = core.complete(epoch, entry, synchronising=letter != "B", now=0.0)
        if outcome is Outcome.DONE:
            self._check_first(life, position, epoch)
            life.done[position] = epoch
            if letter != "B":
                self.stable_below = max(self.stable_below, position)

    def _copy_locals(self, core: WorkerCore, epoch: int) -> None:
        """Everyone has sent its local state; a barrier comes behind."""
        version = core.position.version + 1
        for owner in local_owners(core.keep_order, core.rank, LIMITS.local_replicas):
            kept = core.keep_local(epoch, version, owner, local_value(version, owner))
            assert kept, "a copy was refused in a healthy epoch"
        self.copied[epoch, core.rank] = core.position

    # --- rules --------------------------------------------------------------------------------

    def _check_first(self, life: Life, position: Position, epoch: int) -> None:
        for other in self.lives.values():
            earlier = other.done.get(position)
            member = other.core.epoch == epoch and other is not life
            if member and earlier is not None and earlier < epoch:
                raise Violation(f"{position} was executed again, rank {other.core.rank} had it")

    def _check_copies(self) -> None:
        lives = list(self.lives.values())
        calm = all(
            x.core.state is State.RUNNING and x.core.epoch == self.roster.epoch for x in lives
        )
        if not calm or self.roster.state.name != "RUNNING" or self.roster.awaiting_fetch:
            return
        lives = [life for life in lives if not life.over]
        if len(lives) < self.script.ranks:
            return
        self._check_local_copies(lives)
        top = max(life.core.position for life in lives)
        for seqno in range(top.seqno):
            position = Position(0, top.version, seqno)
            holders = sum(life.core.log.get(position) is not None for life in lives)
            past = sum(life.core.position > position for life in lives)
            wanted = SETTINGS.replicas if position < self.stable_below else past
            if holders < wanted and self.script.kind_at(position) not in "LCP":
                raise Violation(f"{position} is held {holders} times instead of {wanted} (R3)")

    def _check_local_copies(self, lives: list[Life]) -> None:
        for core in (life.core for life in lives):
            version = core.position.version
            if version <= 0 or "P" not in self.script.letters:
                continue
            for owner in (
                core.rank,
                *local_owners(core.keep_order, core.rank, LIMITS.local_replicas),
            ):
                if core.locals.get(version, owner) != local_value(version, owner):
                    raise Violation(f"rank {core.rank} lacks {owner}'s local state (R6)")

    def _check_verdict(self) -> None:
        verdict = self.journal.verdict
        if verdict is None:
            return
        if verdict.error != "JobLostError" or self.crashes < SETTINGS.replicas:
            raise Violation(f"verdict after {self.crashes} crashes: {verdict.cause}")
        everyone = verdict.cause.startswith("every member")
        for life in self.lives.values():
            held = life.core.log.get(verdict.position) is not None
            if life.core.caught_up > 0 if everyone else held:
                raise Violation(f"{verdict.cause}, but rank {life.core.rank} has it")

    def _check_sent(self, message: Any) -> None:
        if isinstance(message, AllBye) and len(self.closed) < self.script.ranks:
            raise Violation(f"all-bye, but only {self.closed} have closed (R8)")

    def check_stuck(self) -> None:
        """No move is left: then everyone must have ended."""
        waiting = [
            f"rank {life.core.rank} is {life.core.state.name} at {life.core.position}"
            for life in self.lives.values()
            if not life.over and self.script.kind_at(life.core.position)
        ]
        if waiting:
            raise Violation(
                f"nothing can happen any more, but {waiting}; the tracker is "
                f"{self.roster.state.name} in epoch {self.roster.epoch}/{self.journal.epoch}"
            )

    def _tidy(self) -> None:
        """Forget what decides nothing, so that equal states are equal bytes."""
        self.roster.incidents = []
        if self.roster.incident is not None:
            self.roster.incident.reason = "x"
            self.roster.incident.victims = []
        self.gone = {port: queue for port, queue in self.gone.items() if queue}
        oldest = min((life.core.epoch for life in self.lives.values()), default=0)
        for stage in (self.sent, self.copied):
            kept = {key: stage[key] for key in sorted(stage) if key[0] >= oldest}
            stage.clear()
            stage.update(kept)
