"""``python -m ftcomm_chaos.defects [NAME...]``: the gate as a command."""

import sys

from ftcomm_chaos.defects.gate import all_defects, check


def main(names: list[str]) -> int:
    """Print a table of who caught what; 0 if every defect was caught."""
    missed = 0
    for defect in all_defects():
        if names and defect.name not in names:
            continue
        finding = check(defect)
        missed += not finding.caught
        state = f"caught by {defect.layer}" if finding.caught else "SURVIVES"
        sys.stdout.write(f"{defect.name:45s} {state:20s} {finding.how}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
