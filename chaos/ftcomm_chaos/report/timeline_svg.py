"""A picture of one run: lanes of workers, spares and tracker, faults and recoveries in time."""

import math

from ftcomm_chaos.report.escaping import escape
from ftcomm_chaos.report.run_record import RunRecord

WIDTH = 1060
LEFT = 80
LANE = 26
TOP = 34
MOST_TICKS = 12
# incarnations of one worker alternate, so that a restart is seen
_PROCESS_COLORS = ("#4a7fb5", "#7fa8d1")
_RECOVERY = "#f2c14e80"  # half transparent, over the axis
_FAULT = "#a4161a"
_ATTEMPT = "#5b2a86"
_OF_THE_TRACKER = ("tracker_kill", "tracker_disk_lost")
LEGEND = (
    (_PROCESS_COLORS[1], "a process: first, third, ... incarnation"),
    (_PROCESS_COLORS[0], "second, fourth, ... incarnation"),
    (_RECOVERY, "a recovery, with its epoch above"),
    (_FAULT, "a fault"),
    (_ATTEMPT, "an attempt begins, from its checkpoint"),
)


def timeline(run: RunRecord, world_size: int, length_s: float) -> str:
    """An inline SVG, on which `length_s` seconds have the whole width."""
    lanes = _lanes(run, world_size)
    height = TOP + LANE * len(lanes) + 24
    scale = (WIDTH - LEFT - 10) / max(length_s, run.wall_s, 1e-3)
    parts = [f'<svg viewBox="0 0 {WIDTH} {height}" role="img" font-size="11">']
    parts += _axis(max(length_s, run.wall_s), scale, height)
    parts += _recoveries(run, scale, height)
    for index, name in enumerate(lanes):
        parts += _lane(run, name, TOP + LANE * index, scale)
    parts += _faults(run, lanes, scale)
    for row in run.attempts:  # a line over all lanes for each from the second on
        label = f"attempt {row.attempt} begins from {row.origin}"
        x = LEFT + row.at_s * scale
        parts.append(_bar(x, 2, TOP - 4, height - TOP - 14, _ATTEMPT, label))
    parts.append("</svg>")
    return "\n".join(parts)


def _bar(x: float, width: float, y: int, height: int, fill: str, title: str) -> str:
    place = f'x="{x:.1f}" y="{y}" width="{max(width, 1.0):.1f}" height="{height}"'
    return f'<rect {place} fill="{fill}"><title>{escape(title)}</title></rect>'


def _lanes(run: RunRecord, world_size: int) -> list[str]:
    """The members, the spares, and the tracker where it is a process of its own."""
    members = [str(worker) for worker in range(world_size)]
    seen = {process.who for process in run.processes}
    hit = {worker for delivery in run.delivered for worker in delivery.workers}
    spares = sorted((seen | hit) - {*members, "tracker"}, key=lambda name: (len(name), name))
    return [*members, *spares, *({"tracker"} & seen)]


def tick_step(length_s: float) -> float:
    """The smallest round step, 1, 2 or 5 times a power of ten, with at most `MOST_TICKS` of it."""
    length_s = max(length_s, 1e-3)
    power = 10.0 ** math.floor(math.log10(length_s / MOST_TICKS))
    return next(
        round(step * power, 6)
        for step in (1, 2, 5, 10)
        if length_s <= MOST_TICKS * step * power * (1 + 1e-9)
    )


def _axis(length_s: float, scale: float, height: int) -> list[str]:
    parts = []
    step_s = tick_step(length_s)
    for tick in range(int(length_s / step_s) + 1):
        seconds = tick * step_s
        x = LEFT + seconds * scale
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 18}"'
                     ' stroke="#8884"/>')  # fmt: skip
        parts.append(f'<text x="{x:.1f}" y="{height - 5}" text-anchor="middle">{seconds:g} s'
                     "</text>")  # fmt: skip
    return parts


def _recoveries(run: RunRecord, scale: float, height: int) -> list[str]:
    """A band for each recovery, from its first evidence, with its epoch above."""
    parts = []
    for incident in run.incidents:
        x, total_ms, epoch = (
            LEFT + incident["at_s"] * scale,
            incident["ms"]["total"],
            incident["epoch"],
        )
        label = f"epoch {epoch}: {incident['reason']}; {total_ms} ms"
        band = _bar(x, total_ms / 1000 * scale, TOP - 4, height - TOP - 14, _RECOVERY, label)
        parts += [band, f'<text x="{x:.1f}" y="{TOP - 8}">{epoch}</text>']
    return parts


def _lane(run: RunRecord, name: str, y: int, scale: float) -> list[str]:
    label = name if name == "tracker" else f"worker {name}"
    parts = [f'<text x="6" y="{y + 15}">{escape(label)}</text>']
    for process in run.processes:
        if process.who != name:
            continue
        end_s = run.wall_s if process.ended_s is None else process.ended_s
        x, width = LEFT + process.began_s * scale, (end_s - process.began_s) * scale
        title = f"incarnation {process.number}, process {process.pid} {process.how or 'ended well'}"
        parts.append(_bar(x, width, y + 3, LANE - 8, _PROCESS_COLORS[process.number % 2], title))
    return parts


def _faults(run: RunRecord, lanes: list[str], scale: float) -> list[str]:
    """A mark on the lane of whom the fault hit; on all, if it hit no worker."""
    parts = []
    for delivery in run.delivered:
        x = LEFT + delivery.at_s * scale - 1.5
        width = 0.0 if delivery.until_s is None else (delivery.until_s - delivery.at_s) * scale
        hit = delivery.workers or (["tracker"] if delivery.kind in _OF_THE_TRACKER else lanes)
        title = f"{delivery.at_s:.2f} s: {delivery.what}"
        for who in hit:
            y = TOP + LANE * lanes.index(who) + 1
            parts.append(_bar(x, 3 + width, y, LANE - 4, _FAULT, title))
    return parts
