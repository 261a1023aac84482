"""The figures as Markdown, as the README has them."""

from typing import Any

OURS = "ftcomm"
Line = dict[str, Any]


def facts_line(lines: list[Line]) -> str:
    """The machine, in one line."""
    facts = next(line["machine"] for line in lines if "machine" in line)
    return ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def allreduce_table(lines: list[Line]) -> str:
    """One table for each world size: microseconds, and how many times ours a peer takes."""
    parts = [facts_line(lines)]
    for world_size in dict.fromkeys(line["world_size"] for line in lines if "world_size" in line):
        own = [line for line in lines if line.get("world_size") == world_size]
        parts.append(f"{world_size} ranks, microseconds (and how many times ftcomm's)")
        parts.append(_sizes([line for line in own if "nbytes" in line]))
        parts += [f"{line['peer']}: {line['missing']}" for line in own if "missing" in line]
    return "\n\n".join(parts)


def _sizes(lines: list[Line]) -> str:
    names = list(dict.fromkeys(name for line in lines for name in line["peers"]))
    rows = [
        [f"{line['nbytes']:,}", *(_cell(line["peers"], name) for name in names)] for line in lines
    ]
    return table(["bytes", *names], rows)


def _cell(peers: dict[str, dict[str, float]], name: str) -> str:
    if name not in peers:
        return "-"
    us = peers[name]["us"]
    text = f"{us:,.1f}" if us < 100 else f"{us:,.0f}"
    if name == OURS or OURS not in peers:
        return text
    return f"{text} ({us / peers[OURS]['us']:.2f})"


def recovery_table(lines: list[Line]) -> str:
    """One row for each fault and phase."""
    rows = [
        [line["fault"], line["phase"], f"{line['p50']:,.1f}", f"{line['p99']:,.1f}", str(line["n"])]
        for line in lines
        if "fault" in line
    ]
    return facts_line(lines) + "\n\n" + table(["fault", "phase", "p50 ms", "p99 ms", "n"], rows)


def hidden_table(lines: list[Line]) -> str:
    """One row for each kind of work: milliseconds of a step, and the share that is hidden."""
    rows = [
        [
            line["compute"],
            *(f"{line[key]:,.1f}" for key in ("alone_ms", "sync_ms", "async_ms")),
            f"{100 * line['hidden']:.0f} %",
        ]
        for line in lines
        if "hidden" in line
    ]
    head = ["work", "alone ms", "allreduce ms", "iallreduce ms", "hidden"]
    return facts_line(lines) + "\n\n" + table(head, rows)


def tracker_table(lines: list[Line]) -> str:
    """One row for each number of workers."""
    columns = {
        "workers": "workers",
        "form_s": "form, s",
        "stop_s": "loss until all stopped, s",
        "epoch_s": "loss until all have the plan, s",
        "epoch_cpu_s": "of it the tracker's CPU, s",
        "epoch_bytes_per_worker": "bytes to each worker",
        "idle_cpu_percent": "idle CPU, %",
        "memory_kib_per_worker": "KiB a worker",
        "peak_kib": "peak, KiB",
    }
    rows = [[f"{line[name]:,}" for name in columns] for line in lines if "form_s" in line]
    parts = [facts_line(lines), table(list(columns.values()), rows)]
    parts += [
        f"{line['workers']:,} workers: {line['missing']}" for line in lines if "missing" in line
    ]
    return "\n\n".join(parts)
