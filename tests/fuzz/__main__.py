"""Look for input that a decoder does not survive: `python -m tests.fuzz --seconds 60`.

With atheris the search is guided by coverage; without it, mutations of the corpora are tried.
"""

import argparse
import contextlib
import importlib.util
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.decoders import CORPORA, TABLE, Decoder
from tests.fuzz.mutations import mutations

INPUT_S = 20  # one input on a busy machine takes milliseconds
RSS_MIB = 1024  # numpy, the coverage's tables and the inputs that reach far take 200
MISSING = (
    "atheris is not installed (it has no wheel for every system and Python): trying mutations of"
    " the corpora, which no coverage guides. To install it: pip install 'ftcomm[fuzz]'"
)


def main() -> int:
    """Fuzz the decoders that the command line names, or all; 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each decoder")
    parser.add_argument("--only", action="append", choices=[row.name for row in TABLE])
    parser.add_argument(
        "--keep", action="store_true", help="add inputs that reach farther to the corpora"
    )
    given_ = parser.parse_args()
    guided = importlib.util.find_spec("atheris") is not None
    if not guided:
        sys.stdout.write(f"{MISSING}\n")
    rows = [row for row in TABLE if given_.only is None or row.name in given_.only]
    search = _guided if guided else _unguided
    found = [row.name for row in rows if not search(row, given_.seconds, keep=given_.keep)]
    sys.stdout.write(f"{len(rows)} decoders, found something in: {', '.join(found) or 'none'}\n")
    return 1 if found else 0


def _guided(decoder: Decoder, seconds: int, *, keep: bool) -> bool:
    """Run the fuzzer in its own process; what it found is in the files that it names."""
    finds = Path(tempfile.mkdtemp(prefix=f"fuzz-{decoder.name}-"))
    reached = finds / "reached"
    reached.mkdir()
    corpus = CORPORA / decoder.name
    arguments = [str(reached), str(corpus), f"-max_total_time={seconds}", f"-timeout={INPUT_S}"]
    arguments += [f"-rss_limit_mb={RSS_MIB}", f"-artifact_prefix={finds}/", "-verbosity=0"]
    program = _program(decoder, finds / "target")
    ended = _fuzz(program, [*arguments, "-print_final_stats=1"])
    tried = [line for line in ended.stderr.splitlines() if "number_of_executed_units" in line]
    inputs = tried[0].split()[-1] if tried else "no"
    left = len(list(reached.iterdir()))
    sys.stdout.write(f"{decoder.name}: {inputs} inputs, {left} of them reached new code\n")
    if ended.returncode:
        tail = "\n".join(ended.stdout.splitlines()[-30:] + ended.stderr.splitlines()[-12:])
        sys.stdout.write(f"{tail}\n{decoder.name}: FOUND, the input is in {finds}\n")
    elif keep:
        _fuzz(program, ["-merge=1", "-verbosity=0", str(corpus), str(reached)])
    return not ended.returncode


def _program(decoder: Decoder, path: Path) -> Path:
    """One decoder's fuzzer as a program of its own, as libFuzzer wants to start it again."""
    python = shlex.quote(sys.executable)
    words = f"{python} -m tests.fuzz.target {decoder.name} {shlex.quote(str(path))}"
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    path.chmod(0o700)
    return path


def _fuzz(program: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _unguided(decoder: Decoder, seconds: int, *, keep: bool) -> bool:
    """Try mutations; hypothesis makes what it finds small and prints it."""
    until, tried = time.monotonic() + seconds, 0

    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(mutations(set(decoder.files().values()), decoder.limit))
    def feed(raw: bytes) -> None:
        nonlocal tried
        tried += 1
        with contextlib.suppress(*decoder.allowed):
            decoder.feed(raw)

    try:
        while time.monotonic() < until:
            feed()
    except Exception as error:  # noqa: BLE001 - whatever escapes a decoder is a finding
        notes = "\n".join(getattr(error, "__notes__", []))
        sys.stdout.write(f"{decoder.name}: FOUND {error!r}\n{notes}\n")
        return False
    sys.stdout.write(f"{decoder.name}: {tried} inputs\n")
    return True


if __name__ == "__main__":
    sys.exit(main())
