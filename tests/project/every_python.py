"""Runs pytest on every Python from 3.11 on that this machine has, each in its own environment.

    python tests/project/every_python.py --list
    python tests/project/every_python.py -m "slow or not slow"      # what follows is pytest's

Interpreters are looked for on PATH and, where there is pyenv, among its versions; of each minor
version the newest that can make environments is taken.  The environments are `.venv-3.12` and so
on, made on first use and again when pyproject.toml has changed.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OLDEST = (3, 11)
LATEST_MINOR = 30  # names up to python3.30 are tried
PROBE = "import sys, ensurepip, venv; print(*sys.version_info[:3], sys.executable, sys.abiflags)"
PROBE_LIMIT_S = 60.0
Version = tuple[int, int, int]


def candidates() -> list[Path]:
    """Everything that may be an interpreter, in the order in which it is preferred."""
    names = ["python3", *(f"python3.{minor}" for minor in range(OLDEST[1], LATEST_MINOR + 1))]
    folders = [Path(folder) for folder in os.get_exec_path()]
    found = [Path(sys.executable), *(folder / name for folder in folders for name in names)]
    if shutil.which("pyenv"):
        asked = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            found += sorted(Path(asked.stdout.strip(), "versions").glob("*/bin/python3"))
    return [path for path in found if path.exists()]


def probe(interpreter: Path) -> tuple[Version, str, str] | None:
    """Version, true path and ABI flags; None if it does not run or cannot make environments."""
    try:
        asked = subprocess.run(
            [str(interpreter), "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if asked.returncode:
        return None
    major, minor, patch, executable, *flags = asked.stdout.split()
    return (int(major), int(minor), int(patch)), executable, "".join(flags)


def newest_of_each() -> dict[Version, str]:
    """The interpreters to use, by version, oldest first; says what is left out and why."""
    best: dict[tuple[int, int], tuple[Version, str]] = {}
    left_out = set()
    for answer in filter(None, map(probe, candidates())):
        version, executable, flags = answer
        if version[:2] < OLDEST:
            continue
        if "t" in flags:
            left_out.add(f"{executable}: free-threaded, which is not supported yet")
            continue
        known = best.get(version[:2])
        if known is None or version > known[0]:
            best[version[:2]] = (version, executable)
    for line in sorted(left_out):
        print(f"left out: {line}", flush=True)
    return dict(sorted(best.values()))


def environment(version: Version, executable: str) -> Path:
    """The environment's interpreter; made, or made again, if need be."""
    folder = ROOT / f".venv-{version[0]}.{version[1]}"
    stamp, wanted = folder / ".stamp", ROOT / "pyproject.toml"
    python = folder / "bin" / "python"
    if not stamp.exists() or stamp.stat().st_mtime < wanted.stat().st_mtime:
        subprocess.run([executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        install += ["--editable", f"{ROOT}[dev]"]
        subprocess.run([str(python), *install], check=True)
        stamp.touch()
    return python


def run_on(version: Version, executable: str, arguments: list[str]) -> str:
    """Run pytest once; returns in words how it went."""
    try:
        python = environment(version, executable)
    except subprocess.CalledProcessError as error:
        return f"no environment: {error}"
    done = subprocess.run([str(python), "-m", "pytest", *arguments], cwd=ROOT, check=False)
    return "passed" if done.returncode == 0 else f"pytest ended with status {done.returncode}"


def main() -> int:
    """Find, run, and sum up; 1 unless all have passed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true", help="only say what is found")
    options, arguments = parser.parse_known_args()
    found = newest_of_each()
    for version, executable in found.items():
        print(f"found: Python {'.'.join(map(str, version))}, {executable}", flush=True)
    if options.list:
        return 0
    outcomes = {}
    for version, executable in found.items():
        name = ".".join(map(str, version))
        print(f"\nPython {name}", flush=True)
        outcomes[name] = run_on(version, executable, arguments)
    print("\n" + "\n".join(f"Python {name}: {outcome}" for name, outcome in outcomes.items()))
    return int(not outcomes or any(outcome != "passed" for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
