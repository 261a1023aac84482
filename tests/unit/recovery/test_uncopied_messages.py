"""Messages of which the log has no copy yet: only the thread that sends one can send it."""

from ftcomm.recovery.machine import WorkerMachine
from ftcomm.recovery.messages.message_exchange import Cursor
from ftcomm.recovery.messages.sent_log import SentMessage
from tests.unit.recovery.test_messages import (
    SITE,
    TAG,
    checkpoint,
    digest,
    following,
    loaded,
    send,
)


def log_without_a_value(core: WorkerMachine, content: str) -> SentMessage:
    """As the thread does that writes a message before it copies it."""
    assert core.messages.send(1, TAG, digest(content), None, SITE) is None
    entry = core.messages.sent.newest((0, 1, TAG))
    assert entry is not None
    return entry


def test_a_message_and_those_behind_it_wait_until_its_thread_has_copied_it() -> None:
    core = loaded()
    send(core, "a")
    entry = log_without_a_value(core, "b")
    send(core, "c", tag=b"other")
    assert core.messages.following(1, Cursor(0, {}, at=1), 9) == (Cursor(0, {}, at=1), [])
    assert following(core) == ["a"]
    assert entry.keep("b")  # it was missed
    assert following(core) == ["a", "b", "c"]


def test_nobody_waits_for_the_copy_of_what_the_receiver_has() -> None:
    core = loaded()
    entry = log_without_a_value(core, "a")
    send(core, "b")
    assert following(core, **{TAG.decode(): 1}) == ["b"]
    assert not entry.keep("a")


def test_the_thread_that_logs_a_message_may_send_it_before_it_is_copied() -> None:
    core = loaded()
    entry = log_without_a_value(core, "a")
    assert core.messages.newest_behind(1, Cursor(0, {})) == (Cursor(0, {}, at=1), entry)
    assert core.messages.sent.newest((0, 2, TAG)) is None


def test_what_is_copied_when_its_version_is_committed_releases_nothing() -> None:
    core = loaded()
    entry = log_without_a_value(core, "a")
    send(core, "b")
    checkpoint(core, 1)
    assert core.messages.take_released() == ["b"]
    entry.keep("a")
    assert core.messages.take_released() == []
