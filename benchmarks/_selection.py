"""Selected rows and columns of the results, for the README and docs/performance.md."""

from typing import Any

from _peers import OURS, SHM, TCP
from _report import table

Line = dict[str, Any]

HEADLINES = {"1 KiB": 1024, "100 MB": 100_000_000}
RECOVERIES = {
    ("SIGKILL and restart", "total"): "SIGKILL, restart by `ftcomm-tracker run`",
    ("SIGKILL and restart", "replace"): "of these, until the restarted worker has reported",
    ("SIGKILL with a spare", "total"): "SIGKILL with a spare",
    ("SIGKILL with a spare, 100 MB", "total"): "SIGKILL with a spare, state of 100 MB",
    ("link reset", "total"): "link reset",
    (
        "SIGSTOP past the limit",
        "total",
    ): "SIGSTOP for good, until a restarted worker has replaced it",
    ("SIGSTOP past the limit", "detect"): "of these, until the silence counts as a death",
    ("tracker restart", "total"): "tracker killed and restarted: a collective meanwhile",
    (
        "start of an interpreter",
        "total",
    ): "for comparison: start of Python with numpy, trio, ftcomm",
}


def headline_table(lines: list[Line], recoveries: list[Line]) -> str:
    """Tabulate for the README allreduce beside Open MPI, a killed worker, and a broken link."""
    faults = {(line["fault"], line["phase"]): line for line in recoveries if "fault" in line}
    kill, link = faults["SIGKILL and restart", "total"], faults["link reset", "total"]
    spare = faults["SIGKILL with a spare", "total"]
    python = faults["start of an interpreter", "total"]
    rows = [
        *(_headline(lines, text, nbytes) for text, nbytes in HEADLINES.items()),
        [
            "recovery from a killed worker, 4 ranks",
            f"{kill['p50']:.0f} ms, with a spare {spare['p50']:.0f} ms",
            f"start of Python with numpy, trio, ftcomm: {python['p50']:.0f} ms",
        ],
        ["recovery from a reset connection, 4 ranks", f"{link['p50']:.0f} ms", "no restart"],
    ]
    return table(["median", "ftcomm", "for comparison"], rows)


def _headline(lines: list[Line], text: str, nbytes: int) -> list[str]:
    place = {"kind": "allreduce", "world_size": 2, "nbytes": nbytes}
    found = [line for line in lines if place.items() <= line.items()]
    us = {
        (name, line["transport"]): figures["us"]
        for line in found
        for name, figures in line["peers"].items()
    }
    ours, theirs = (
        f"{_time(us[name, SHM])}, over TCP {_time(us[name, TCP])}" for name in (OURS, "Open MPI")
    )
    gloo = f"; gloo over TCP {_time(us['gloo', TCP])}"
    return [f"allreduce of {text}, 2 ranks", ours, f"Open MPI {theirs}{gloo}"]


def _time(us: float) -> str:
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.3g} us"


def recoveries_table(lines: list[Line]) -> str:
    """Tabulate the cost of each fault."""
    found = {(line["fault"], line["phase"]): line for line in lines if "fault" in line}
    rows = [
        [text, _short(found[key]["p50"]), _short(found[key]["p99"])]
        for key, text in RECOVERIES.items()
        if key in found
    ]
    return table(["milliseconds", "p50", "p99, or the worst of up to 100"], rows)


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
