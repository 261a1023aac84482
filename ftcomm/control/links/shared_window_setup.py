"""Setup of the shared window between the ranks of a group on one host.

Rank 0 makes it when it or another one first wants it, and gives its descriptor to each rank that
asks, behind the handshake of a Unix socket between the two:

    rank r                                       rank 0
                               <-------------    Sharing(nonce) + descriptor
    maps it, finds the nonce

No call waits for that: until all have joined, each rank keeps results of its own, as it does where
there can be no shared window.
"""

import os
import secrets

import trio

from ftcomm.config.memory_limits import memory_limit
from ftcomm.config.platforms import why_no_shared_memory
from ftcomm.control.driver import Driver
from ftcomm.control.hub import Hub
from ftcomm.control.links.dial import BROKEN, open_locally
from ftcomm.control.links.shm_setup import receive_with, send_with
from ftcomm.control.message_stream import send_message
from ftcomm.diagnostics.os_errors import describe
from ftcomm.errors import ProtocolError
from ftcomm.protocol.handshake import HANDSHAKE_DEADLINE_S
from ftcomm.protocol.link_messages import Sharing
from ftcomm.transport.shared_window import SharedWindow, create_shared_window, receive_shared_window
from ftcomm.transport.shm_layout import NONCE_BYTES
from ftcomm.transport.shm_segment import NoSharedMemory


def may_have_shared_window(hub: Hub) -> bool:
    """Tell whether a shared window may hold results: all ranks are on one host."""
    core = hub.core
    if hub.settings.transport == "tcp" or why_no_shared_memory() is not None:
        return False
    return all(member.host == core.contact.identity.host for member in core.view.members)


def locate_shared_window(driver: Driver, epoch: int) -> None:
    """Open or join the shared window on the control thread; it appears in the hub."""
    driver.nursery.start_soon(_locate, driver, epoch)


async def _locate(driver: Driver, epoch: int) -> None:
    with driver.epoch_scopes.opened():
        try:
            if driver.hub.core.view.epoch == epoch:
                await _open_shared_window(driver, epoch)
        except (*BROKEN, NoSharedMemory) as error:
            driver.hub.log.info("this rank keeps results of its own: %s", describe(error))


async def _open_shared_window(driver: Driver, epoch: int) -> None:
    core = driver.hub.core
    if core.view.rank == 0:
        own_shared_window(driver, epoch)
        return
    near = await open_locally(driver, epoch, 0, "common", to_rank=0)
    if near is None:
        raise NoSharedMemory("rank 0 is not reached within this host")
    with near.sock, trio.fail_after(HANDSHAKE_DEADLINE_S):
        offer, fd = await receive_with(near.sock)
    if fd is None or offer.failure:
        if fd is not None:
            os.close(fd)
        raise NoSharedMemory(offer.failure or "rank 0's descriptor did not arrive")
    ranks = len(core.view.members)
    memory = receive_shared_window(fd, ranks, rank=core.view.rank, epoch=epoch, nonce=offer.nonce)
    if driver.hub.add_shared_window(memory):
        driver.hub.log.info("large results lie in shared windows")


async def serve_shared_window(driver: Driver, sock: trio.socket.SocketType, epoch: int) -> None:
    """Rank 0's part, behind the handshake of that epoch."""
    if sock.family in (trio.socket.AF_INET, trio.socket.AF_INET6):
        return  # which carries no descriptors; nobody of ours asks so
    try:
        with trio.move_on_after(HANDSHAKE_DEADLINE_S):
            try:
                memory = own_shared_window(driver, epoch)
                with driver.hub.lock:  # another thread may close it
                    fd = os.dup(memory.fd)
            except (NoSharedMemory, OSError) as error:
                await send_message(sock, Sharing(failure=describe(error)))
                return
            try:
                await send_with(sock, Sharing(memory.nonce), fd)
            finally:
                os.close(fd)
    except BROKEN as error:
        driver.hub.log.debug("giving shared window came to nothing: %s", describe(error))


def own_shared_window(driver: Driver, epoch: int) -> SharedWindow:
    """Rank 0's shared window of this epoch, made if there is none yet.

    Raises:
        NoSharedMemory: this machine has none, or the group is on several.
        ProtocolError: this is not rank 0, or the epoch is over.
    """
    hub = driver.hub
    if hub.core.view.rank != 0:
        raise ProtocolError(f"rank {hub.core.view.rank} has no shared window to give")
    if hub.core.view.epoch != epoch:  # who asked would join a later epoch's, and not know it
        raise ProtocolError(f"epoch {epoch} is over")
    if hub.shared_window is not None:
        return hub.shared_window
    if not may_have_shared_window(hub):
        raise NoSharedMemory(
            why_no_shared_memory() or "results of this group do not lie in shared windows"
        )
    ranks, settings = len(hub.core.view.members), hub.settings
    # each rank may log so much, and of each result as many of them as keep it
    logged = settings.log_limit * ranks // min(ranks, settings.replicas)
    nbytes, nonce = min(logged, memory_limit() // 2), secrets.token_bytes(NONCE_BYTES)
    memory = create_shared_window(ranks, nbytes, epoch=epoch, nonce=nonce)
    if not hub.add_shared_window(memory):
        raise ProtocolError(f"epoch {epoch} is over")
    return memory
