"""Selected rows and columns of the results, for the README and docs/performance.md."""

from collections.abc import Callable
from typing import Any

from _report import OURS, facts_line, table

Line = dict[str, Any]

PEERS = {
    OURS: "ftcomm",
    "ftcomm TCP": "ftcomm, `--transport tcp`",
    "gloo": "torch gloo",
    "Open MPI TCP": "Open MPI, TCP",
    "XGBoost": "XGBoost",
}
UP_TO_BYTES = 100_000_000
SHARED_SIZES = (1024, 1_048_576, 100_000_000)  # shown of groups that share processors
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
    """Four figures for the README: a small call, a large call, a killed worker, a broken link."""
    sizes = {line.get("nbytes"): line["peers"] for line in lines if line.get("world_size") == 2}
    faults = {(line["fault"], line["phase"]): line for line in recoveries if "fault" in line}
    small, large = sizes[1024], sizes[UP_TO_BYTES]
    kill, link = faults["SIGKILL and restart", "total"], faults["link reset", "total"]
    spare = faults["SIGKILL with a spare", "total"]
    python = faults["start of an interpreter", "total"]
    rows = [
        ["allreduce of 1 KiB, 2 ranks", *_compared(small, lambda us: f"{_short(us)} us")],
        ["allreduce of 100 MB, 2 ranks", *_compared(large, lambda us: f"{us / 1000:.0f} ms")],
        [
            "recovery from a killed worker, 4 ranks",
            f"{kill['p50']:.0f} ms, with a spare {spare['p50']:.0f} ms",
            f"start of Python with numpy, trio, ftcomm: {python['p50']:.0f} ms",
        ],
        ["recovery from a reset connection, 4 ranks", f"{link['p50']:.0f} ms", "no restart"],
    ]
    return table(["median", "ftcomm", "for comparison"], rows)


def two_ranks_table(lines: list[Line]) -> str:
    """Allreduce of two ranks, up to 100 MB."""
    own = [line for line in lines if line.get("world_size") == 2 and "nbytes" in line]
    rows = [
        [f"{line['nbytes']:,}", *_cells(line["peers"])]
        for line in own
        if line["nbytes"] <= UP_TO_BYTES
    ]
    return facts_line(lines) + "\n\n" + table(["bytes", *PEERS.values()], rows)


def more_ranks_table(lines: list[Line]) -> str:
    """Allreduce of more ranks than two, at some sizes."""
    rows = [
        [str(line["world_size"]), f"{line['nbytes']:,}", *_cells(line["peers"])]
        for line in lines
        if line.get("world_size", 2) > 2 and line.get("nbytes") in SHARED_SIZES
    ]
    return table(["ranks", "bytes", *PEERS.values()], rows)


def recoveries_table(lines: list[Line]) -> str:
    """Tabulate the cost of each fault."""
    found = {(line["fault"], line["phase"]): line for line in lines if "fault" in line}
    rows = [
        [text, _short(found[key]["p50"]), _short(found[key]["p99"])]
        for key, text in RECOVERIES.items()
        if key in found
    ]
    return table(["milliseconds", "p50", "p99, or the worst of up to 100"], rows)


def _cells(peers: dict[str, dict[str, float]]) -> list[str]:
    return [_cell(name, peers[name]) if name in peers else "-" for name in PEERS]


def _cell(name: str, figures: dict[str, float]) -> str:
    text = _short(figures["us"])
    return text if name == OURS else f"{text} ({figures['ratio']:.3g})"


def _compared(peers: dict[str, dict[str, float]], text: Callable[[float], str]) -> list[str]:
    """Cells of ftcomm and of its peers, which are measured over TCP."""
    own, tcp, gloo, mpi = (
        text(peers[name]["us"]) for name in (OURS, "ftcomm TCP", "gloo", "Open MPI TCP")
    )
    return [f"{own}, over TCP {tcp}", f"over TCP: gloo {gloo}, Open MPI {mpi}"]


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
