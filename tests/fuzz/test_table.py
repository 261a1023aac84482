"""The table of decoders is whole: nobody adds one and forgets to feed it."""

import ast
import re
from pathlib import Path

from tests.fuzz.decoders import CORPORA, TABLE

ROOT = Path(__file__).parents[2]
PACKAGES = ("ftcomm", "tracker/ftcomm_tracker", "chaos/ftcomm_chaos")
# What the names of functions begin or end with that turn foreign bytes or text into values.
DECODES = re.compile(r"(decode|parse|unpack|from_|read_|receive_message)\w*|feed|\w+_from_wire")
NO_DECODERS = {
    "ftcomm.nonblocking.buckets.Bucket.unpack": "takes apart an array of the call itself",
    "ftcomm.diagnostics.fault_record.FaultRecord.parse": "processes of the run itself wrote it",
    "ftcomm.control.messages.intake.Intake.read_until": "`messages` takes the same bytes",
    "ftcomm.control.messages.intake.Intake.read_for": "likewise",
    "ftcomm.config.memory_limits.parse_limit": "the kernel wrote it",
    "ftcomm.durable.container.OpenContainer.read_into": "`verify` takes the same bytes",
    "ftcomm.durable.directory_store.DirectoryStore.read_into": "copies bytes and reads nothing",
    "ftcomm.durable.file_calls.FileCalls.read_into": "likewise",
    "ftcomm.durable.file_calls.SystemFiles.read_into": "likewise",
    "ftcomm.durable.object_store.ObjectStore.read_into": "likewise",
    "ftcomm.durable.store.Store.read_into": "likewise",
    "ftcomm.execution.executor.Executor.read_ahead": "hands a header's bytes on to its decoder",
    "ftcomm.memory.pool.LoggedResult.read_only": "takes what the log holds, and reads nothing",
    "ftcomm_chaos.runner.job.LiveJob.read_notes": "takes what `parse_note` made",
    "ftcomm_chaos.runner.process_announcements.parse_note": "processes of the run itself wrote it",
    "ftcomm_chaos.runner.job.read_store": "`chain-record` takes the same bytes",
    "ftcomm_chaos.sim.network.wire_data.FrameReader.feed": "reads what the simulator itself wrote",
    "ftcomm_chaos.sim.network.wire_fetch.ItemReader.feed": "likewise",
    "ftcomm_tracker.embedding.launch_folder.LaunchFolder.read_call": "the launch itself wrote it",
    "ftcomm_tracker.embedding.launch_folder.LaunchFolder.read_end": "its own host process wrote it",
    "ftcomm_tracker.embedding.launch_folder.LaunchFolder.read_options": "likewise",
    "ftcomm.config.process_identity.read_proc_stat": "the kernel wrote it",
}


def public_decoders() -> set[str]:
    """Dotted names of all functions whose names say that they decode."""
    return {name for name in functions() if DECODES.fullmatch(name.rpartition(".")[2])}


def functions() -> set[str]:
    return {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in names_in(path, (ROOT / package).parent)
    }


def names_in(path: Path, folder: Path) -> list[str]:
    """Functions of a module and methods of its classes, but private ones."""
    parts = path.relative_to(folder).with_suffix("").parts
    module = ".".join(part for part in parts if part != "__init__")
    names = []
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else []
        holder = f"{module}.{node.name}" if isinstance(node, ast.ClassDef) else module
        names += [f"{holder}.{each.name}" for each in [node, *inside] if is_function(each)]
    return [name for name in names if not re.search(r"\._", name)]


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def test_every_decoder_is_in_the_table() -> None:
    covered = {name for row in TABLE for name in row.covers}
    forgotten = public_decoders() - covered - set(NO_DECODERS)
    assert not forgotten, "give them a row in tests/fuzz/decoders.py and seeds in seeds.py"


def test_what_the_table_covers_exists() -> None:
    assert {name for row in TABLE for name in row.covers} - functions() == set()


def test_every_decoder_has_a_name_and_a_folder_of_its_own() -> None:
    names = [row.name for row in TABLE]
    assert sorted(names) == sorted({path.name for path in CORPORA.iterdir()})
