"""The figures as Markdown, as docs/performance.md has them."""

import textwrap
from typing import Any

from _plot import linear, log_log

OURS = "ftcomm"
DOCUMENT_WIDTH = 100  # columns; tables alone are wider
Line = dict[str, Any]


def facts_line(lines: list[Line]) -> str:
    """The machine, in lines of a document's width."""
    facts = next(line["machine"] for line in lines if "machine" in line)
    text = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    return textwrap.fill(text, DOCUMENT_WIDTH, break_on_hyphens=False)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def calls_table(lines: list[Line]) -> str:
    """One table for each kind of call, number of ranks and transport."""
    parts = [facts_line(lines)]
    keys = ("kind", "world_size", "transport")
    for place in dict.fromkeys(tuple(line[k] for k in keys) for line in lines if "nbytes" in line):
        own = [line for line in lines if tuple(line.get(k) for k in keys) == place]
        kind, world_size, transport = place
        parts += [f"{kind}, {world_size} ranks, {transport}, microseconds:", _sizes(own)]
    missing = {f"{line['peer']}: {line['missing']}": None for line in lines if "missing" in line}
    return "\n\n".join([*parts, *missing])


def allreduce_plots(lines: list[Line]) -> dict[str, str]:
    """By file name, a plot for each world size and transport."""
    routes: dict[tuple[int, str], dict[str, list[tuple[float, float]]]] = {}
    for line in lines:
        if line.get("kind") == "allreduce":
            plot = routes.setdefault((line["world_size"], line["transport"]), {})
            for name, figures in line["peers"].items():
                plot.setdefault(name, []).append((line["nbytes"], figures["us"]))
    return {
        f"allreduce-{world_size}-{transport}.svg": log_log(
            f"Allreduce of float32, {world_size} ranks of one machine, {transport}", plot
        )
        for (world_size, transport), plot in routes.items()
    }


def _sizes(lines: list[Line]) -> str:
    names = list(dict.fromkeys(name for line in lines for name in line["peers"]))
    rows = [
        [f"{line['nbytes']:,}", *(_cell(line["peers"], name) for name in names)] for line in lines
    ]
    return table(["bytes", *names], rows)


def _cell(peers: dict[str, dict[str, float]], name: str) -> str:
    """The median; half the distance of the quartiles, of it; how many times ftcomm's it is."""
    if name not in peers:
        return "-"
    found = peers[name]
    text = f"{found['us']:,.1f}" if found["us"] < 100 else f"{found['us']:,.0f}"
    if "q1" in found:
        text += f" ±{50 * (found['q3'] - found['q1']) / found['us']:.0f} %"
    if name == OURS or OURS not in peers:
        return text
    times = [f"{found.get('ratio', found['us'] / peers[OURS]['us']):.2f}"]
    times += [f"{found['low']:.2f} to {found['high']:.2f}"] if "low" in found else []
    times += [f"{found['view_ratio']:.2f}"] if "view_ratio" in found else []
    return f"{text} ({', '.join(times)})"


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


def result_memory_table(lines: list[Line]) -> str:
    """One row for each transport and kind of result: megabytes of fixed and of varying sizes."""
    found: dict[tuple[str, bool], dict[str, int]] = {}
    for line in lines:
        if "most_mb" in line:
            kind = line["transport"], line["copy"]
            found.setdefault(kind, {})[line["sizes"]] = line["most_mb"]
    rows = [
        [
            transport,
            "a copy" if copy else "a view",
            f"{most['fixed']:,}",
            f"{most['varying']:,}",
            f"{most['varying'] / most['fixed']:.2f}",
        ]
        for (transport, copy), most in found.items()
    ]
    head = ["transport", "result", "one size, MB", "varying sizes, MB", "times"]
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


def alpha_beta_table(lines: list[Line]) -> str:
    """The fit, how well it says what was measured, and what it says beyond."""
    costs = next(line for line in lines if "alpha_us" in line)
    said = (
        f"alpha {costs['alpha_us']:.1f} us a message, beta {costs['beta_ns']:.3f} ns a byte, "
        f"gamma {costs['gamma_ns']:.3f} ns a byte that is combined"
    )
    checked = [
        [
            str(line["checked"]),
            f"{line['nbytes']:,}",
            f"{line['measured_us']:,.0f}",
            f"{line['predicted_us']:,.0f} ({line['predicted_us'] / line['measured_us']:.2f})",
            "fitted" if line["fitted"] else "predicted",
        ]
        for line in lines
        if "checked" in line
    ]
    beyond = [line for line in lines if "predicted" in line]
    names = list(beyond[0]["us"]) if beyond else []
    rows = [
        [str(line["predicted"]), f"{line['nbytes']:,}", *(f"{line['us'][n]:,.0f}" for n in names)]
        for line in beyond
    ]
    return "\n\n".join(
        [
            facts_line(lines),
            said,
            table(["ranks", "bytes", "measured, us", "by the model, us", ""], checked),
            table(["ranks", "bytes", *(f"{name}, us" for name in names)], rows),
        ]
    )


def training_table(lines: list[Line]) -> str:
    """One row for each number of ranks."""
    found = [line for line in lines if "samples_per_s" in line]
    alone = found[0]["samples_per_s"] if found else 1
    rows = [
        [
            str(line["ranks"]),
            f"{line['samples_per_s']:,}",
            f"{line['samples_per_s'] / alone:.2f}",
            f"{100 * line['communication']:.1f} %",
        ]
        for line in found
    ]
    head = ["ranks", "samples a second", "times one rank's", "time in calls"]
    return facts_line(lines) + "\n\n" + table(head, rows)


def patterns_table(lines: list[Line]) -> str:
    """One row for each way to train; in brackets the difference to the first one's."""
    found = [line for line in lines if "way" in line]
    rows = [
        [
            line["way"],
            f"{line['wrong'][-1]:.2f} ({line['wrong'][-1] - found[0]['wrong'][-1]:+.2f})",
            f"{line['loss'][-1]:.3f} ({line['loss'][-1] - found[0]['loss'][-1]:+.3f})",
            f"{line['kb']:,}",
        ]
        for line in found
    ]
    said = "".join(
        f"After {line['samples'][-1]:,} samples, mean of {line['seeds']} seeds:"
        for line in found[:1]
    )
    head = ["way", "wrong in the test, %", "loss in the test", "kB received by a rank in an epoch"]
    return "\n\n".join([facts_line(lines), said, table(head, rows)])


def patterns_plots(lines: list[Line]) -> dict[str, str]:
    """By file name, the plot of the test over the samples, from the third epoch on."""
    curves = {
        line["way"]: [*zip(line["samples"], line["wrong"], strict=True)][2:]
        for line in lines
        if "way" in line
    }
    title = "Wrong answers in the test of digits, %; four ranks"
    return {"patterns.svg": linear(title, curves, "samples, all ranks together")} if curves else {}


# Speed-ups of "Distributed TensorFlow with MPI", from a number of cores to another one.
PUBLISHED = {"MNIST-DNN": (1, 32, 11.64), "MNIST-CNN": (16, 64, 1.41)}
DIFFERENCES = (
    "Theirs were measured, with TensorFlow on an InfiniBand cluster. Ours are of the model: it has"
    " 32 samples in a step, links like TCP within this machine, and no rank that is late."
)


def papers_table(lines: list[Line]) -> str:
    """Speed-ups of the trainings, of the paper's data sets by the model, and the published ones."""
    costs = next(line for line in lines if "alpha_us" in line)
    parts = [
        facts_line(lines),
        f"Alpha is {costs['alpha_us']:.1f} us a message, beta {costs['beta_ns']:.3f} ns a byte.",
        _trainings(lines),
        _shapes(lines),
        _published(lines),
    ]
    missing = [f"Not measured: {line['missing']}" for line in lines if "missing" in line]
    return "\n\n".join([part for part in parts if part] + missing)


def _trainings(lines: list[Line]) -> str:
    """One row for each training: measured speed-ups with the model's, or these alone."""
    found: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if "experiment" in line:
            found.setdefault((line["experiment"], line["average"]), []).append(line)
    rows = []
    for name, of in found.items():
        measured = [line for line in of if "measured" in line]
        right = f"{100 * measured[-1]['right']:.1f} ({measured[-1]['ranks']} ranks)"
        rows.append([*name, f"{of[0]['samples_per_s']:,}", right])
        rows[-1] += [_after_kills(line) if "kills" in line else _speedup(line) for line in of[1:]]
    head = ["network, data", "averaged", "samples a second on one rank", "right, %"]
    ranks = dict.fromkeys(line["ranks"] for line in lines if line.get("ranks", 1) > 1)
    head += [f"{n} ranks" for n in ranks]
    head += ["SHA-256 after kills"] * any("kills" in line for line in lines)
    return table(head, rows)


def _speedup(line: Line) -> str:
    """The measured one and the model's, or that alone."""
    by_model = f"model {line['by_model']:.2f}"
    return f"{line['measured']:.2f} ({by_model})" if "measured" in line else by_model


def _after_kills(line: Line) -> str:
    """Equality of the model with that of the undisturbed run."""
    is_equal = line["model"] == line["undisturbed"]
    said = f"equal, {line['model'][:8]}" if is_equal else "NOT EQUAL"
    return f"{said}; {len(line['killed'])} of {line['kills']} killed"


def _shapes(lines: list[Line]) -> str:
    """One row for each data set of the paper: its step on one rank, and speed-ups by the model."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        if "shape" in line:
            found.setdefault(line["shape"], []).append(line)
    if not found:
        return ""
    first = next(iter(found.values()))
    ranks = [n for n in first[0]["speedups"] if n != "1"]
    head = ["data set, by its shape", "kB of weights", "us a step"]
    head += [f"{line['average']}, {n} ranks" for line in first for n in ranks]
    rows = [
        [name, f"{of[0]['nbytes'] / 1000:,.0f}", f"{of[0]['step_us']:,}"]
        + [f"{line['speedups'][n]:.2f}" for line in of for n in ranks]
        for name, of in found.items()
    ]
    return "By the model:\n\n" + table(head, rows)


def _published(lines: list[Line]) -> str:
    """One row for each speed-up of the paper, with the model's beside it; and what differs."""
    found = {(line["shape"], line["average"]): line for line in lines if "shape" in line}
    averages = list(dict.fromkeys(average for _, average in found))
    rows = []
    for name, (few, many, times) in PUBLISHED.items():
        of = [found[name, average]["speedups"] for average in averages if (name, average) in found]
        if of:
            said = [f"{each[str(many)] / each[str(few)]:.2f}" for each in of]
            rows.append([f"{name}, {few} to {many} cores", f"{times:.2f}", *said])
    head = ["speed-up", "published", *(f"{average}, by the model" for average in averages)]
    differences = textwrap.fill(DIFFERENCES, DOCUMENT_WIDTH)
    return f"{table(head, rows)}\n\n{differences}" if rows else ""


def papers_plots(lines: list[Line]) -> dict[str, str]:
    """By file name, the plot of the model's speed-ups of what was published."""
    curves = {
        f"{line['shape']}, {line['average']}": [(int(n), s) for n, s in line["speedups"].items()]
        for line in lines
        if line.get("shape") in PUBLISHED
    }
    if not curves:
        return {}
    few, many, times = PUBLISHED["MNIST-DNN"]
    curves["MNIST-DNN, published"] = [(few, 1.0), (many, times)]
    return {"papers.svg": linear("Speed-up over one rank, by the model", curves, "ranks")}


def floor_table(lines: list[Line]) -> str:
    """Bytes that each rank sends, and the time, against the least of both."""
    speeds = ", ".join(f"{name} {speed} GB/s" for name, speed in lines[0]["gb_per_s"].items())
    rows = [
        [
            str(line["ranks"]),
            f"{line['nbytes']:,}",
            f"{line['least_bytes']:,}",
            f"{line['sent_per_rank']:,}",
            f"{line['headers_per_rank']:,}",
            f"{line['carried_per_rank']:,}",
            f"{line['us']:,.0f}",
            f"{line['loopback_us']:,} + {line['adding_us']:,}",
        ]
        for line in lines
        if "least_bytes" in line
    ]
    head = ["ranks", "bytes", "least sent by each", "sent", "in headers", "carried by the kernel"]
    head += ["us", "least us: loopback + adding"]
    return "\n\n".join([facts_line(lines), speeds, table(head, rows)])


def streams_table(lines: list[Line]) -> str:
    """One row for each number of streams."""
    measured = [line for line in lines if "streams" in line]
    rows = [
        [str(line["streams"]), f"{line['ms']:,.1f}", f"{line['gain']:.2f}"] for line in measured
    ]
    return _or_lacking(lines, table(["streams", "ms", "times as fast"], rows))


def between_hosts_table(lines: list[Line]) -> str:
    """One row for each library, with a column for each limit of a connection."""
    measured = [line for line in lines if "mbit_per_s" in line]
    absent = [line for line in lines if "peer" in line]
    parts = [
        "\n".join(
            f"{line['nbytes']:,} bytes one way, milliseconds, half the distance of the quartiles"
            " (and the ratio)"
            for line in measured[:1]
        ),
        _by_limit(measured),
        *(f"{line['peer']}: not measured: {line['missing']}" for line in absent),
    ]
    return _or_lacking([line for line in lines if line not in absent], "\n\n".join(parts))


def _by_limit(measured: list[Line]) -> str:
    head, rows = ["library"], {name: [name] for line in measured for name in line["peers"]}
    for line in measured:
        limit, peers = line["mbit_per_s"], line["peers"]
        head += (
            ["no limit", "into a new array"] if limit is None else [f"{limit} Mbit/s a connection"]
        )
        for name, row in rows.items():
            row.append(_one_way(peers[name]) if name in peers else "-")
            if limit is None:
                row.append(f"{peers[name]['new_us'] / 1000:,.1f}" if name in peers else "-")
    return table(head, list(rows.values()))


def _one_way(found: dict[str, float]) -> str:
    ms = f"{found['us'] / 1000:,.1f} ±{50 * (found['q3'] - found['q1']) / found['us']:.0f} %"
    return f"{ms} ({found['ratio']:.2f})" if "ratio" in found else ms


def hierarchy_table(lines: list[Line]) -> str:
    """One row for each algorithm; in brackets how many times the first one's."""
    measured = [line for line in lines if "algorithm" in line]
    rows = [
        [
            line["algorithm"],
            f"{line['ms']:,.1f} ({line['ms'] / measured[0]['ms']:.2f})",
            f"{line['sent'] / 1e6:,.2f} ({line['sent'] / measured[0]['sent']:.2f})",
        ]
        for line in measured
    ]
    return _or_lacking(lines, table(["algorithm", "ms", "MB sent by a host"], rows))


def _or_lacking(lines: list[Line], found: str) -> str:
    lacking = [f"Not measured: {line['missing']}" for line in lines if "missing" in line]
    return "\n\n".join([facts_line(lines), *(lacking or [found])])


def durable_table(lines: list[Line]) -> str:
    """One row for each store."""
    rows = [
        [
            line["store"],
            *(f"{line[f'{name}_ms']:,.2f}" for name in ("without", "with")),
            f"{100 * (line['cost'] - 1):+.1f} %",
            " to ".join(f"{100 * (ratio - 1):+.1f}" for ratio in line["cost_spread"]),
            f"{line['versions']} of {line['turns']}",
            *(f"{line[f'{name}_memory'] / 1e6:,.0f}" for name in ("without", "with")),
        ]
        for line in lines
        if "store" in line
    ]
    head = ["store", "step without ms", "with ms", "costs", "quartiles", "durable"]
    head += ["memory without MB", "with MB"]
    return facts_line(lines) + "\n\n" + table(head, rows)
