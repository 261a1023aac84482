"""Names that other libraries have for what is here, for the error of a script that uses one."""

from typing import Final

# library -> its name -> what to use here; a method of the communicator unless it says otherwise
FOREIGN_NAMES: Final[dict[str, dict[str, str]]] = {
    "mpi4py": {
        "Abort": "abort",
        "Allgather": "allgather",
        "Allgatherv": "allgatherv",
        "Allreduce": "allreduce",
        "Alltoall": "alltoall",
        "Alltoallv": "alltoallv",
        "Barrier": "barrier",
        "Bcast": "broadcast",
        "Gather": "gather",
        "Gatherv": "gatherv",
        "Get_rank": "rank",
        "Get_size": "world_size",
        "Iallgather": "iallgather",
        "Iallgatherv": "iallgatherv",
        "Iallreduce": "iallreduce",
        "Ibarrier": "ibarrier",
        "Ibcast": "ibroadcast",
        "Igather": "igather",
        "Igatherv": "igatherv",
        "Iprobe": "probe, which waits",
        "Irecv": "irecv",
        "Ireduce": "ireduce",
        "Iscatter": "iscatter",
        "Isend": "isend",
        "Probe": "probe",
        "Recv": "recv(source, tag, out=buffer)",
        "Reduce": "reduce",
        "Reduce_scatter": "reduce_scatter(x, op, counts)",
        "Reduce_scatter_block": "reduce_scatter",
        "Scatter": "scatter",
        "Scatterv": "scatterv",
        "Send": "send",
        "Sendrecv": "sendrecv",
        "Ssend": "send",
        "bcast": "broadcast, or broadcast_object for other objects than arrays",
        "ibcast": "ibroadcast",
        "iprobe": "probe, which waits",
        "size": "world_size",
    },
    "torch.distributed": {
        "all_gather": "allgather",
        "all_gather_into_tensor": "allgather",
        "all_gather_object": "allgather_object",
        "all_reduce": "allreduce",
        "all_reduce_coalesced": "bucketed",
        "all_to_all": "alltoallv",
        "all_to_all_single": "alltoall",
        "batch_isend_irecv": "isend and irecv of each",
        "broadcast_object_list": "broadcast_object",
        "destroy_process_group": "close",
        "get_rank": "rank",
        "get_world_size": "world_size",
        "is_initialized": "is_usable",
        "monitored_barrier": "barrier(deadline=...)",
        "recv_object_list": "recv_object",
        "reduce_scatter_tensor": "reduce_scatter",
        "scatter_object_list": "scatter_object",
        "send_object_list": "send_object",
    },
    "Horovod": {
        "allgather_async": "iallgather",
        "allreduce_async": "iallreduce",
        "broadcast_": "broadcast(x, out=x)",
        "broadcast_async": "ibroadcast",
        "broadcast_parameters": "broadcast, or load_checkpoint, which gives all ranks one state",
        "commit": "checkpoint",
        "grouped_allreduce": "bucketed",
        "shutdown": "close",
        "synchronize": "wait of the handle",
    },
    "rabit": {
        "CheckPoint": "checkpoint",
        "LoadCheckPoint": "load_checkpoint",
        "finalize": "close",
        "version_number": "version",
    },
}
# What other libraries have as functions of the package and ftcomm has there too.
_OF_THE_PACKAGE: Final = {
    "COMM_WORLD": ("mpi4py", "comm = ftcomm.init()"),
    "init_process_group": ("torch.distributed", "comm = ftcomm.init()"),
}
# So that a package without numpy can say so; a test compares them with the communicator's own.
_METHODS: Final = frozenset(
    (
        "abort",
        "allgather",
        "allgather_object",
        "allgatherv",
        "allreduce",
        "alltoall",
        "alltoallv",
        "barrier",
        "broadcast",
        "broadcast_object",
        "bucketed",
        "checkpoint",
        "close",
        "epoch",
        "error",
        "gather",
        "gather_object",
        "gatherv",
        "iallgather",
        "iallgather_object",
        "iallgatherv",
        "iallreduce",
        "ialltoall",
        "ialltoallv",
        "ibarrier",
        "ibroadcast",
        "ibroadcast_object",
        "igather",
        "igather_object",
        "igatherv",
        "incarnation",
        "ireduce",
        "irecv",
        "irecv_object",
        "ireduce_scatter",
        "is_over",
        "is_replaying",
        "is_usable",
        "iscatter",
        "iscatter_object",
        "iscatterv",
        "isend",
        "isend_object",
        "load_checkpoint",
        "peek_checkpoint",
        "position",
        "probe",
        "rank",
        "recv",
        "recv_object",
        "reduce",
        "reduce_scatter",
        "restored_from",
        "scatter",
        "scatter_object",
        "scatterv",
        "send",
        "send_object",
        "sendrecv",
        "seqno",
        "version",
        "worker_id",
        "world_size",
    )
)


def hint_for_communicator(name: str) -> str | None:
    """Name the replacement of an attribute that a communicator lacks; None if there is no hint."""
    for library, names in FOREIGN_NAMES.items():
        if name in names:
            return f"use {names[name]}; for {library}'s names see docs/porting.md"
    return None


def hint_for_package(name: str) -> str | None:
    """The same for the package; most of what others have there is the communicator's here."""
    if name in _OF_THE_PACKAGE:
        library, here = _OF_THE_PACKAGE[name]
        return f"use {here}; for {library}'s names see docs/porting.md"
    if name in _METHODS:
        return f"it is the communicator's: comm = ftcomm.init(), then comm.{name}"
    hint = hint_for_communicator(name)
    return None if hint is None else f"comm = ftcomm.init(), and there {hint}"


def name_table() -> str:
    """All names as a Markdown table, for the documentation."""
    rows = [
        f"| {library} | `{theirs}` | {here} |"
        for library, names in FOREIGN_NAMES.items()
        for theirs, here in names.items()
    ]
    rows += [
        f"| {library} | `{theirs}` | {here} |"
        for theirs, (library, here) in _OF_THE_PACKAGE.items()
    ]
    return "\n".join(["| library | name there | in ftcomm |", "|---|---|---|", *rows])
