"""Messages from rank to rank: arguments checked, sent, waited for, and handed out (rule R21)."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ftcomm.api.known_forms import KnownForms, ReceiveForm
from ftcomm.api.outputs import Result
from ftcomm.api.public_values import MessageInfo
from ftcomm.api.session import Session
from ftcomm.config.deadline import Duration
from ftcomm.control.messages.awaited_message import AwaitedMessage
from ftcomm.control.messages.direct_receive import DirectReceive
from ftcomm.control.messages.posted_receives import PostedReceive
from ftcomm.engine.message_port import MessagePort
from ftcomm.errors import FtcommError
from ftcomm.memory.message_value import MessageValue
from ftcomm.protocol.signature import Kind, Tag
from ftcomm.requests.arguments import check_memory
from ftcomm.requests.call_site import call_site, passes_on
from ftcomm.requests.message_request import (
    MessageToSend,
    check_object,
    object_message,
    packed_tag,
    received,
)
from ftcomm.requests.object_payload import unpack_object
from ftcomm.requests.request import anything

passes_on(__file__)

Done = Callable[[MessageValue | None, BaseException | None], None]


@dataclass(slots=True)
class Receive:
    """One receive: the message to take, and what becomes of it."""

    form: ReceiveForm  # of it and others
    deadline: Duration | None  # the user's
    # Returns the user's result. That of an object runs functions that the user has registered,
    # which may raise or take long: it is for a thread of the user's.
    finish: Callable[[MessageValue], Any]
    out: Result | None = None  # where it may be received; None for any own memory
    is_object: bool = False  # see `finish`
    is_probe: bool = False  # the message stays


class MessageCalls:
    """The messages of one communicator; any thread may send and receive."""

    def __init__(self, session: Session) -> None:
        self._session, self._guard = session, session.guard
        self._forms = KnownForms(session.engine.rank, session.engine.world_size)
        self._has_loaded = False

    # --- what is asked for ----------------------------------------------------------------------

    def array(self, x: Any, to: int, tag: Tag, *, copy: bool) -> MessageToSend:
        """A message of an array or a number."""
        self._admit("send()")
        return self._forms.to_send(x, to, tag, call_site(), copy=copy)

    def object(self, obj: Any, to: int, tag: Tag) -> MessageToSend:
        """A message of an object."""
        self._admit("send_object()")
        return object_message(obj, self._forms.peer(to, "to"), packed_tag(tag), call_site())

    def receive(
        self,
        source: int,
        tag: Tag,
        like: Any,
        out: Result | None,
        deadline: Duration | None,
    ) -> Receive:
        """A receive of an array or a number, as `like` or `out` is."""
        self._admit("recv()")
        if like is not None and out is not None:
            raise TypeError("recv() takes like= or out=, not both")
        check_memory(out, strided=True)
        model = like if out is None else out
        form = self._forms.to_receive(source, tag, call_site(), model)
        place = out if out is not None and out.flags.c_contiguous and out.dtype.isnative else None
        return Receive(form, deadline, lambda value: received(value, out), place)

    def receive_object(self, source: int, tag: Tag, deadline: Duration | None) -> Receive:
        """A receive of an object."""
        self._admit("recv_object()")
        source = self._forms.peer(source, "source")

        def check(value: MessageValue) -> None:
            check_object(value, source)

        def finish(value: MessageValue) -> Any:
            return unpack_object(value.stored.flat)

        what = f"recv_object(source={source}, tag={tag!r})"
        form = ReceiveForm(what, source, packed_tag(tag), call_site(), check)
        return Receive(form, deadline, finish, is_object=True)

    def probe(self, source: int, tag: Tag, deadline: Duration | None) -> MessageInfo:
        """Wait for a message, which stays; see `Communicator.probe`."""
        self._admit("probe()")
        source = self._forms.peer(source, "source")
        what = f"probe(source={source}, tag={tag!r})"
        form = ReceiveForm(what, source, packed_tag(tag), call_site(), anything)
        found: MessageInfo = self.wait(Receive(form, deadline, _info, is_probe=True))
        return found

    def _admit(self, what: str) -> None:
        """Refuse a call where there is no communicator, or no version yet."""
        guard = self._guard
        if guard.is_closed or guard.is_inherited:
            guard.refuse()
        if not self._has_loaded:  # once it has, it has for ever
            self._has_loaded = self._session.engine.position.past_load
        if not self._has_loaded:
            raise ValueError(
                f"{what} must come after load_checkpoint(): a restarted rank may skip earlier calls"
            )

    @property
    def _port(self) -> MessagePort:
        port = self._session.engine.messages
        assert port is not None, "a group of one has no other rank"
        return port

    # --- sending and receiving ------------------------------------------------------------------

    def send(self, message: MessageToSend) -> None:
        """Log a message, which is then on its way; raises FtcommError."""
        session, began = self._session, time.perf_counter()
        try:
            self._port.send(message)
            nbytes = message.elements.nbytes
            session.call_stats.add(Kind.SEND, nbytes, time.perf_counter() - began)
        except BaseException as error:
            if message.has_place and not isinstance(error, FtcommError):  # of a signal's handler
                session.give_up(error)
            self.heed(error)
            raise

    def exchange(self, message: MessageToSend, asked: Receive) -> Any:
        """Send and receive; see both."""
        try:
            self.send(message)
            return self.receive_now(asked)
        except BaseException as error:
            self.heed(error)
            raise

    def receive_now(self, asked: Receive) -> Any:
        """Receive on this thread, directly where that may be; else as `wait`, which says more."""
        if self._session.limit_of(asked.deadline) is not None:
            return self.wait(asked)  # the control thread may end it
        began, form = time.perf_counter(), asked.form
        direct = DirectReceive(form.source, form.tag, form.shape, form.dtype, asked.out)
        try:
            self._port.receive_directly(direct)
            value = direct.value
            if value is not None:
                nbytes = value.stored.flat.nbytes
                self._session.call_stats.add(Kind.RECV, nbytes, time.perf_counter() - began)
                return asked.finish(value)
        except BaseException as error:  # of a signal's handler: a message may be lost
            if direct.has_taken or direct.is_filling or not isinstance(error, Exception):
                self._session.give_up(error)
            self.heed(error)
            raise
        return self.wait(asked)

    def wait(self, asked: Receive) -> Any:
        """Receive, and return the user's result.

        Raises:
            TypeError, ValueError: the message does not fit; it can be received again.
            FtcommError: the communicator is over.
        """
        awaited = AwaitedMessage()
        posted = self._posted(asked, awaited.take)
        posted.since = time.monotonic()  # before others see it: a cut goes on beside it
        try:
            self._port.post(posted)
            self._port.wait(posted, awaited)
            if awaited.error is None:
                self._port.note_received()
                assert awaited.value is not None, "it has come, or an error"
                return asked.finish(awaited.value)
        except BaseException as error:
            if not (awaited.is_over and isinstance(error, Exception)):  # of a user's `from_state`
                self._session.give_up(error)
            self.heed(error)
            raise
        self.heed(awaited.error)
        raise awaited.error

    def posted(self, asked: Receive, done: Done) -> PostedReceive:
        """A receive to be given to `post`; `done` is told of the message or error, on any thread.

        The caller makes the user's result of it, by `asked.finish`.
        """

        def end(value: MessageValue | None, error: BaseException | None) -> None:
            done(value, error)
            if error is None:
                self._port.note_received()

        return self._posted(asked, end)

    def post(self, posted: PostedReceive) -> None:
        """Begin to receive."""
        try:
            self._port.post(posted)
            self._port.cool()
        except BaseException as error:  # of a signal's handler: it would take a message
            self._session.give_up(error)
            self.heed(error)
            raise

    def wait_elsewhere(self) -> None:
        """A thread is about to wait for a receive that was begun: it does not read itself."""
        self._port.cool()

    def heed(self, error: BaseException) -> None:
        """An error has left a call, or the user is told of it: it may be the communicator's end."""
        self._session.guard.heed(error)

    def _posted(self, asked: Receive, done: Done) -> PostedReceive:
        session, began = self._session, time.perf_counter()

        def end(value: MessageValue | None, error: BaseException | None) -> None:
            if value is not None:
                nbytes = value.stored.flat.nbytes
                session.call_stats.add(Kind.RECV, nbytes, time.perf_counter() - began)
            done(value, error)

        form, limit = asked.form, session.limit_of(asked.deadline)
        return PostedReceive(
            form.source,
            form.tag,
            form.what,
            form.site,
            limit,
            form.check,
            end,
            out=asked.out,
            is_probe=asked.is_probe,
        )


def _info(value: MessageValue) -> MessageInfo:
    stored, is_object = value.stored, value.is_object
    return MessageInfo(stored.flat.dtype, stored.shape, stored.flat.nbytes, is_object)
