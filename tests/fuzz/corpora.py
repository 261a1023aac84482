"""The corpus files: `python -m tests.fuzz.corpora` writes the seeds of every decoder.

`seed-*` are made from valid input and are written again when a format changes; all other files
are inputs that found something or reach far, and stay.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.fuzz.decoders import CORPORA, TABLE

SEED = "seed-"


def seed_files() -> Iterator[tuple[Path, bytes]]:
    """Every seed and where it belongs."""
    for decoder in TABLE:
        for name, raw in decoder.seeds().items():
            yield CORPORA / decoder.name / f"{SEED}{name}", raw


def write_seeds() -> None:
    """Make the folders hold just the seeds of today, beside what was found."""
    for path in CORPORA.glob(f"*/{SEED}*"):
        path.unlink()
    for path, raw in seed_files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)


if __name__ == "__main__":
    write_seeds()
