"""Notices to the trackers that a job's workers have left: one may only have been stopped (R19)."""

import logging
from dataclasses import dataclass

import trio

from ftcomm.config.environment import parse_address
from ftcomm.errors import FtcommError
from ftcomm.protocol.codec import encode
from ftcomm.protocol.handshake import control_key
from ftcomm.protocol.operator_messages import SupersededNotice
from ftcomm_tracker.server.connections.authentication import prove
from ftcomm_tracker.server.connections.listener import join_address

NOTICE_EVERY_S = 2.0  # between two attempts at a tracker that does not answer
NOTICE_DEADLINE_S = 10.0  # one attempt; twice a tracker's own deadline for a handshake
NOTICES_WITHIN_S = 86400.0  # one that is stopped for longer is told by the first worker it meets
MAX_TRACKERS = 8  # that are told; the workers name one, or two if some have moved on already

log = logging.getLogger("ftcomm_tracker")


@dataclass(frozen=True, slots=True)
class OldTrackers:
    """Tells the trackers before this one that the workers follow it."""

    token: bytes
    job_id: str
    generation: int

    async def tell(self, addresses: tuple[str, ...], own: tuple[str, int]) -> None:
        """Tell each, again and again until it has heard or none listens there any more."""
        others = [each for each in addresses if each != join_address(*own)][:MAX_TRACKERS]
        with trio.move_on_after(NOTICES_WITHIN_S):
            async with trio.open_nursery() as nursery:
                for address in others:
                    nursery.start_soon(self._tell, address)

    async def _tell(self, address: str) -> None:
        while True:
            if await self._is_told(address):
                break
            await trio.sleep(NOTICE_EVERY_S)
        log.info("no older tracker serves this job at %s", address)

    async def _is_told(self, address: str) -> bool:
        """Make one attempt; True if the tracker there has heard, or there is none of this job."""
        try:
            with trio.fail_after(NOTICE_DEADLINE_S):
                async with await trio.open_tcp_stream(*parse_address(address)) as stream:
                    await prove(stream, control_key(self.token))
                    await stream.send_all(encode(SupersededNotice(self.job_id, self.generation)))
                    await stream.receive_some()  # its answer, or its end
                    return True
        except ConnectionRefusedError:
            return True
        except FtcommError:  # another job's tracker
            return True
        except (OSError, trio.BrokenResourceError, trio.TooSlowError):
            return False
