"""Fills in the parts of the documents that are made from the code.

    python docs/generate.py --check     # status 1 and names, if any is stale
    python docs/generate.py --write     # mends them

A part stands between ``<!-- made from the code: NAME -->`` and ``<!-- end -->``.
"""  # noqa: INP001 - a script beside the documents, not a package

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from ftcomm import errors
from ftcomm.config import VARIABLES
from ftcomm.recovery.diagram import state_diagram
from ftcomm.settings import JobSettings
from ftcomm_chaos.checkers import rule_table
from ftcomm_chaos.live.plan import kinds_table
from ftcomm_tracker.exit_codes import error_classes, exit_code_table

FOLDER = Path(__file__).parent
PART = re.compile(
    r"(?P<head><!-- made from the code: (?P<name>\w+) -->\n).*?(?P<tail><!-- end -->)", re.DOTALL
)
# Who raises it: the error's section in ftcomm/errors.py says why it is so.
EVERY_RANK = "every rank"
THIS_PROCESS = "this process"
RAISED_BY = {
    errors.JobLostError: EVERY_RANK,
    errors.CollectiveMismatchError: EVERY_RANK,
    errors.ProcessFailedError: EVERY_RANK,
    errors.LogLimitError: EVERY_RANK,
    errors.CollectiveTimeoutError: EVERY_RANK,
    errors.RolledBackError: EVERY_RANK,
    errors.JobFinishedError: "who joins too late",
    errors.RevokedError: EVERY_RANK,
    errors.FencedError: THIS_PROCESS,
    errors.EvictedError: THIS_PROCESS,
    errors.TrackerLostError: THIS_PROCESS,
    errors.ThreadError: THIS_PROCESS,
    errors.ForkError: "the forked child",
    errors.ClosedError: THIS_PROCESS,
    errors.AuthenticationError: THIS_PROCESS,
    errors.ProtocolVersionError: THIS_PROCESS,
    errors.ProtocolError: THIS_PROCESS,
    errors.ConfigError: THIS_PROCESS,
}


def error_table() -> str:
    """Errors with what they mean, who raises them, exit status and remedy."""
    rows = []
    for kind in error_classes():
        meaning = (kind.__doc__ or "").splitlines()[0].rstrip(".")
        remedy = kind.default_remedy or "what its text says"
        raised_by = RAISED_BY[kind]
        rows.append(
            f"| `{kind.__name__}` | {meaning} | {raised_by} | {kind.exit_code} | {remedy} |"
        )
    head = ["| error | meaning | raised by | exit status | what to do |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def job_setting_table() -> str:
    """Variables of the settings that belong to the whole job."""
    rows = []
    for name, value in JobSettings().to_wire():
        variable = f"FTCOMM_{name.upper()}"
        meaning = VARIABLES[variable].removeprefix("job: ").rpartition(" (")[0]
        rows.append(f"| `{variable}` | {meaning} | {value} |")
    return "\n".join(["| variable | meaning | default |", "|---|---|---|", *rows])


def worker_setting_table() -> str:
    """Variables that belong to one process."""
    rows = [
        f"| `{name}` | {meaning} |"
        for name, meaning in VARIABLES.items()
        if not meaning.startswith("job: ")
    ]
    return "\n".join(["| variable | meaning (default) |", "|---|---|", *rows])


def _diagram() -> str:
    return f"```mermaid\n{state_diagram()}\n```"


PARTS: dict[str, Callable[[], str]] = {
    "states": _diagram,
    "errors": error_table,
    "exit_codes": exit_code_table,
    "job_settings": job_setting_table,
    "worker_settings": worker_setting_table,
    "rules": rule_table,
    "fault_kinds": kinds_table,
}


def up_to_date(text: str) -> str:
    """A document's text with each of its parts made anew."""

    def fresh(found: re.Match[str]) -> str:
        return f"{found['head']}{PARTS[found['name']]()}\n{found['tail']}"

    return PART.sub(fresh, text)


def parts_in(text: str) -> list[str]:
    """Names of the parts of a document."""
    return [found["name"] for found in PART.finditer(text)]


def main() -> int:
    """Check or mend all documents of this folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true")
    what.add_argument("--write", action="store_true")
    given = parser.parse_args()
    stale = []
    for path in sorted(FOLDER.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        fresh = up_to_date(text)
        if fresh != text:
            stale.append(path.name)
            if given.write:
                path.write_text(fresh, encoding="utf-8")
    for name in stale:
        sys.stderr.write(f"{name} {'mended' if given.write else 'is stale'}\n")
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
