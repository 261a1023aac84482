"""A plot of time over bytes as SVG, both axes logarithmic. Pure, and without a library."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

PLOT_WIDTH, HEIGHT = 500, 460
LEFT, TOP, BOTTOM = 70, 40, 50  # margins; the legend stands to the right of the plot
RIGHT = LEFT + PLOT_WIDTH  # where the plot ends
NAME_LEFT = RIGHT + 50  # where the legend's names begin, behind a piece of each line
MARGIN = 10
FONT_PX, TITLE_PX = 12, 15
# Of its height, the mean width of a letter in the widest common font for sans-serif is 0.6
# (DejaVu Sans); a viewer has whichever font it has.
LETTER_WIDTH = 0.7
# Told apart by those who see few colours too: each line has a mark of its own.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKS = ("circle", "square", "diamond", "triangle")
FONT = f'font-family="sans-serif" font-size="{FONT_PX}"'
Points = Sequence[tuple[float, float]]


def log_log(title: str, lines: Mapping[str, Points]) -> str:
    """The SVG text of `lines`: by name, points of bytes and microseconds, all above 0."""
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError("nothing to plot")
    across = _Axis([x for x, _ in points], LEFT, RIGHT)
    up = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    names = max(_text_width(name, FONT_PX) for name in lines)
    width = MARGIN + math.ceil(max(NAME_LEFT + names, LEFT + _text_width(title, TITLE_PX)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" {FONT}>',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="{TITLE_PX}">{escape(title)}</text>',
        *_grid(across, up),
    ]
    for number, (name, line) in enumerate(lines.items()):
        parts += _line(number, name, [(across.at(x), up.at(y)) for x, y in line])
    return "\n".join([*parts, "</svg>", ""])


def _text_width(text: str, height: int) -> float:
    return len(text) * height * LETTER_WIDTH


class _Axis:
    """A logarithmic axis over whole decades."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)))
        self.high = max(math.ceil(math.log10(max(values))), self.low + 1)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self._start + part * (self._end - self._start), 1)

    def decades(self) -> list[int]:
        return list(range(self.low, self.high + 1))


def _grid(across: _Axis, up: _Axis) -> list[str]:
    parts = []
    bottom = HEIGHT - BOTTOM
    for power in across.decades():
        x = across.at(10.0**power)
        parts.append(f'<path d="M{x} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{_bytes(power)}</text>')
    for power in up.decades():
        y = up.at(10.0**power)
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{_time(power)}</text>')
    middle = (LEFT + RIGHT) / 2
    label = "bytes on each rank"
    parts.append(f'<text x="{middle}" y="{HEIGHT - 12}" text-anchor="middle">{label}</text>')
    return parts


def _line(number: int, name: str, points: Points) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    mark = MARKS[number % len(MARKS)]
    route = " ".join(f"{x},{y}" for x, y in points)
    x, y = RIGHT + 18, TOP + 12 + 22 * number
    return [
        f'<polyline points="{route}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(_mark(mark, colour, *point) for point in points),
        f'<path d="M{x} {y}h24" stroke="{colour}" stroke-width="2"/>',
        _mark(mark, colour, x + 12, y),
        f'<text x="{NAME_LEFT}" y="{y + 4}">{escape(name)}</text>',
    ]


def _mark(kind: str, colour: str, x: float, y: float) -> str:
    shapes = {
        "circle": f"M{x - 4} {y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0",
        "square": f"M{x - 4} {y - 4}h8v8h-8z",
        "diamond": f"M{x} {y - 5}l5 5l-5 5l-5 -5z",
        "triangle": f"M{x} {y - 5}l5 9h-10z",
    }
    return f'<path d="{shapes[kind]}" fill="{colour}"/>'


def _bytes(power: int) -> str:
    units = ("B", "kB", "MB", "GB", "TB")
    thousands = min(power // 3, len(units) - 1)
    return f"{10 ** (power - 3 * thousands)} {units[thousands]}"


def _time(power: int) -> str:
    units = ("µs", "ms", "s")
    thousands = min(max(power, 0) // 3, len(units) - 1)
    return f"{10.0 ** (power - 3 * thousands):g} {units[thousands]}"
