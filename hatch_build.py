"""Results of the build: the compiled core, and the README as an index page can show it.

python hatch_build.py    # compiles the core into the source tree; CC and CFLAGS are heeded
"""

import hashlib
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE_LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)[^)]*\)")
NOTE = "The documents that this page names are in the folder `docs` of the source distribution.\n"
CORE = Path(__file__).parent / "ftcomm" / "core"
BINARY = "_core.abi3.so"
FLAGS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


class CoreHook(BuildHookInterface[Any]):
    """Compiles the core; where that cannot be done, the package is pure Python, and complete."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Put the binary into the wheel; for an editable installation into the source tree."""
        if version == "editable":
            compile_core(CORE / BINARY)
            return
        self._folder = tempfile.TemporaryDirectory()
        binary = Path(self._folder.name) / BINARY
        if not compile_core(binary):
            system = re.sub(r"[-.]", "_", sysconfig.get_platform())
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{system}"
            build_data["force_include"][str(binary)] = f"ftcomm/core/{BINARY}"

    def finalize(self, version: str, *_: Any) -> None:
        """Remove the binary when it is packed."""
        if version != "editable":
            self._folder.cleanup()


def compile_core(binary: Path) -> str:
    """Compile the core into `binary`; returns why not, and then there is no such file."""
    why = _why_not_compiled(binary)
    if why:
        binary.unlink(missing_ok=True)  # one of another source would be worse than none
    return why


def _why_not_compiled(binary: Path) -> str:
    if sys.platform != "linux" or sys.byteorder != "little":
        return f"the core needs futex(2) and a little-endian processor, this is {sys.platform}"
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "this Python has no stable ABI"
    sources = sorted(CORE.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    unfinished = binary.with_suffix(f".{os.getpid()}")  # a process may have mapped what is there
    command = [
        *shlex.split(os.environ.get("CC") or "cc"),
        *FLAGS,
        *shlex.split(os.environ.get("CFLAGS") or ""),
        f'-DFTCOMM_SOURCE="{digest}"',
        f"-I{sysconfig.get_path('include')}",
        *("-o", str(unfinished)),
        *(str(source) for source in sources if source.suffix == ".c"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the user's compiler
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    if done.returncode:
        unfinished.unlink(missing_ok=True)
        return done.stderr or f"{command[0]} failed"
    unfinished.replace(binary)
    return ""


class ReadmeHook(MetadataHookInterface):
    """Replaces each relative link of the README by its text, and says where the documents are."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme` of the project's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        plain = RELATIVE_LINK.sub(r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": f"{plain}\n{NOTE}"}


if __name__ == "__main__":
    sys.exit(compile_core(CORE / BINARY) or 0)
