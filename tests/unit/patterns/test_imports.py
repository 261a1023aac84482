"""The patterns are imported by who asks for them."""

import subprocess
import sys

from tests.conformance.plans import ROOT, worker_environment

PROGRAM = """
import sys, ftcomm
used = [getattr(ftcomm, name) for name in ftcomm.__all__]
with ftcomm.init("none") as comm:
    comm.load_checkpoint()
    comm.bucketed([1.0])
print(sorted(name for name in sys.modules if name.startswith("ftcomm.patterns")))
import ftcomm.patterns
print(sorted(name for name in sys.modules if "torch" in name))
"""


def test_import_ftcomm_imports_no_pattern_and_they_import_no_framework() -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=worker_environment(), cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.splitlines() == ["[]", "[]"]
