"""A notebook that launches functions of its own cells, and one that joins a job by itself."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tracker.serving import serve

pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
pytest.importorskip("ipykernel", reason="ipykernel, the kernel of notebooks, is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient, which runs notebooks, is missing")
jupyter_client = pytest.importorskip("jupyter_client", reason="a part of nbclient is missing")
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


@pytest.fixture(autouse=True)
def of_jupyter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of its own for Jupyter, and this import path for kernels."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))


@pytest.fixture
def cells(tmp_path: Path) -> list[Any]:
    """The cells after the last one has failed."""
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
    assert 'File "Cell In[6]", line 5, in fail\n    raise ValueError("in a cell")' in text


def test_a_kernel_that_is_shut_down_with_an_open_communicator_leaves_its_job(
    tmp_path: Path,
) -> None:
    with serve(tmp_path / "job", "-n", "1") as (tracker, ready):
        manager, client = jupyter_client.manager.start_new_kernel()
        try:
            given = f"{ready['address']!r}, token_file={ready['token_file']!r}, worker_id=0"
            cell = f"import ftcomm\ncomm = ftcomm.init({given})\ncomm.barrier()"
            reply = client.execute_interactive(cell, timeout=60)
            kernel = manager.provisioner.process
            manager.shutdown_kernel()
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
        assert (reply["content"]["status"], kernel.returncode) == ("ok", 0)
        assert tracker.stderr is not None
        left = "worker 0 left: its script ended without closing the communicator"
        assert any(left in line for line in tracker.stderr)
