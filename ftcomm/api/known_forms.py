"""KnownForms: forms of sends and receives, kept for calls like the ones before.

A message of a few bytes takes as long as its Python does.  Tag, line, and what an array must be are
the same in each call of a loop.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ftcomm.collectives.dtypes import AnyDtype
from ftcomm.memory.message_value import MessageValue
from ftcomm.protocol.signature import Tag
from ftcomm.requests.builder import FORMS_KEPT
from ftcomm.requests.message_request import (
    MessageForm,
    MessageToSend,
    array_message,
    check_content,
    other_rank,
    packed_tag,
)

_TAGS = (int, str)  # equal ones of these are of one type: no bool comes here


class ReceiveForm(NamedTuple):
    """The same in all receives of one line and one kind of content.

    Attributes:
        what: the call, in the user's words.
        source: the rank that sends.
        tag: as it travels.
        site: the user's line.
        check: refuses a message that does not fit; it stays where it is then.
        shape: of an array that it must be like; None for any.
        dtype: likewise.
    """

    what: str
    source: int
    tag: bytes
    site: str
    check: Callable[[MessageValue], None]
    shape: tuple[int, ...] | None = None
    dtype: AnyDtype | None = None


class KnownForms:
    """Forms of the messages of one communicator, by what the user has passed; for any thread."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size
        self._sent: dict[object, MessageForm] = {}
        self._received: dict[object, ReceiveForm] = {}

    def peer(self, peer: Any, name: str) -> int:
        """The user's `peer`, another rank than this.

        Raises:
            TypeError, ValueError: it is no rank, or this one.
        """
        return other_rank(peer, name, self._rank, self._world_size)

    def to_send(self, x: Any, to: int, tag: Tag, site: str, *, copy: bool) -> MessageToSend:
        """A message of an array or a number.

        Raises:
            TypeError, ValueError: by `array_message`, `packed_tag` and `peer`.
        """
        key: object = None
        if type(x) is np.ndarray and type(to) is int and type(tag) in _TAGS:
            key = to, tag, site, x.shape, x.dtype
            form = self._sent.get(key)
            if form is not None and x.flags.c_contiguous:
                # of what is copied anyway no view is needed
                flat = x if copy and len(form.shape) == 1 else x.reshape(-1)
                return MessageToSend(form, flat, not copy)
        message = array_message(x, self.peer(to, "to"), packed_tag(tag), site, copy=copy)
        if key is not None and x.dtype.isnative:
            _keep(self._sent, key, message.form)
        return message

    def to_receive(self, source: int, tag: Tag, site: str, model: Any) -> ReceiveForm:
        """A receive of an array or a number, which must be like `model`, if that is not None.

        Raises:
            TypeError, ValueError: by `packed_tag` and `peer`.
        """
        key: object = None
        if type(source) is int and type(tag) in _TAGS:
            if model is None:
                key = source, tag, site
            elif type(model) is np.ndarray:
                key = source, tag, site, model.shape, model.dtype
            form = self._received.get(key)
            if form is not None:
                return form
        form = self._receive_form(source, tag, site, model)
        if key is not None:
            _keep(self._received, key, form)
        return form

    def _receive_form(self, source: int, tag: Tag, site: str, model: Any) -> ReceiveForm:
        rank, shape, dtype = self.peer(source, "source"), None, None
        if model is not None:
            shape, dtype = np.shape(model), _dtype_of(model)

        def check(value: MessageValue) -> None:
            check_content(value, rank, shape, dtype)

        what = f"recv(source={rank}, tag={tag!r})"
        return ReceiveForm(what, rank, packed_tag(tag), site, check, shape, dtype)


def _keep(forms: dict[object, Any], key: object, form: object) -> None:
    if len(forms) >= FORMS_KEPT:
        forms.clear()
    forms[key] = form


def _dtype_of(model: Any) -> AnyDtype:
    return model.dtype if isinstance(model, (np.ndarray, np.generic)) else np.asarray(model).dtype
