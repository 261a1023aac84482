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
_RECOVERY = "#f2c14e"
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
    parts += _attempts(run, scale, height)
    parts.append("</svg>")
    return "\n".join(parts)


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
        x = LEFT + incident["at_s"] * scale
        width = max(incident["ms"]["total"] / 1000 * scale, 1.0)
        label = f"epoch {incident['epoch']}: {incident['reason']}; {incident['ms']['total']} ms"
        parts.append(
            f'<rect x="{x:.1f}" y="{TOP - 4}" width="{width:.1f}" height="{height - TOP - 14}"'
            f' fill="{_RECOVERY}" fill-opacity="0.5"><title>{escape(label)}</title></rect>'
        )
        parts.append(f'<text x="{x:.1f}" y="{TOP - 8}">{incident["epoch"]}</text>')
    return parts


def _attempts(run: RunRecord, scale: float, height: int) -> list[str]:
    """A line over all lanes for each attempt from the second on."""
    parts = []
    for row in run.attempts:
        x = LEFT + row.at_s * scale
        label = f"attempt {row.attempt} begins from {row.origin}"
        parts.append(
            f'<rect x="{x:.1f}" y="{TOP - 4}" width="2" height="{height - TOP - 14}"'
            f' fill="{_ATTEMPT}"><title>{escape(label)}</title></rect>'
        )
    return parts


def _lane(run: RunRecord, name: str, y: int, scale: float) -> list[str]:
    label = name if name == "tracker" else f"worker {name}"
    parts = [f'<text x="6" y="{y + 15}">{escape(label)}</text>']
    for process in run.processes:
        if process.who != name:
            continue
        end_s = run.wall_s if process.ended_s is None else process.ended_s
        x, width = LEFT + process.began_s * scale, max((end_s - process.began_s) * scale, 1.0)
        title = f"incarnation {process.number}, process {process.pid} {process.how or 'ended well'}"
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{LANE - 8}"'
            f' fill="{_PROCESS_COLORS[process.number % 2]}"><title>{escape(title)}</title></rect>'
        )
    return parts


def _faults(run: RunRecord, lanes: list[str], scale: float) -> list[str]:
    """A mark on the lane of whom the fault hit; on all, if it hit no worker."""
    parts = []
    for delivery in run.delivered:
        x = LEFT + delivery.at_s * scale
        width = 0.0 if delivery.until_s is None else (delivery.until_s - delivery.at_s) * scale
        hit = delivery.workers or (["tracker"] if delivery.kind in _OF_THE_TRACKER else lanes)
        for who in hit:
            y = TOP + LANE * lanes.index(who) + 1
            parts.append(
                f'<rect x="{x - 1.5:.1f}" y="{y}" width="{3 + width:.1f}" height="{LANE - 4}"'
                f' fill="{_FAULT}"><title>{escape(f"{delivery.at_s:.2f} s: {delivery.what}")}'
                "</title></rect>"
            )
    return parts
