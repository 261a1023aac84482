"""The README as an index page can show it: a page there has no files beside it to link to."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)[^)]*\)")
NOTE = "The documents that this page names are in the folder `docs` of the source distribution.\n"


class ReadmeHook(MetadataHookInterface):
    """Replaces each relative link of the README by its text, and says where the documents are."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme` of the project's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        plain = RELATIVE_LINK.sub(r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": f"{plain}\n{NOTE}"}
