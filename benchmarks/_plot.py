"""Plots as SVG, with logarithmic or linear axes. Pure, and without a library."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol
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
    xs, ys = _coordinates(lines)
    across = _LogAxis(xs, (LEFT, RIGHT), _bytes)
    return _drawn(
        title, lines, across, _LogAxis(ys, (HEIGHT - BOTTOM, TOP), _time), "bytes on each rank"
    )


def linear(title: str, lines: Mapping[str, Points], label: str) -> str:
    """The same with linear axes from 0 on; `label` names the one across."""
    xs, ys = _coordinates(lines)
    across, up = _LinearAxis(xs, (LEFT, RIGHT)), _LinearAxis(ys, (HEIGHT - BOTTOM, TOP))
    return _drawn(title, lines, across, up, label)


def _coordinates(lines: Mapping[str, Points]) -> tuple[list[float], list[float]]:
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError("nothing to plot")
    return [x for x, _ in points], [y for _, y in points]


class _Axis(Protocol):
    """Places of values in the picture."""

    def at(self, value: float) -> float:
        """Place of a value, in pixels."""

    def ticks(self) -> list[tuple[float, str]]:
        """Values that a line of the grid marks, with their texts."""


def _drawn(title: str, lines: Mapping[str, Points], across: _Axis, up: _Axis, label: str) -> str:
    names = max(_text_width(name, FONT_PX) for name in lines)
    width = MARGIN + math.ceil(max(NAME_LEFT + names, LEFT + _text_width(title, TITLE_PX)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" {FONT}>',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="{TITLE_PX}">{escape(title)}</text>',
        *_grid(across, up, label),
    ]
    for number, (name, line) in enumerate(lines.items()):
        parts += _line(number, name, [(across.at(x), up.at(y)) for x, y in line])
    return "\n".join([*parts, "</svg>", ""])


def _text_width(text: str, height: int) -> float:
    return len(text) * height * LETTER_WIDTH


class _LogAxis:
    """A logarithmic axis over whole decades."""

    def __init__(
        self, values: Sequence[float], ends: tuple[float, float], text: Callable[[int], str]
    ) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(math.ceil(math.log10(max(values))), self._low + 1)
        self._ends, self._text = ends, text

    def at(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return _between(self._ends, part)

    def ticks(self) -> list[tuple[float, str]]:
        powers = range(self._low, self._high + 1)
        return [(10.0**power, self._text(power)) for power in powers]


class _LinearAxis:
    """A linear axis from 0 on, with four to eight steps of 1, 2 or 5 times a power of ten."""

    def __init__(self, values: Sequence[float], ends: tuple[float, float]) -> None:
        rough = max(values) / 8
        power = 10.0 ** math.floor(math.log10(rough))
        self._step = next(power * times for times in (1, 2, 5, 10) if power * times >= rough)
        self._steps = math.ceil(max(values) / self._step)
        self._ends = ends

    def at(self, value: float) -> float:
        return _between(self._ends, value / (self._step * self._steps))

    def ticks(self) -> list[tuple[float, str]]:
        values = [self._step * number for number in range(self._steps + 1)]
        return [(value, f"{value:,.10g}") for value in values]


def _between(ends: tuple[float, float], part: float) -> float:
    start, end = ends
    return round(start + part * (end - start), 1)


def _grid(across: _Axis, up: _Axis, label: str) -> list[str]:
    parts = []
    bottom = HEIGHT - BOTTOM
    for value, text in across.ticks():
        x = across.at(value)
        parts.append(f'<path d="M{x} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{text}</text>')
    for value, text in up.ticks():
        y = up.at(value)
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{text}</text>')
    middle = (LEFT + RIGHT) / 2
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
