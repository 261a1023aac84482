"""Delivers the faults of a plan to a running job, each at its time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never, cast

import trio

from ftcomm_chaos.live.fault import TRACKER, Hit, LibraryFault, NotDeliveredError
from ftcomm_chaos.live.job import LiveJob
from ftcomm_chaos.live.luck import dice_of
from ftcomm_chaos.live.notes import Fired
from ftcomm_chaos.live.plan import AtPosition, AtSeconds, Entry, Every
from ftcomm_chaos.live.record import Delivery
from ftcomm_chaos.live.told import Told

CALM_PATIENCE_S = 60.0  # a recovery that takes longer is not waited for: then faults overlap
END_OF_RUN_S = 1e6  # in a history, of what has no end


@dataclass(slots=True)
class Schedule:
    """The faults of one run, and what became of them."""

    entries: Sequence[Entry]
    seed: int
    run: int
    stop_after_s: float
    deliveries: list[Delivery] = field(default_factory=list)
    _waiting: dict[str, trio.Event] = field(default_factory=dict)

    async def deliver(self, job: LiveJob) -> None:
        """Deliver faults until the plan is done; cancelled when the job ends."""
        async with trio.open_nursery() as nursery:
            for entry in self.entries:
                nursery.start_soon(self._deliver_entry, entry, job)

    def hear(self, fired: Fired) -> None:
        """The library, or the tracker, has reached an address."""
        address = fired.address.partition("=")[0]
        if address in self._waiting:
            self._waiting.pop(address).set()

    def missed(self) -> list[Entry]:
        """Entries that the plan promises and that were not delivered."""
        done = {delivery.entry for delivery in self.deliveries if not delivery.failed}
        return [entry for entry in self.entries if entry.once and entry.number not in done]

    # --- one entry ----------------------------------------------------------------------------

    async def _deliver_entry(self, entry: Entry, job: LiveJob) -> None:
        dice = dice_of(self.seed, self.run, entry)
        match entry.at:
            case AtSeconds(seconds):
                await job.until(_formed)
                await trio.sleep(seconds)
                await self._fire(entry, job, dice)
            case Every():
                await self._repeat(entry, entry.at, job, dice)
            case AtPosition(address):
                await self._at_position(entry, address, job, dice)
            case _:
                assert_never(entry.at)

    async def _repeat(self, entry: Entry, every: Every, job: LiveJob, dice: random.Random) -> None:
        await job.until(_formed)
        end = trio.current_time() + min(every.until_s, self.stop_after_s)
        await trio.sleep(every.from_s)
        count = 0
        while count < every.count:
            await trio.sleep(every.every_s * dice.uniform(0.5, 1.5))
            if not every.overlap and not job.told.calm:
                with trio.move_on_after(CALM_PATIENCE_S):
                    await job.until(_calm)
                await trio.sleep(every.every_s * dice.uniform(0.0, 0.5))
            if job.told.all_closed or trio.current_time() > end:
                return
            count += await self._fire(entry, job, dice)

    async def _at_position(
        self, entry: Entry, address: str, job: LiveJob, dice: random.Random
    ) -> None:
        there = self._waiting[address] = trio.Event()
        await there.wait()
        if not entry.kind.library_action:
            await self._fire(entry, job, dice)
            return
        try:
            hit = self._happened(entry, address, job)
        except NotDeliveredError as error:
            self._note_failure(entry, job.now, error)
            return
        delivery = self._note(entry, job, hit, job.now, job.told.epoch)
        for life in hit.lives:
            await life.gone()
        await self._end(entry, job, delivery)

    @staticmethod
    def _happened(entry: Entry, address: str, job: LiveJob) -> Hit:
        if entry.target.kind == TRACKER:
            life = job.tracker
            return Hit((), f"tracker_kill at {address}", () if life is None else (life,))
        return cast("LibraryFault", entry.fault).happened(job, entry.target.workers[0])

    async def _fire(self, entry: Entry, job: LiveJob, dice: random.Random) -> bool:
        """Deliver once; returns whether it was delivered."""
        began, epoch = job.now, job.told.epoch
        if job.told.all_closed:  # though their processes may go on: nothing is left to test
            self._note_failure(entry, began, NotDeliveredError("all ranks had closed"))
            return False
        try:
            hit = await entry.fault.fire(job, dice)
        except NotDeliveredError as error:
            self._note_failure(entry, began, error)
            return False
        await self._end(entry, job, self._note(entry, job, hit, began, epoch))
        return True

    def _note_failure(self, entry: Entry, at_s: float, error: NotDeliveredError) -> None:
        failed = Delivery(entry.number, entry.kind.name, at_s, (), "", failed=str(error))
        self.deliveries.append(failed)

    def _note(self, entry: Entry, job: LiveJob, hit: Hit, at_s: float, epoch: int) -> Delivery:
        delivery = Delivery(
            entry=entry.number,
            kind=entry.kind.name,
            at_s=at_s,
            workers=hit.workers,
            what=hit.what,
            dies=tuple(life.pid for life in hit.lives),
        )
        self.deliveries.append(delivery)
        lasts_s = END_OF_RUN_S if entry.kind.lasting and entry.for_s is None else entry.for_s
        job.record_fault(delivery, lasts_s or 0.0)
        if hit.lives and hit.workers:
            job.expect_recovery(hit.lives, epoch)
        return delivery

    async def _end(self, entry: Entry, job: LiveJob, delivery: Delivery) -> None:
        if entry.for_s is not None:
            await trio.sleep(entry.for_s)
            try:
                await entry.fault.undo(job)
                delivery.until_s = job.now
            except NotDeliveredError as error:
                delivery.what += f", and could not be undone: {error}"


def _formed(told: Told) -> bool:
    return told.formed


def _calm(told: Told) -> bool:
    return told.calm
