"""Fills in the parts of the documents that are made from the code.

    python docs/generate.py --check     # status 1 and names, if any is stale
    python docs/generate.py --write     # repairs them

A part stands between ``<!-- made from the code: NAME -->`` and ``<!-- end -->``.
"""  # noqa: INP001 - a script beside the documents, not a package

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))  # scripts, not a package

import _report
import _selection

from ftcomm import errors
from ftcomm.collectives.schedules.binomial_tree import binomial_broadcast
from ftcomm.collectives.schedules.direct import direct_allreduce
from ftcomm.collectives.schedules.pairwise_exchange import pairwise_exchange_v
from ftcomm.collectives.schedules.pipelined_chain import SEGMENT_BYTES, chain_broadcast
from ftcomm.collectives.schedules.recursive_doubling import doubling_allreduce
from ftcomm.collectives.schedules.reduce_scatter import ring_reduce_scatter
from ftcomm.collectives.schedules.ring import ring_allreduce
from ftcomm.collectives.schedules.rooted import direct_gather, direct_scatter, reduce_to_root
from ftcomm.collectives.schedules.schedule import Schedule, block_bounds
from ftcomm.config.environment import WORKER_VARIABLES
from ftcomm.config.job_settings import SETTINGS
from ftcomm.config.state_table import StateTable
from ftcomm.protocol.codec import SCHEMAS
from ftcomm.protocol.schema import Bool, Bytes, Field, Int, Many, Maybe, Pair, Record, Text
from ftcomm.recovery.states import WORKER_STATES
from ftcomm_chaos.checkers import rule_table
from ftcomm_chaos.runner.fault_plan import kinds_table
from ftcomm_tracker.cli.exit_codes import error_classes, exit_code_table
from ftcomm_tracker.core.job_states import JOB_STATES
from ftcomm_tracker.core.standby.watch import PHASES

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
    errors.RolledBackError: EVERY_RANK,
    errors.RankLostError: EVERY_RANK,
    errors.ScriptFailedError: EVERY_RANK,
    errors.LogLimitError: EVERY_RANK,
    errors.CollectiveTimeoutError: EVERY_RANK,
    errors.StateChangedError: EVERY_RANK,
    errors.JobFinishedError: "who joins too late",
    errors.JobStoppedError: EVERY_RANK,
    errors.FencedError: THIS_PROCESS,
    errors.EvictedError: THIS_PROCESS,
    errors.TrackerLostError: THIS_PROCESS,
    errors.ThreadError: THIS_PROCESS,
    errors.ForkError: "the forked child",
    errors.ClosedError: THIS_PROCESS,
    errors.ThreadLimitError: THIS_PROCESS,
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
    """Variables and options of the settings that belong to the whole job."""
    rows = [
        f"| `{setting.variable}` | `{setting.option}` | {setting.kind.meaning} |"
        f" {setting.kind.values} | {setting.default_text} |"
        for setting in SETTINGS.values()
    ]
    head = ["| variable | option | meaning | values | default |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows])


def worker_setting_table() -> str:
    """Variables that belong to one process."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in WORKER_VARIABLES.items()]
    return "\n".join(["| variable | meaning (default) |", "|---|---|", *rows])


def describe(field: Field) -> str:
    """One field kind in a few words."""
    match field:
        case Int(lo=0, hi=4294967295):
            return "u32"
        case Int(lo=lo, hi=hi):
            return f"{lo}..{hi}"
        case Bool():
            return "bool"
        case Text(limit=limit, cut=cut):
            return f"text ≤ {limit} B" + (", cut" if cut else "")
        case Bytes(limit=limit):
            return f"bytes ≤ {limit}"
        case Many(item=item, limit=limit):
            return f"≤ {limit} of ({describe(item)})"
        case Pair(item=item):
            return f"pair of {describe(item)}"
        case Maybe(item=item):
            return f"{describe(item)} or nil"
        case Record(name=name):
            return name
    raise AssertionError(f"undescribed field kind {field!r}")


def message_table() -> str:
    """Every control message: code, name, fields in order."""
    rows = [f"| {code} | `{record.name}` | {_fields(record)} |" for code, record in SCHEMAS.items()]
    return "\n".join(["| code | control message | fields |", "|---|---|---|", *rows])


def record_table() -> str:
    """Every record in a field of a control message."""
    found: dict[str, Record] = {}
    for record in SCHEMAS.values():
        _collect(record, found)
    rows = [f"| `{name}` | {_fields(found[name])} |" for name in sorted(found)]
    return "\n".join(["| record | fields |", "|---|---|", *rows])


def _fields(record: Record) -> str:
    return ", ".join(f"`{name}` {describe(kind)}" for name, kind in record.fields.items()) or "none"


def _collect(field: Field, found: dict[str, Record]) -> None:
    """Add the records inside `field`, at any depth."""
    match field:
        case Record(fields=fields):
            for kind in fields.values():
                if isinstance(kind, Record):
                    found[kind.name] = kind
                _collect(kind, found)
        case Many(item=item) | Maybe(item=item):
            if isinstance(item, Record):
                found[item.name] = item
            _collect(item, found)


def state_diagram(table: StateTable[Any]) -> str:
    """The edges of `table` as a Mermaid state diagram; causes of one edge share a line."""
    causes: dict[tuple[str, str], list[str]] = {}
    for source, cause, target in table.edges:
        causes.setdefault((source.value, target.value), []).append(cause)
    edges = [
        f"    {source} --> {target}: {', '.join(several)}"
        for (source, target), several in causes.items()
    ]
    left = {source for source, target in causes if source != target}
    ends = sorted({f"    {target} --> [*]" for _, target in causes if target not in left})
    first = table.edges[0][0].value
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first}", *edges, *ends])


def diagram(table: StateTable[Any]) -> Callable[[], str]:
    """A function that draws `table` for a document."""
    return lambda: f"```mermaid\n{state_diagram(table)}\n```"


COUNT, ITEMSIZE = 720_720, 4  # elements; whole parts for 2 to 16 ranks
SEGMENTS = 16  # of the chain's broadcast in the table


def _costs(schedules: list[Schedule], count: int) -> str:
    """Steps, bytes that the busiest rank sends, bytes on the wire; in units of the array."""
    sent = [sum(step.send_hi - step.send_lo for step in each.all_steps) for each in schedules]
    steps = len({step.tag for each in schedules for step in each.all_steps})
    return f"{steps} · {max(sent) / count:.2f} · {sum(sent) / count:.2f}"


def algorithm_cost_table() -> str:
    """Count the cost of each algorithm in its schedules."""
    allreduces = (
        lambda n, rank, count: direct_allreduce(n, rank, count, ITEMSIZE),
        ring_allreduce,
        doubling_allreduce,
    )
    long = SEGMENTS * SEGMENT_BYTES
    chain_name = f"chain of {SEGMENTS} segments"
    names = ("ranks", "direct", "ring", "recursive_doubling", "tree", chain_name)
    rows = ["| " + " | ".join(names) + " |", "|---|---|---|---|---|---|"]
    for n in range(2, 17):
        groups = [[build(n, rank, COUNT) for rank in range(n)] for build in allreduces]
        groups.append([binomial_broadcast(n, rank, COUNT, 0) for rank in range(n)])
        cells = [_costs(group, COUNT) for group in groups]
        chain = [chain_broadcast(n, rank, long, 0, 1) for rank in range(n)]
        rows.append(" | ".join([f"| {n}", *cells, _costs(chain, long)]) + " |")
    return "\n".join(rows)


def contributed_cost_table() -> str:
    """Count the cost of the schedules that give each rank a result of its own; equal blocks."""
    names = ("ranks", "ring", "pairwise_exchange_v", "gather", "scatter", "reduce")
    rows = ["| " + " | ".join(names) + " |", "|---|---|---|---|---|---|"]
    for n in range(2, 17):
        of_ranks = [_contributed(n, rank) for rank in range(n)]
        groups = list(zip(*of_ranks, strict=True))
        cells = [_costs(list(group), COUNT) for group in groups]
        rows.append(" | ".join([f"| {n}", *cells]) + " |")
    return "\n".join(rows)


def _contributed(n: int, rank: int) -> list[Schedule]:
    bounds, blocks = block_bounds(COUNT, n), (COUNT // n,) * n
    return [
        ring_reduce_scatter(n, rank, bounds),
        pairwise_exchange_v(n, rank, blocks, blocks),
        direct_gather(n, rank, blocks, 0),
        direct_scatter(n, rank, blocks, 0),
        reduce_to_root(n, rank, COUNT, 0),
    ]


RESULTS = FOLDER.parent / "benchmarks" / "results"
NOT_MEASURED = "Not measured yet: `make bench`."
Say = Callable[[list[dict[str, Any]]], str]


def figures(name: str, say: Say) -> Callable[[], str]:
    """The table of what a benchmark found last."""

    def made() -> str:
        lines = _results(name)
        return say(lines) if lines else NOT_MEASURED

    return made


def papers_figures(lines: list[dict[str, Any]]) -> str:
    """The tables of `papers.py`, and its plot."""
    plot = "![Speed-ups by the model, and the published one](../benchmarks/results/papers.svg)"
    return f"{_report.papers_table(lines)}\n\n{plot}"


def allreduce_plots() -> str:
    """Images of what `compare.py` found last."""
    plots = sorted(RESULTS.glob("allreduce-*.svg"))
    images = [f"![{plot.stem}](../../benchmarks/results/{plot.name})" for plot in plots]
    return "\n\n".join(images) or NOT_MEASURED


def headline() -> str:
    """The README's table of figures."""
    lines = _results("compare")
    faults = _results("recovery")
    return _selection.headline_table(lines, faults) if lines and faults else NOT_MEASURED


def incident_numbers() -> str:
    """The README's three numbers: of one incident, and of a recorded trace."""
    times = {line["fault"]: line for line in _results("recovery") if line.get("phase") == "total"}
    spare, restart = times["SIGKILL with a spare"], times["SIGKILL and restart"]
    return _report.table(
        ["a killed worker, with a spare", "restarted", "28 lost in a recorded spot trace"],
        [[
            f"**{spare['p50']:.0f} ms**",
            f"**{restart['p50']:.0f} ms**",
            "[**92.1 %** goodput](docs/chaos.md#machines-that-come-and-go)",
        ]],
    )  # fmt: skip


def _results(name: str) -> list[dict[str, Any]]:
    path = RESULTS / f"{name}.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


PARTS: dict[str, Callable[[], str]] = {
    "worker_states": diagram(WORKER_STATES),
    "job_states": diagram(JOB_STATES),
    "standby_phases": diagram(PHASES),
    "control_messages": message_table,
    "records": record_table,
    "errors": error_table,
    "exit_codes": exit_code_table,
    "algorithm_costs": algorithm_cost_table,
    "contributed_costs": contributed_cost_table,
    "job_settings": job_setting_table,
    "worker_settings": worker_setting_table,
    "rules": rule_table,
    "fault_kinds": kinds_table,
    "allreduce_plots": allreduce_plots,
    "figures_compare": figures("compare", _report.calls_table),
    "figures_hidden": figures("hidden", _report.hidden_table),
    "figures_result_memory": figures("result_memory", _report.result_memory_table),
    "figures_patterns": figures("patterns", _report.patterns_table),
    "figures_papers": figures("papers", papers_figures),
    "figures_rank_results": figures("rank_results", _report.calls_table),
    "figures_hierarchy": figures("hierarchy", _report.hierarchy_table),
    "figures_streams": figures("streams", _report.streams_table),
    "figures_between_hosts": figures("between_hosts", _report.between_hosts_table),
    "figures_floor": figures("floor", _report.floor_table),
    "figures_training": figures("training", _report.training_table),
    "figures_alpha_beta": figures("alpha_beta", _report.alpha_beta_table),
    "figures_tracker_scale": figures("tracker_scale", _report.tracker_table),
    "headline": headline,
    "incident_numbers": incident_numbers,
    "recoveries": figures("recovery", _selection.recoveries_table),
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
    """Check or repair all documents of this folder, and the README."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--check", action="store_true")
    what.add_argument("--write", action="store_true")
    given = parser.parse_args()
    stale = []
    for path in [*sorted(FOLDER.rglob("*.md")), FOLDER.parent / "README.md"]:
        text = path.read_text(encoding="utf-8")
        fresh = up_to_date(text)
        if fresh != text:
            stale.append(path.name)
            if given.write:
                path.write_text(fresh, encoding="utf-8")
    for name in stale:
        sys.stderr.write(f"{name} {'rewritten' if given.write else 'is stale'}\n")
    return 1 if stale and given.check else 0


if __name__ == "__main__":
    sys.exit(main())
