"""Each scenario many times in a row: ``python -m tests.conformance.soak --times 20``.

Prints a table of passes, stops with status 1 at the first failure and keeps its artefacts.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.bench import Bench
from tests.conformance.scenario import Scenario
from tests.conformance.scenarios import SCENARIOS


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="", help="ids or their beginnings, with commas")
    parser.add_argument("--json", action="store_true", help="one document instead of a table")
    given = parser.parse_args()
    wanted = tuple(part for part in given.only.split(",") if part)
    chosen = [s for s in SCENARIOS if not wanted or is_named(s, wanted)]
    folder = Path(tempfile.mkdtemp(prefix="ftcomm-soak-"))
    rows, failure = _soak(chosen, given.times, folder, quiet=given.json)
    if given.json:
        say(json.dumps({"rows": rows, "failure": failure, "artefacts": str(folder)}))
    if failure is not None:
        sys.stderr.write(f"{failure}\nartefacts are in {folder}\n")
        return 1
    shutil.rmtree(folder)
    return 0


def say(line: str) -> None:
    """Print a line at once: a soak runs for long."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def is_named(scenario: Scenario, wanted: Sequence[str]) -> bool:
    """Tell whether one of `wanted` is the scenario's id, or the beginning of it before a hyphen."""
    return any(scenario.id == name or scenario.id.startswith(f"{name}-") for name in wanted)


def _soak(
    chosen: list[Scenario], times: int, folder: Path, *, quiet: bool
) -> tuple[list[dict[str, object]], str | None]:
    rows: list[dict[str, object]] = []
    bench = Bench(folder)
    try:
        for scenario in chosen:
            passes, failure, began = 0, None, time.monotonic()
            while passes < times and failure is None:
                failure = _once(bench, scenario)
                passes += failure is None
            seconds = round(time.monotonic() - began, 1)
            rows.append({"scenario": scenario.id, "passes": passes, "of": times, "s": seconds})
            if not quiet:
                say(f"{scenario.id:28} {passes:3} of {times}  {seconds:6.1f} s")
            if failure is not None:
                return rows, failure
    finally:
        bench.close()
    return rows, None


def _once(bench: Bench, scenario: Scenario) -> str | None:
    """Run it; the text of its failure, None if it passed."""
    before = set(bench.folder.iterdir())
    try:
        scenario.run(bench)
    except Exception as error:  # noqa: BLE001 - whatever it was, it is the result
        return f"{scenario.id}: {type(error).__name__}: {error}"
    for made in set(bench.folder.iterdir()) - before:
        shutil.rmtree(made)  # a soak makes thousands
    return None


if __name__ == "__main__":
    sys.exit(main())
