"""Delivers the faults of a plan to a running job, each at its time."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import trio

from ftcomm.diagnostics.fault_record import FaultRecord
from ftcomm_chaos.faults.fault import TRACKER, Hit, NotDeliveredError
from ftcomm_chaos.faults.signal_faults import SignalFault
from ftcomm_chaos.report.run_record import Delivery
from ftcomm_chaos.runner.fault_plan import AtPosition, AtSeconds, Every, PlanEntry
from ftcomm_chaos.runner.job import LiveJob
from ftcomm_chaos.runner.output_parser import ParsedOutput
from ftcomm_chaos.runner.process_announcements import Fired

QUIESCENCE_LIMIT_S = 60.0  # a recovery that takes longer is not waited for: then faults overlap
END_OF_RUN_S = 1e6  # in a history, of what has no end


@dataclass(slots=True)
class FaultScheduler:
    """The faults of one run, and what became of them.

    Attributes:
        entries: the faults.
        seed: of all random choices.
        run: the number of this run under its seed.
        stop_after_s: faults that come again and again stop then.
        deliveries: what became of them.
    """

    entries: Sequence[PlanEntry] = ()
    seed: int = 0
    run: int = 0
    stop_after_s: float = math.inf
    deliveries: list[Delivery] = field(default_factory=list)
    _waiting: dict[str, "_AtAddress"] = field(default_factory=dict)

    async def deliver(self, job: LiveJob) -> None:
        """Deliver faults until the plan is done; cancelled when the job ends."""
        async with trio.open_nursery() as nursery:
            for entry in self.entries:
                nursery.start_soon(self._deliver_entry, entry, job)

    def hear(self, fired: Fired) -> None:
        """The library, or the tracker, has reached an address; it may be long since.

        What it has done to itself is noted at once: the run may be over, and no task go on.
        """
        waiting = self._waiting.pop(fired.address, None)
        if waiting is None:
            return
        if waiting.entry.kind.library_action:
            waiting.hit = self._note_happened(waiting.entry, fired, waiting.job)
        waiting.record = fired.record
        waiting.reached.set()

    def missed(self) -> list[PlanEntry]:
        """Entries that the plan promises and that were not delivered."""
        done = {delivery.entry for delivery in self.deliveries if not delivery.failed}
        return [entry for entry in self.entries if entry.once and entry.number not in done]

    # --- one entry ----------------------------------------------------------------------------

    async def _deliver_entry(self, entry: PlanEntry, job: LiveJob) -> None:
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
                # The library does it again where a later attempt comes to the address.
                while entry.kind.library_action and job.may_come_again:
                    await self._at_position(entry, address, job, dice)
            case _:
                assert_never(entry.at)

    async def _repeat(
        self, entry: PlanEntry, every: Every, job: LiveJob, dice: random.Random
    ) -> None:
        await job.until(_formed)
        end = trio.current_time() + self.stop_after_s
        count = 0
        while count < every.count:
            await trio.sleep(every.every_s * dice.uniform(0.5, 1.5))
            if not job.output.is_quiescent:
                with trio.move_on_after(QUIESCENCE_LIMIT_S):
                    await job.until(_is_quiescent)
                await trio.sleep(every.every_s * dice.uniform(0.0, 0.5))
            if job.output.all_closed or trio.current_time() > end:
                return
            count += await self._fire(entry, job, dice)

    async def _at_position(
        self, entry: PlanEntry, address: str, job: LiveJob, dice: random.Random
    ) -> None:
        waiting = self._waiting[address] = _AtAddress(entry, job)
        await waiting.reached.wait()
        if not entry.kind.library_action:
            await self._hit_if_there(waiting, dice)
        elif waiting.hit is not None:
            hit, delivery = waiting.hit
            for process in hit.processes:
                await process.gone()
            await self._end(entry, job, delivery)

    async def _hit_if_there(self, waiting: "_AtAddress", dice: random.Random) -> None:
        """Hit the process that has reached the address, and not another that has its place."""
        if waiting.runs_on():
            await self._fire(waiting.entry, waiting.job, dice)
        else:
            error = NotDeliveredError("the process that reached it has ended")
            self._note_failure(waiting.entry, waiting.job.now, error)

    def _note_happened(
        self, entry: PlanEntry, fired: Fired, job: LiveJob
    ) -> tuple[Hit, Delivery] | None:
        record = fired.record
        process = job.incarnation_of(record)
        if process is None:
            error = NotDeliveredError(f"process {record.pid}, which reached it, is unknown")
            self._note_failure(entry, job.time_of(record), error)
            return None
        if entry.target.kind == TRACKER:
            hit = Hit((), f"{entry.kind.name} at {fired.address}", (process,))
        else:
            assert isinstance(entry.fault, SignalFault), "the library delivers no other kind"
            hit = entry.fault.happened(process)
        if process.pid != record.pid:  # a child of it, whose end is not this process's
            hit = replace(hit, processes=())
        # It had a rank, or it could not have come there, whoever may have taken that by now.
        return hit, self._note(entry, job, hit, job.time_of(record), record.epoch, ())

    async def _fire(self, entry: PlanEntry, job: LiveJob, dice: random.Random) -> bool:
        """Deliver once; returns whether it was delivered."""
        began, epoch = job.now, job.output.epoch
        spares = [who for who in job.workers if not job.output.has_rank(who)]
        if job.output.all_closed:  # though their processes may go on: nothing is left to test
            self._note_failure(entry, began, NotDeliveredError("all ranks had closed"))
            return False
        try:
            hit = await entry.fault.fire(job, dice)
        except NotDeliveredError as error:
            self._note_failure(entry, began, error)
            return False
        lost = tuple(who for who in hit.workers if who in spares)
        await self._end(entry, job, self._note(entry, job, hit, began, epoch, lost))
        return True

    def _note_failure(self, entry: PlanEntry, at_s: float, error: NotDeliveredError) -> None:
        failed = Delivery(entry.number, entry.kind.name, at_s, (), "", failed=str(error))
        self.deliveries.append(failed)

    def _note(
        self,
        entry: PlanEntry,
        job: LiveJob,
        hit: Hit,
        at_s: float,
        epoch: int,
        spares: tuple[str, ...],
    ) -> Delivery:
        delivery = Delivery(
            entry=entry.number,
            kind=entry.kind.name,
            at_s=at_s,
            workers=hit.workers,
            what=hit.what + (f" (spare: {', '.join(spares)})" if spares else ""),
            dies=tuple(process.pid for process in hit.processes),
            spares=spares,
        )
        self.deliveries.append(delivery)
        lasts_s = END_OF_RUN_S if entry.kind.lasting and entry.for_s is None else entry.for_s
        job.record_fault(delivery, lasts_s or 0.0)
        if hit.processes and hit.workers:
            job.expect_recovery(hit.processes, epoch)
        return delivery

    async def _end(self, entry: PlanEntry, job: LiveJob, delivery: Delivery) -> None:
        if entry.for_s is not None:
            await trio.sleep(entry.for_s)
            try:
                await entry.fault.undo(job)
                delivery.until_s = job.now
            except NotDeliveredError as error:
                delivery.what += f", and could not be undone: {error}"


@dataclass(slots=True)
class _AtAddress:
    """An entry that waits until a process reaches its address.

    Attributes:
        entry: of the plan.
        job: in which it is delivered.
        reached: set when `record` has come.
        record: what the process wrote down before it went on.
        hit: what it did to itself, and the note of that.
    """

    entry: PlanEntry
    job: LiveJob
    reached: trio.Event = field(default_factory=trio.Event)
    record: FaultRecord | None = None
    hit: tuple[Hit, Delivery] | None = None

    def runs_on(self) -> bool:
        """Tell whether the process is still its worker's newest incarnation, and runs."""
        assert self.record is not None
        process = self.job.incarnation_of(self.record)
        return process is not None and self.job.process(process.who) is process


def dice_of(seed: int, run: int, entry: PlanEntry) -> random.Random:
    """The dice of one entry in one run: what one entry draws does not change another's."""
    return random.Random(f"{seed}/{run}/{entry.number}")  # noqa: S311 - faults, not secrets


def _formed(output: ParsedOutput) -> bool:
    return output.formed


def _is_quiescent(output: ParsedOutput) -> bool:
    return output.is_quiescent
