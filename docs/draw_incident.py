"""Draws docs/incident.svg: one run of four workers, of which one is killed.

make incident
"""  # noqa: INP001 - a script beside the documents, not a package

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLAN = """[{"at": {"position": "2.40.0.0@half_sent"}, "kind": "sigkill"}]"""
SCRIPT = (
    sys.executable,
    str(ROOT / "examples" / "mushroom.py"),
    "--steps",
    "60",
    "--pause",
    "0.02",
)
BACKGROUND = '<rect width="100%" height="100%" fill="white"/>'


def main() -> int:
    """Break one job, and take the picture of it out of the report."""
    with tempfile.TemporaryDirectory() as folder:
        plan, page = Path(folder) / "plan.json", Path(folder) / "page.html"
        plan.write_text(PLAN, encoding="utf-8")
        command = [sys.executable, "-m", "ftcomm_chaos", "run", "-n", "4", "--plan", str(plan)]
        command += ["--html", str(page), "--", *SCRIPT]
        status = subprocess.run(command, check=False).returncode  # noqa: S603 - our own command
        if status:
            return status
        text = page.read_text(encoding="utf-8")
    picture = re.findall(r'<svg viewBox="[^>]* role="img".*?</svg>', text, re.DOTALL)[-1]
    head, _, body = picture.partition(">")
    head += ' xmlns="http://www.w3.org/2000/svg" font-family="sans-serif"'
    drawn = f"{head}>{BACKGROUND}{body}\n"
    (ROOT / "docs" / "incident.svg").write_text(drawn, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
