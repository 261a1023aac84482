"""Makes `ranks_of_a_host` importable whatever the import mode; and the kinds of groups."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import ranks_of_a_host as harness


@pytest.fixture(params=harness.KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """The cores of a group: compiled, in Python, or both in turn."""
    if request.param != "python":
        harness.require_compiled()
    return request.param
