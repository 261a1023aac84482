"""A socket of trio's, for threads that are not trio's."""

import os
import socket

import trio


def own_socket(sock: trio.socket.SocketType) -> socket.socket:
    """Return another descriptor of the same connection, which does not block.

    Its owner closes it; so no thread can use a number that is another connection's by then.
    """
    own = socket.socket(fileno=os.dup(sock.fileno()))
    own.setblocking(False)
    return own
