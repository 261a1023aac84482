"""The report of a session as one page of HTML that needs nothing else: no script, no network.

Everything that comes from a plan, a script or a log is escaped.
"""

import sys
from collections.abc import Sequence

from ftcomm.config.plurals import counted
from ftcomm_chaos.commands.report_text import WORDS, outcome_lines, verdict_lines
from ftcomm_chaos.report.escaping import escape
from ftcomm_chaos.report.run_record import RunRecord
from ftcomm_chaos.report.timeline_svg import LEGEND, timeline
from ftcomm_chaos.runner.session import RunSession

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1100px;padding:0 1em}
h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}
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
    """The whole page: the verdict, a timeline of each run, and the text of the report."""
    word = WORDS[session.verdict.outcome]
    colour = word if word in ("PASSED", "FAILED") else "other"
    command = " ".join(session.request.job.command)
    about = f"{counted(session.request.job.world_size, 'worker')}, seed {session.request.seed}"
    all_runs = (session.reference, *session.runs)
    length_s = max(run.wall_s for run in all_runs)
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width"/>',
        "<title>ftcomm-chaos report</title>",
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>ftcomm-chaos: <span class="{colour}">{escape(word)}</span></h1>',
        f"<p><code>{escape(command)}</code>, {about}</p>",
        _verbatim(verdict_lines(session)),
        *_legend(all_runs),
    ]
    for run in all_runs:
        parts += _run(run, session.request.job.world_size, length_s)
    parts += [_verbatim(outcome_lines(session, sys.maxsize)), "</body></html>"]
    return "\n".join(parts) + "\n"


def _verbatim(lines: Sequence[str]) -> str:
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


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
    if run.status != 0:
        parts.append(_verbatim(run.tail))
    return parts
