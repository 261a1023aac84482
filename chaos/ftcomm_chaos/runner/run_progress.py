"""Progress of a run that goes on, in words; pure."""

from ftcomm.config.plurals import counted
from ftcomm_chaos.runner.output_parser import ParsedOutput


def progress_text(seconds: float, output: ParsedOutput, *, world_size: int, delivered: int) -> str:
    """Time that the run has taken, faults and recoveries, and its activity now.

    Args:
        seconds: since the run began.
        output: what the job has said so far.
        world_size: of the job.
        delivered: number of faults that were delivered.
    """
    parts = [f"{seconds:.0f} s"]
    if delivered:
        parts.append(counted(delivered, "fault"))
    if output.recoveries:
        parts.append(counted(output.recoveries, "recovery", "recoveries"))
    return ", ".join([*parts, _activity(output, world_size)])


def _activity(output: ParsedOutput, world_size: int) -> str:
    if output.all_closed:
        return "all ranks have closed"
    if not output.formed:
        return "waiting for all workers to join"
    if output.recovering:
        return f"recovering, epoch {output.epoch}"
    if output.closed:
        return f"{len(output.closed)} of {counted(world_size, 'rank')} have closed"
    return f"running, epoch {output.epoch}"
