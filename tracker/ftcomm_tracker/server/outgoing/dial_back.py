"""Dialling an operator back, so that `doctor` learns whether this machine can reach its own.

Only the address of the asking connection is dialled, after the asker has proven that it holds the
job's token; a few at a time, each for a short time, and nothing that comes back is read.
"""

import trio

MAX_AT_ONCE = 8  # a job's machines are examined one by one, or all at once and a little later
DIAL_WITHIN_S = 3.0  # a lost SYN is repeated after 1 s; a firewall that drops never answers


class DialBacks:
    """Bounds how many are under way."""

    def __init__(self) -> None:
        self._under_way = 0

    async def dial(self, host: str, port: int, nonce: bytes) -> str:
        """Connect to `host`, send `nonce`, hang up; returns why it failed, empty if it did not."""
        if self._under_way >= MAX_AT_ONCE:
            return f"the tracker examines {MAX_AT_ONCE} other machines just now: try again"
        self._under_way += 1
        try:
            with trio.move_on_after(DIAL_WITHIN_S):
                async with await trio.open_tcp_stream(host, port) as stream:
                    await stream.send_all(nonce)
                return ""
        except (OSError, trio.BrokenResourceError) as error:
            return str(error) or type(error).__name__
        finally:
            self._under_way -= 1
        return f"no answer within {DIAL_WITHIN_S:g} s, as if a firewall drops it"
