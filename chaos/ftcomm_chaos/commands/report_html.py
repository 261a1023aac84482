"""The report of a session as one page of HTML that needs nothing else: no script, no network.

Everything that comes from a plan, a script or a log is escaped.
"""

from collections.abc import Sequence

from ftcomm.config.plurals import counted
from ftcomm_chaos.commands.report_text import (
    MEANINGS,
    SHARES,
    WORDS,
    attempt_words,
    fault_words,
    hint_lines,
    verdict_lines,
)
from ftcomm_chaos.report.attribution import percentile, phase_times
from ftcomm_chaos.report.escaping import escape
from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.report.timeline_svg import LEGEND, timeline
from ftcomm_chaos.runner.session import RunSession

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:right;
border-bottom:1px solid #8884}
td:last-child,th:last-child,td:first-child,th:first-child{text-align:left}
.PASSED{color:#0a6b2d}.FAILED{color:#a4161a}.other{color:#8a5a00}
.wide{overflow-x:auto}
.wide svg{width:100%;min-width:700px;height:auto;border:1px solid #8884;fill:currentColor}
ul.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:.2em 1.5em}
.legend svg{width:1em;height:1em;vertical-align:-.1em;margin-right:.4em}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8882;padding:.8em}
@media (prefers-color-scheme:dark){
.PASSED{color:#5fd08a}.FAILED{color:#ff8a8f}.other{color:#f2c14e}}
"""


def report_page(session: RunSession) -> str:
    """The whole page."""
    word = WORDS[session.verdict.outcome]
    colour = word if word in ("PASSED", "FAILED") else "other"
    command = " ".join(session.request.job.command)
    verdict = "\n".join(verdict_lines(session))
    goodput = session.goodput()
    about = f"{counted(session.request.job.world_size, 'worker')}, seed {session.request.seed}"
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width"/>',
        "<title>ftcomm-chaos report</title>",
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>ftcomm-chaos: <span class="{colour}">{escape(word)}</span></h1>',
        f"<p><code>{escape(command)}</code>, {about}</p>",
        f"<pre>{escape(verdict)}</pre>",
        *_times(session.runs),
    ]
    if goodput is not None:
        parts.append(f"<p>Goodput: {100 * goodput:.1f} % of the run without faults.</p>")
        parts += [f"<p>{escape(line.strip())}</p>" for line in hint_lines(session)]
    all_runs = (session.reference, *session.runs)
    parts += _legend(all_runs)
    length_s = max(run.wall_s for run in all_runs)
    for run in all_runs:
        parts += _run(run, session.request.job.world_size, length_s)
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _times(runs: Sequence[RunRecord]) -> list[str]:
    times = {name: values for name, values in phase_times(runs).items() if values}
    if not times:
        return ["<p>No recovery took place.</p>"]
    head = "".join(f"<th>p{100 * share:g}</th>" for share in SHARES)
    rows = [f"<tr><th>ms</th>{head}<th>count</th><th></th></tr>"]
    for name, values in times.items():
        figures = "".join(f"<td>{percentile(values, share):.0f}</td>" for share in SHARES)
        meaning = f"<td>{len(values)}</td><td>{escape(MEANINGS[name])}</td>"
        rows.append(f"<tr><td>{escape(name)}</td>{figures}{meaning}</tr>")
    return ['<div class="wide"><table>', *rows, "</table></div>"]


def _legend(runs: Sequence[RunRecord]) -> list[str]:
    again = any(run.attempts for run in runs)
    items = [
        f'<li><svg viewBox="0 0 10 10"><rect width="10" height="10" fill="{color}"/></svg>'
        f"{escape(meaning)}</li>"
        for color, meaning in (LEGEND if again else LEGEND[:-1])
    ]
    return ['<ul class="legend">', *items, "</ul>"]


def _run(run: RunRecord, world_size: int, length_s: float) -> list[str]:
    counts = (
        f"{counted(len(run.delivered), 'fault')} delivered,"
        f" {counted(len(run.incidents), 'recovery', 'recoveries')}"
    )
    parts = [
        f"<h2>{escape(run.name)}</h2>",
        f"<p>{run.wall_s:.1f} s, {counts}; result <code>{escape(run.result or 'none')}</code></p>",
        f'<div class="wide">{timeline(run, world_size, length_s)}</div>',
    ]
    if run.deliveries or run.attempts:
        parts.append('<div class="wide"><table><tr><th>s</th><th>fault or attempt</th></tr>')
        parts += [
            f"<tr><td>{delivery.at_s:.2f}</td><td>{escape(fault_words(delivery))}</td></tr>"
            for delivery in run.deliveries
        ]
        parts += [
            f"<tr><td>{row.at_s:.2f}</td><td>{escape(attempt_words(row))}</td></tr>"
            for row in run.attempts
        ]
        parts.append("</table></div>")
    if run.status != 0:
        parts.append(f"<pre>{escape(chr(10).join(run.tail))}</pre>")
    return parts
