"""The beat of a tracker in its store: a second one sees that somebody leads the job (rule R16).

A beat is an object with a new name each time, so the store need not overwrite anything.  It is a
courtesy: that two trackers cannot both lead is the chain's doing, but the second one would end the
workers of the first without a word.
"""

import contextlib
import json
import logging
import platform
import secrets
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from ftcomm.config.process_identity import ProcessName, process_space, this_process
from ftcomm.durable.store import MissingObjectError, Store, StoreError
from ftcomm.errors import ConfigError

BEATS = "beat/"
BEAT_EVERY_S = 3.0
# Two beats, and a slow request: who has not put another one by then has ended.
WATCH_S = 8.0
LAST_CALL_S = 2.0  # to remove the beat at the end
UNKNOWN = "a process"
# Looks, one each `BEAT_EVERY_S`, without a new beat: then its process has ended, or is stopped.
SILENT_LOOKS = 3
# Looks without any beat: a list that is made while one replaces another may lack both.
EMPTY_LOOKS = 2
STAKE_S = 1.0  # between one's own beat and the look at others': a slow request of theirs

log = logging.getLogger("ftcomm_tracker")


class StoreBeat:
    """The beats of one tracker.

    Args:
        store: of its job.
        pause: waits for some seconds.

    Attributes:
        is_on: this tracker leads; while it does not, it has no beat.
    """

    def __init__(
        self, store: Store, *, pause: Callable[[float], Awaitable[object]] = trio.sleep
    ) -> None:
        self._store = store
        self._pause = pause
        self._token = secrets.token_hex(8)
        self._count = 0
        self._name = ""
        self._lock = threading.Lock()  # a beat may be put still when the last one is removed
        self._has_ended = False
        self.is_on = True

    async def refuse_second(self) -> None:
        """Return if no other tracker works on the store; see `other`.

        Raises:
            ConfigError: one does.
            StoreError: the store could not be read.
        """
        other = await self.other()
        if other:
            raise ConfigError(
                f"a tracker works on the store {self._store.url}: {other}",
                remedy="let it end, give another --checkpoint, or take its place by --take-over,"
                " which ends its workers",
            )

    async def other(self) -> str:
        """Return another process that beats in the store, in words; empty for none.

        Beats of a process of this host that has ended are removed at once, others after they have
        stood still for `WATCH_S`.

        Raises:
            StoreError: the store could not be read.
        """
        before = await trio.to_thread.run_sync(self.others)
        if not before:
            return ""
        here = [process for process in before.values() if _is_here(process)]
        if not here:
            log.info("a tracker may work on %s: looking for %g s", self._store.url, WATCH_S)
            await self._pause(WATCH_S)
            after = await trio.to_thread.run_sync(self.others)
            here = [process for name, process in after.items() if name not in before]
        if here:
            return _described(here[0])
        for name in before:
            await trio.to_thread.run_sync(self._store.delete, name)
        return ""

    async def first_leads(self) -> bool:
        """Beat, and return True unless another that began at the same time goes first.

        Raises:
            StoreError: the store could not be read.
        """
        await trio.to_thread.run_sync(self._put)
        await self._pause(STAKE_S)
        others = await trio.to_thread.run_sync(self.others)
        leads = all(self._name < name for name in others)
        if not leads:
            await trio.to_thread.run_sync(self._remove)
        return leads

    async def run(self) -> None:
        """Beat for ever; remove the last beat when cancelled."""
        try:
            while True:
                # A store that is away is told by those who write checkpoints to it.
                with contextlib.suppress(StoreError):
                    await trio.to_thread.run_sync(self._put, abandon_on_cancel=True)
                await self._pause(BEAT_EVERY_S)
        finally:
            self._has_ended = True
            with trio.move_on_after(LAST_CALL_S, shield=True), contextlib.suppress(StoreError):
                await trio.to_thread.run_sync(self._remove, abandon_on_cancel=True)

    def _put(self) -> None:
        with self._lock:
            if not self.is_on or self._has_ended:
                self._remove_last()
                return
            before, self._count = self._name, self._count + 1
            process = this_process()
            document = {
                "host": platform.node(),
                "space": process_space(),
                "pid": process.pid,
                "start": process.start,
            }
            name = f"{BEATS}{self._token}-{self._count}"
            self._store.put(name, [json.dumps(document).encode()])
            self._name = name
            if before:
                self._store.delete(before)

    def _remove(self) -> None:
        with self._lock:
            self._remove_last()

    def _remove_last(self) -> None:
        if self._name:
            self._store.delete(self._name)
            self._name = ""

    def others(self) -> dict[str, dict[str, Any]]:
        """Return the other processes that may beat, by the names of their beats."""
        found = {}
        for each in self._store.list(BEATS):
            if each.name.startswith(f"{BEATS}{self._token}-"):
                continue
            try:
                process = _read(self._store.get(each.name))
            except MissingObjectError:  # the next one is there already
                process = {}
            if _has_ended(process):
                self._store.delete(each.name)
            else:
                found[each.name] = process
        return found


class BeatWatch:
    """Looks at the beats of others again and again, for one that waits.

    Args:
        beat: of this tracker, which is not one of them.
    """

    def __init__(self, beat: StoreBeat) -> None:
        self._beat = beat
        self._names: frozenset[str] = frozenset()
        self._leader = ""
        self._looks = 0  # since a beat was seen that was not there before

    def look(self) -> tuple[str, bool]:
        """Return the process that beat last, in words, and whether it has ended.

        Raises:
            StoreError: the store could not be read.
        """
        others = self._beat.others()
        new = sorted(others.keys() - self._names)
        self._looks = 0 if new else self._looks + 1
        self._names = frozenset(others)
        if new:
            self._leader = _described(others[new[-1]])
        return self._leader, self._looks >= (SILENT_LOOKS if others else EMPTY_LOOKS)


def _read(content: bytes) -> dict[str, Any]:
    """Return the process that a beat names; empty if it names none."""
    try:
        document = json.loads(content)
        return {
            "host": str(document["host"])[:64],
            "space": str(document["space"])[:64],
            "pid": int(document["pid"]),
            "start": int(document["start"]),
        }
    except (ValueError, TypeError, KeyError):
        return {}


def _is_of_this_host(process: dict[str, Any]) -> bool:
    """True if its number means the same here: not of a container, or a machine of the same name."""
    here = platform.node(), process_space()
    return (process.get("host"), process.get("space")) == here


def _is_here(process: dict[str, Any]) -> bool:
    """True if it runs on this host."""
    return _is_of_this_host(process) and _name(process).is_running()


def _has_ended(process: dict[str, Any]) -> bool:
    """True if it ran on this host."""
    return _is_of_this_host(process) and not _name(process).is_running()


def _name(process: dict[str, Any]) -> ProcessName:
    return ProcessName(process["pid"], process["start"])


def _described(process: dict[str, Any]) -> str:
    return f"process {process['pid']} on {process['host']}" if process else UNKNOWN
