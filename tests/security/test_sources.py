"""Constructs that the source code must not contain, so that no input can reach them."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("ftcomm", "tracker/ftcomm_tracker")
RUNS_BYTES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
RUNS_TEXT = {"eval", "exec", "compile", "os.system", "os.popen", "__import__", "np.load"}
# The launcher starts what its own command line says, and `launch` this interpreter; nothing of a
# peer or a file is in it.
STARTS_PROCESSES = [
    "tracker/ftcomm_tracker/embedding/host_process.py",
    "tracker/ftcomm_tracker/launcher/processes/child_process.py",
]
# Likewise the interpreter, for a rank beside a task of Dask or an actor of Ray.
STARTS_A_RANK = ["tracker/ftcomm_tracker/embedding/rank_process.py"]
# Between `launch` and its own children, in a folder of their user, and where Dask or Ray carry the
# function of a user as they carry any; see docs/security.md.
PICKLES = "tracker/ftcomm_tracker/embedding/pickled.py"
USES_PICKLES = [
    "tracker/ftcomm_tracker/embedding/dask_gang.py",
    "tracker/ftcomm_tracker/embedding/launch.py",
    "tracker/ftcomm_tracker/embedding/outcomes.py",
    "tracker/ftcomm_tracker/embedding/ray_gang.py",
    "tracker/ftcomm_tracker/embedding/worker.py",
]


LOOKED_AT = (ast.Import, ast.ImportFrom, ast.Call)
Nodes = list[tuple[str, ast.AST]]


@pytest.fixture(scope="module")
def nodes() -> Nodes:
    return [
        (path.relative_to(ROOT).as_posix(), node)
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, LOOKED_AT)
    ]


def importers(nodes: Nodes, name: str) -> list[str]:
    return sorted({path for path, node in nodes if name in imported(node)})


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.partition(".")[0]}
    return set()


def test_no_module_imports_what_runs_bytes(nodes: Nodes) -> None:
    found = [(path, imported(node)) for path, node in nodes if imported(node) & RUNS_BYTES]
    assert [(path, names) for path, names in found if path != PICKLES] == []


def test_only_launch_reads_pickles_of_its_own_children(nodes: Nodes) -> None:
    package, _, module = PICKLES.removesuffix(".py").rpartition("/")
    package = package.removeprefix("tracker/").replace("/", ".")
    users = {path for path, node in nodes if is_import_of(node, package, module)}
    assert sorted(users) == USES_PICKLES


def is_import_of(node: ast.AST, package: str, module: str) -> bool:
    if not isinstance(node, ast.ImportFrom):
        return False
    names = {alias.name for alias in node.names}
    return node.module == f"{package}.{module}" or (node.module == package and module in names)


def test_no_module_runs_text(nodes: Nodes) -> None:
    assert [
        (path, ast.unparse(node))
        for path, node in nodes
        if isinstance(node, ast.Call) and ast.unparse(node.func) in RUNS_TEXT
    ] == []


def test_only_the_launcher_starts_processes(nodes: Nodes) -> None:
    assert importers(nodes, "subprocess") == STARTS_PROCESSES
    calls = [(path, ast.unparse(node.func)) for path, node in nodes if isinstance(node, ast.Call)]
    assert [path for path, name in calls if "create_subprocess" in name] == STARTS_A_RANK


def test_the_systems_library_is_called_for_files_futexes_processes_and_the_clock_alone(
    nodes: Nodes,
) -> None:
    assert importers(nodes, "ctypes") == [
        "ftcomm/core/python_core.py",
        "ftcomm/durable/file_calls.py",
        "ftcomm/lightgbm/network.py",  # LightGBM's own library
        "tracker/ftcomm_tracker/launcher/processes/child_process.py",
        "tracker/ftcomm_tracker/operator/machine_checks.py",
    ]


def test_msgpack_and_sqlite_have_few_doorways(nodes: Nodes) -> None:
    assert importers(nodes, "msgpack") == [
        "ftcomm/durable/packed_state.py",
        "ftcomm/protocol/msgpack_reader.py",
        "ftcomm/state/serializer.py",
    ]
    journal = [
        "tracker/ftcomm_tracker/server/journal.py",
        "tracker/ftcomm_tracker/server/journal_file.py",
    ]
    assert importers(nodes, "sqlite3") == journal


def test_every_test_that_the_security_document_names_exists() -> None:
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", text))
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert named
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []
