"""Runs one program of the scenarios, as one worker process.

What to run comes as JSON in ``CONFORMANCE``.  Programs live in files by theme, each with a
dictionary ``PROGRAMS`` by name.  To add a file, import it here and name it in the list.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import ftcomm
from tests.conformance import (
    edge_programs,
    kept_programs,
    kinds,
    lazy_programs,
    local_programs,
    message_programs,
    pending_programs,
    rank_result_forms,
    rank_result_programs,
    segment_programs,
    training_programs,
    view_programs,
)
from tests.conformance.recorder import Events, Recorder, digest

PROGRAMS: dict[str, Callable[[Recorder], Any]] = {
    **segment_programs.PROGRAMS,
    **edge_programs.PROGRAMS,
    **kept_programs.PROGRAMS,
    **kinds.PROGRAMS,
    **lazy_programs.PROGRAMS,
    **local_programs.PROGRAMS,
    **message_programs.PROGRAMS,
    **pending_programs.PROGRAMS,
    **rank_result_forms.PROGRAMS,
    **rank_result_programs.PROGRAMS,
    **training_programs.PROGRAMS,
    **view_programs.PROGRAMS,
}


def main() -> None:
    """Run the program that ``CONFORMANCE`` names."""
    spec = json.loads(os.environ["CONFORMANCE"])
    os.environ.update(spec.get("environ", {}))
    events = Events()
    events.write(kind="began")
    with ftcomm.init(**spec.get("init", {})) as comm:
        recorder = Recorder(comm, spec, events)
        events.write(kind="joined", rank=comm.rank, epoch=comm.epoch)
        state = PROGRAMS[spec["program"]](recorder)
        position = f"{comm.version}.{comm.seqno}"
        events.write(kind="closing", rank=comm.rank, pos=position)
    events.write(kind="end", rank=comm.rank, pos=position, sha=digest(state))
    recorder.wait_at("closed")


if __name__ == "__main__":
    main()
    sys.exit(0)
