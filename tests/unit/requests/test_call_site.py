"""Call sites: every public call is named by the line of the script that made it."""

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ftcomm

X = np.arange(6, dtype=np.float32)
COLLECTIVES: dict[str, tuple[Any, ...]] = {
    "allreduce": (X,),
    "broadcast": (X,),
    "allgather": (X,),
    "allgatherv": (X,),
    "reduce": (X,),
    "gather": (X,),
    "gatherv": (X,),
    "scatter": ([X],),
    "broadcast_object": (1,),
    "allgather_object": (1,),
    "barrier": (),
    "bucketed": ([X, X],),
}


@pytest.fixture
def comm() -> Iterator[ftcomm.Communicator]:
    with ftcomm.init("none") as communicator:
        yield communicator


@pytest.fixture
def sites(comm: ftcomm.Communicator, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the call site of each call that the engine receives."""
    found: list[str] = []
    within = comm._session.engine.within

    def noted(limit: Any, request: Any, *rest: Any) -> Any:
        found.append(request.site)
        return within(limit, request, *rest)

    monkeypatch.setattr(comm._session.engine, "within", noted)
    return found


def line_here() -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_call_site.py:{frame.f_back.f_lineno}"


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_blocking_call(comm: ftcomm.Communicator, sites: list[str], name: str) -> None:
    call = getattr(comm, name)
    call(*COLLECTIVES[name]), sites.append(line_here())
    assert sites[0] == sites[1]


@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name != "bucketed"])
def test_a_nonblocking_call(comm: ftcomm.Communicator, sites: list[str], name: str) -> None:
    call = getattr(comm, f"i{name}")
    call(*COLLECTIVES[name]).wait(), sites.append(line_here())
    assert sites[0] == sites[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: (comm.allreduce(lambda: X), line_here()),
        lambda comm: (comm.allreduce(X, algorithm="ring"), line_here()),
        lambda comm: (comm.iallreduce(lambda: X).wait(), line_here()),
        lambda comm: (comm.load_checkpoint(1), line_here()),
        lambda comm: (comm.close(), line_here()),
    ],
    ids=["input function", "options", "nonblocking input function", "load", "close"],
)
def test_other_calls(
    comm: ftcomm.Communicator,
    sites: list[str],
    call: Callable[[ftcomm.Communicator], tuple[Any, str]],
) -> None:
    _, line = call(comm)
    assert sites == [line]


def test_a_checkpoint(comm: ftcomm.Communicator, sites: list[str]) -> None:
    comm.load_checkpoint(1)
    comm.checkpoint(2), sites.append(line_here())
    assert sites[1] == sites[2]


def test_a_pushed_collective(comm: ftcomm.Communicator, sites: list[str]) -> None:
    with comm.engine() as tasks:
        tasks.allreduce(X.copy()), sites.insert(0, line_here())
    assert sites[0] == sites[1]


def test_the_end_of_a_block_is_named_by_the_with_statement(
    sites: list[str], comm: ftcomm.Communicator
) -> None:
    with comm:
        line = line_here()
    assert sites == [f"test_call_site.py:{int(line.partition(':')[2]) - 1}"]


def test_a_library_names_its_callers_line(
    comm: ftcomm.Communicator, sites: list[str], tmp_path: Path
) -> None:
    """Once by its file, once by its folder."""
    library = tmp_path / "library" / "calls.py"
    library.parent.mkdir()
    code = compile("def call(comm):\n    comm.barrier()\n", str(library), "exec")
    module: dict[str, Any] = {}
    exec(code, module)
    module["call"](comm)
    ftcomm.passes_on(str(library.parent))
    module["call"](comm), sites.append(line_here())
    assert sites[0] == "calls.py:2"
    assert sites[1] == sites[2]


def test_a_cell_of_a_notebook_is_named_by_its_number(
    comm: ftcomm.Communicator, sites: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that its kernel gives it is made of the process id and of a hash."""
    labels = {"/tmp/ipykernel_12/34.py": ("Cell", "In[3]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=labels.get))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    for file in (*labels, "/tmp/ipykernel_12/56.py"):
        exec(compile("\ncomm.barrier()", file, "exec"))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    exec(compile("comm.barrier()", "/tmp/plain.py", "exec"))
    assert sites == ["Cell In[3]:2", "56.py:2", "plain.py:1"]
