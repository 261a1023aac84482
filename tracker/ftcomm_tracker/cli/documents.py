"""Documents that errors point to, as `ftcomm-tracker help TOPIC` shows them.

A wheel has them in this package's folder `help` (pyproject.toml); a checkout has them in `docs`.
"""

from pathlib import Path

DOCUMENTS = (
    "quickstart", "porting", "running", "watching", "python", "torch", "recovery", "reference",
    "chaos",
)  # fmt: skip
_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (_PACKAGE / "help", _PACKAGE.parents[1] / "docs")


def document(topic: str) -> str:
    """Return the text of one of `DOCUMENTS`; raises OSError if this installation lacks it."""
    folder = next((each for each in _FOLDERS if (each / f"{topic}.md").is_file()), _FOLDERS[0])
    return (folder / f"{topic}.md").read_text(encoding="utf-8")
