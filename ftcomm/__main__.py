"""``python -m ftcomm``: the command line, which the package of the tracker provides.

The worker library does not depend on the tracker, so the module is found by its name.
"""

import importlib
import sys

from ftcomm.errors import ConfigError

COMMAND_LINE = "ftcomm_tracker.entry"


def main() -> None:
    """Run the command ``ftcomm``; ends the process."""
    try:
        entry = importlib.import_module(COMMAND_LINE)
    except ModuleNotFoundError as missing:
        if missing.name not in (COMMAND_LINE, COMMAND_LINE.partition(".")[0]):
            raise
        error = ConfigError(
            f"the command line needs the package {missing.name}, which this Python does not find",
            remedy="install the whole of ftcomm, or put its folder `tracker` on PYTHONPATH",
        )
        sys.stderr.write(f"ftcomm: {error}\n")
        raise SystemExit(error.exit_code) from None
    entry.ftcomm()


if __name__ == "__main__":
    main()
