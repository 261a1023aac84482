"""Messages in the explorer: between collectives, each with a source and a destination (R21).

A message is sent in one move, and received in another.  Between them a receiver asks its source
once in an epoch: one move for the source to hear it, and one for each message that follows.
"""

from typing import TYPE_CHECKING

from ftcomm.protocol.position import Position
from ftcomm.recovery.events import FatalFound, MessagesClaimed, MessagesWanted
from ftcomm.recovery.machine import Completion, WorkerMachine
from ftcomm.recovery.messages.message_exchange import Cursor, MessageArrived
from ftcomm.recovery.messages.names import MODULUS
from ftcomm.recovery.messages.sent_log import SentMessage
from ftcomm_chaos.explorer.transitions import SITE, PendingMessages
from ftcomm_chaos.explorer.workload import MESSAGES, content_of
from ftcomm_chaos.sim.world import Violation

if TYPE_CHECKING:
    from ftcomm_chaos.explorer.state import Model, ModelProcess

Place = tuple[Position, int]  # the call that a message comes before, and which one it is
TAG = b"t"
OPEN = FatalFound("JobLostError", "a rank has sent other bytes than before, as a cut has found")


# --- the user's thread --------------------------------------------------------------------------


def due(model: "Model", process: "ModelProcess") -> int | None:
    """The index of the next message that this rank sends or receives before its call, or None."""
    core = model.core(process)
    position = core.progress.position
    letters = model.script.messages_at(position)
    passed = process.passed[1] if process.passed[0] == position else 0
    for index in range(passed, len(letters)):
        if core.view.rank in MESSAGES[letters[index]]:
            return index
    return None


def can_pass(model: "Model", process: "ModelProcess") -> bool:
    """Tell whether the thread can go on: to send it needs nobody."""
    source, _ = _ends(model, process)
    core = model.core(process)
    if core.view.rank == source:
        return True
    takes, _ = model.parts.cores.call(process.core, _can_take, source)
    asks, _ = model.parts.cores.call(process.core, _can_ask, source)
    return bool(takes or asks)


def pass_next(model: "Model", port: int) -> None:
    """Send or take the next message; where it has not come, ask for it."""
    process = model.processes[port]
    index = due(model, process)
    assert index is not None, "the thread has a message to pass"
    position = model.core(process).progress.position
    letter = model.script.messages_at(position)[index]
    source, destination = MESSAGES[letter]
    if model.core(process).view.rank == source:
        content = content_of(letter, position, index, port)
        differs = model.step(port, _send, destination, content)
        if differs is not None:
            model.hear(port, differs)
    else:
        content = model.step(port, _take, source)
        if content is None:
            model.hear(port, MessagesWanted(source))
            return
        _check_content(letter, (position, index), content)
    process = model.processes[port]
    contents = [(place, c) for place, c in process.contents if place[0].version == position.version]
    model.processes[port] = process._replace(
        passed=(position, index + 1), contents=(*contents, ((position, index), content))
    )


def _ends(model: "Model", process: "ModelProcess") -> tuple[int, int]:
    index = due(model, process)
    assert index is not None, "the thread has a message to pass"
    return MESSAGES[model.script.messages_at(model.core(process).progress.position)[index]]


def _check_content(letter: str, place: Place, content: bytes) -> None:
    expected = content_of(letter, *place, 0)
    if content != expected and (letter != "V" or content.split()[:-1] != expected.split()[:-1]):
        raise Violation(f"got {content!r}, due was {expected!r} (R21)")


# --- links --------------------------------------------------------------------------------------


def can_serve(model: "Model", process: "ModelProcess", index: int) -> bool:
    """Tell whether the source can hear what was asked, or has a message that follows."""
    link = process.links[index]
    source = model.serving(process, link.epoch, link.source)
    if source is None:
        return False
    return link.at < 0 or _following(model, process, index) is not None


def serve(model: "Model", port: int, index: int) -> None:
    """The source hears what was asked, or its next message arrives."""
    process = model.processes[port]
    link = process.links[index]
    source = model.serving(process, link.epoch, link.source)
    assert source is not None, "it can serve"
    if link.at < 0:
        _put_link(model, port, index, link._replace(at=0))
        rank = model.core(process).view.rank
        model.hear(source.port, MessagesClaimed(link.epoch, rank, link.version, link.marks))
        return
    found = _following(model, process, index)
    assert found is not None, "a message follows"
    link, sent = found
    _put_link(model, port, index, link)
    content = sent.number, sent.digest, sent.value
    stream = sent.stream
    arrived = MessageArrived(link.epoch, link.source, link.version, stream.tag, *content)
    model.step(port, _arrive, arrived)


def _arrive(core: WorkerMachine, arrived: MessageArrived) -> bool:
    return core.messages.arrive(arrived)


def _put_link(model: "Model", port: int, index: int, link: PendingMessages) -> None:
    links = list(model.processes[port].links)
    links[index] = link
    model.processes[port] = model.processes[port]._replace(links=tuple(links))


def _following(
    model: "Model", process: "ModelProcess", index: int
) -> tuple[PendingMessages, SentMessage] | None:
    link = process.links[index]
    source = model.serving(process, link.epoch, link.source)
    assert source is not None, "it can serve"
    rank = model.core(process).view.rank
    found: tuple[PendingMessages, SentMessage] | None
    found, _ = model.parts.cores.call(source.core, _first_behind, rank, link)
    return found


# --- cuts ---------------------------------------------------------------------------------------


def is_open(model: "Model", epoch: int) -> bool:
    """Tell whether the balances that all ranks have brought to a cut are not level."""
    sum_ = sum(model.balances[epoch, rank] for rank in range(model.script.ranks))
    if sum_ % MODULUS and "V" not in model.script.letters:
        raise Violation("a message was lost or doubled, and found at the cut alone (R21)")
    return bool(sum_ % MODULUS)


def check_cut(model: "Model") -> None:
    """Behind a cut every receiver has taken what its source has sent (R21)."""
    known: dict[Place, bytes] = {}
    for process in model.processes.values():
        for place, content in process.contents:
            other = known.setdefault(place, content)
            if other != content:
                raise Violation(f"before {place[0]} there was {other!r}, and {content!r} too")


# --- steps of a core ----------------------------------------------------------------------------


def balance(core: WorkerMachine) -> int:
    """The balance of this rank: all that it has sent, less all that it has taken."""
    return core.messages.balance


def _send(core: WorkerMachine, destination: int, content: bytes) -> FatalFound | None:
    return core.messages.send(destination, TAG, content, content, SITE)


def _take(core: WorkerMachine, source: int) -> bytes | None:
    outcome, content = core.messages.receive(source, TAG, 0.0)
    return content if outcome is Completion.DONE else None


def _can_take(core: WorkerMachine, source: int) -> bool:
    return core.messages.receive(source, TAG, 0.0)[0] is Completion.DONE


def _can_ask(core: WorkerMachine, source: int) -> bool:
    view = core.view
    return view.is_live and view.members[source].present and core.messages.must_ask(source)


def _first_behind(
    core: WorkerMachine, rank: int, link: PendingMessages
) -> tuple[PendingMessages, SentMessage] | None:
    cursor = Cursor(link.version, {tag: mark.number for tag, mark in link.marks}, link.at)
    behind, found = core.messages.following(rank, cursor, 1)
    if not found:
        return None
    marks = link.marks if behind.version == link.version else ()
    return link._replace(version=behind.version, marks=marks, at=behind.at), found[0]
