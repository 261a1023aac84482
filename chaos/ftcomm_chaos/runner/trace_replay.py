"""Replays a trace of machines on a running job."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from ftcomm_chaos.faults.fault import NotDeliveredError
from ftcomm_chaos.report.run_record import Delivery
from ftcomm_chaos.runner.served_job import ServedJob
from ftcomm_chaos.runner.spot_trace import Lose, NodeAssignments, NodeEvent, Start

NODE_LOST = "node_lost"


@dataclass(slots=True)
class Replay:
    """One replay, and what became of each node that went.

    The trace's clock stands still while the job forms for the first time, once there are nodes
    enough: what goes then is part of a job, not of its start.

    Attributes:
        events: of the trace.
        speed: trace seconds in one second.
    """

    events: Sequence[NodeEvent]
    speed: float
    deliveries: list[Delivery] = field(default_factory=list)

    async def populate(self, job: ServedJob) -> None:
        """Start and lose workers as the trace says; then fill all places, so that the job ends."""
        await job.serving.wait()
        began = trio.current_time()
        places = NodeAssignments(job.workers)
        for event in self.events:
            if not event.comes and places.full and job.formed_at is None:
                forming = trio.current_time()
                await job.until(lambda output: output.formed)
                began += trio.current_time() - forming
            await trio.sleep_until(began + event.at_s / self.speed)
            for move in places.handle(event):
                await self._do(move, job)
        for move in places.fill_up():
            await self._do(move, job)

    async def _do(self, move: Start | Lose, job: ServedJob) -> None:
        if isinstance(move, Start):
            job.start_worker(move.worker)
            return
        delivery = Delivery(
            entry=len(self.deliveries) + 1,
            kind=NODE_LOST,
            at_s=job.now,
            workers=(move.worker,),
            what=f"{move.node} goes, and worker {move.worker} with it",
        )
        try:
            process = await job.lose_worker(move.worker)
            delivery.dies = (process.pid,)
            job.record_fault(delivery, 0.0)
        except NotDeliveredError as error:
            delivery.failed = str(error)
        self.deliveries.append(delivery)
