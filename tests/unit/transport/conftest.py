"""Makes `ranks_in_threads` importable whatever the import mode; and a fixture of several files."""

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Keep objects in reference cycles alive."""
    gc.disable()
    yield
    gc.enable()
