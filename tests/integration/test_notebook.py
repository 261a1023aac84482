"""A notebook that launches functions of its own cells, run by nbclient in a real kernel."""

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
pytest.importorskip("ipykernel", reason="ipykernel, the kernel of notebooks, is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient, which runs notebooks, is missing")
nbformat = pytest.importorskip("nbformat", reason="nbformat, a part of nbclient, is missing")

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("default"),  # those of the notebook's own packages
]

CELLS = (
    """
import os, signal
from pathlib import Path
import numpy as np
import ftcomm

RATE = 0.5
class Model:
    def __init__(self, weights):
        self.weights = weights
""",
    """
def train(steps, mark=None):
    with ftcomm.init() as comm:
        version, weights = comm.load_checkpoint(default=np.zeros(8))
        for step in range(version, steps):
            if mark and step == 4 and comm.rank == 1 and not Path(mark).exists():
                Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            weights = weights + RATE * comm.allreduce(np.sin(weights + comm.rank) + step)
            comm.checkpoint(weights)
        print("trained by", comm.rank)
    return Model(weights)
""",
    "clean = ftcomm.launch(train, 2, (8,))",
    "killed = ftcomm.launch(train, 2, (8, 'died'))",
    """
models = clean + killed
print(all(type(model) is Model for model in models), Path("died").exists())
print(len({model.weights.tobytes() for model in models}))
""",
    """
def fail():
    with ftcomm.init() as comm:
        comm.barrier()
        if comm.rank == 1:
            raise ValueError("in a cell")
        comm.barrier()
ftcomm.launch(fail, 2)
""",
)


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The cells after the last one has failed."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    sources = [nbformat.v4.new_code_cell(source.strip()) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=sources)
    client = nbclient.NotebookClient(
        notebook, timeout=90, resources={"metadata": {"path": str(tmp_path)}}
    )
    with pytest.raises(nbclient.exceptions.CellExecutionError):
        client.execute()
    return list(notebook.cells)


def shown(cell: Any, name: str) -> str:
    return "".join(part.text for part in cell.outputs if part.get("name") == name)


def test_a_notebook_launches_what_its_cells_define(cells: list[Any]) -> None:
    clean, killed, models, failed = cells[2:]
    assert sorted(shown(clean, "stdout").splitlines()) == ["[0] trained by 0", "[1] trained by 1"]
    assert "worker 1 killed (SIGKILL) at step " in shown(killed, "stderr")
    assert shown(models, "stdout") == "True True\n1\n"
    (error,) = [part for part in failed.outputs if part.output_type == "error"]
    assert (error.ename, error.evalue.startswith("in a cell")) == ("ValueError", True)
    text = "\n".join(error.traceback)
    assert "in rank 1 of 2 (worker 1):" in text
    assert '    raise ValueError("in a cell")' in text
