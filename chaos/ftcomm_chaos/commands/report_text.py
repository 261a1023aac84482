"""The report of a session for a terminal, and the document that a kept folder has of it."""

from collections.abc import Iterable
from typing import Any

from ftcomm.config.plurals import counted
from ftcomm_chaos.report.attribution import percentile, phase_times
from ftcomm_chaos.report.escaping import printable
from ftcomm_chaos.report.run_record import AttemptRow, RunRecord
from ftcomm_chaos.report.verdict import RunExit
from ftcomm_chaos.runner.session import RunSession

MOST_SHOWN = 30  # faults of a run on a terminal; the page and the JSON have all
SHARES = (0.5, 0.9, 0.99, 1.0)
WORDS = {
    RunExit.PASSED: "PASSED",
    RunExit.VIOLATED: "FAILED",
    RunExit.NOTHING_TESTED: "NOTHING TESTED",
    RunExit.LACKING: "CANNOT TEST HERE",
}
MEANINGS = {
    "detect": "from the fault to the tracker's first evidence",
    "stop": "from there until the last survivor has reported",
    "replace": "from there until the last replacement has reported",
    "decide": "the decision and its sending",
    "fetch": "longest catch-up of a member",
    "link": "longest way from its plan to its next collective",
    "total": "from the first evidence to the last member's next collective",
    "recover": "from the fault to the last member's next collective",
    "resume": "from the loss of everything to the next attempt's complete group",
}


def report_text(session: RunSession) -> str:
    """The whole session for a person."""
    lines = [*outcome_lines(session, MOST_SHOWN), "", *verdict_lines(session)]
    return printable("\n".join(lines))


def outcome_lines(session: RunSession, most: int) -> list[str]:
    """Faults of each run, `most` of them, times of the recoveries, and the goodput."""
    lines = []
    for run in session.runs:
        lines += ["", f"{run.name}: {run.wall_s:.1f} s", *_faults(run, most)]
    lines += ["", *_times(session.runs)]
    goodput = session.goodput()
    if goodput is not None:
        lines.append(f"goodput {100 * goodput:.1f} % of the run without faults")
        lines += _hint_lines(session)
    return lines


def verdict_lines(session: RunSession) -> list[str]:
    """The verdict, its reasons, and what was counted."""
    delivered = sum(len(run.delivered) for run in session.runs)
    killed = sum(len(delivery.dies) for run in session.runs for delivery in run.delivered)
    runs = (
        f"{counted(len(session.runs), 'run')} with {counted(delivered, 'fault')},"
        f" {counted(killed, 'process', 'processes')} killed"
    )
    lines = [f"{WORDS[session.verdict.outcome]}: {runs}"]
    lines += [f"  {reason}" for reason in session.verdict.reasons]
    if session.verdict.outcome is RunExit.PASSED:
        what = session.request.result_name
        lines.append(f"  {what} is equal to the last bit: {session.reference.result[:64]}")
    return lines


def _hint_lines(session: RunSession) -> list[str]:
    """A remedy for a low goodput, if the script has an obvious one."""
    killed = any(delivery.dies for run in session.runs for delivery in run.delivered)
    if not killed or session.reference.checkpoints != 0:
        return []
    return [
        "  the script makes no checkpoint, so a restarted worker computes all of it again:",
        "  use `load_checkpoint` and `checkpoint` (`ftcomm-tracker help porting`)",
    ]


def _attempt_words(row: AttemptRow) -> str:
    """Describe the beginning of one attempt, and what it does again."""
    text = f"attempt {row.attempt} begins from {row.origin}"
    if row.lost_s is None or row.lost_versions is None:
        return text
    return f"{text}; {row.lost_s:.2f} s of work and {counted(row.lost_versions, 'version')} lost"


def document(session: RunSession) -> dict[str, Any]:
    """The session as one JSON object."""
    return {
        "schema": 1,
        "outcome": WORDS[session.verdict.outcome],
        "status": int(session.verdict.outcome),
        "reasons": session.verdict.reasons,
        "seed": session.request.seed,
        "plan": list(session.request.plan),
        "command": list(session.request.job.command),
        "world_size": session.request.job.world_size,
        "compared": session.request.result_name,
        "goodput": session.goodput(),
        "ms": {
            name: {f"p{100 * share:g}": percentile(values, share) for share in SHARES}
            | {"count": len(values)}
            for name, values in phase_times(session.runs).items()
            if values
        },
        "reference": session.reference.to_dict(),
        "runs": [run.to_dict() for run in session.runs],
    }


def _faults(run: RunRecord, most: int) -> list[str]:
    lines = []
    for delivery in run.deliveries[:most]:
        what = f"not delivered: {delivery.failed}" if delivery.failed else delivery.what
        cost = ""
        if delivery.recover_ms is not None:
            detect = "" if delivery.detect_ms is None else f"seen after {delivery.detect_ms:.0f}, "
            cost = f"; {detect}recovered after {delivery.recover_ms:.0f} ms"
        lines.append(f"  {delivery.at_s:8.2f} s  {what}{cost}")
    if len(run.deliveries) > most:
        lines.append(f"  and {len(run.deliveries) - most} more")
    return lines + [f"  {row.at_s:8.2f} s  {_attempt_words(row)}" for row in run.attempts[:most]]


def _times(runs: Iterable[RunRecord]) -> list[str]:
    rows = [("ms", *(f"p{100 * share:g}" for share in SHARES), "count", "")]
    for name, values in phase_times(runs).items():
        if values:
            figures = (f"{percentile(values, share):.0f}" for share in SHARES)
            rows.append((name, *figures, str(len(values)), MEANINGS[name]))
    if len(rows) == 1:
        return ["no recovery took place"]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
            + [row[-1]]
        ).rstrip()
        for row in rows
    ]
