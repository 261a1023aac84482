"""The worker machine's states as a diagram, made from its own table of edges.

docs/design/states.md shows it.
"""

from ftcomm.recovery.states import TRANSITIONS, WorkerState

ENDS = (WorkerState.FINISHED, WorkerState.FAILED)


def state_diagram() -> str:
    """The edges of `TRANSITIONS` as a Mermaid state diagram; causes of one edge share a line."""
    causes: dict[tuple[WorkerState, WorkerState], list[str]] = {}
    for source, cause, target in TRANSITIONS:
        causes.setdefault((source, target), []).append(cause)
    edges = [
        f"    {source.value} --> {target.value}: {', '.join(several)}"
        for (source, target), several in causes.items()
    ]
    first = TRANSITIONS[0][0].value
    ends = [f"    {state.value} --> [*]" for state in ENDS]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *edges, *ends])
