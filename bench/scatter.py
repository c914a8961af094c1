"""Predicted against measured as an SVG: one dot per run on logarithmic axes, a line where both are the same, and one for a tenth more or less."""
import dataclasses
import html
import math

SIZE, LEFT, RIGHT, TOP, BOTTOM = 620, 64, 20, 40, 48
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#b8a000")  # told apart by the colour-blind too
BAND = 0.1


@dataclasses.dataclass
class Series:
    name: str
    points: list  # [(measured, predicted)]


def document(title, unit, series):
    values = [value for one in series for point in one.points for value in point]
    low, high = math.floor(math.log10(min(values)) * 2) / 2, math.ceil(math.log10(max(values)) * 2) / 2

    def x(value):
        return LEFT + (math.log10(value) - low) / (high - low) * (SIZE - LEFT - RIGHT)

    def y(value):
        return SIZE - BOTTOM - (math.log10(value) - low) / (high - low) * (SIZE - TOP - BOTTOM)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {SIZE} {SIZE}" font-family="sans-serif" font-size="13">',
             f'<rect width="{SIZE}" height="{SIZE}" fill="white"/>',
             f'<text x="{LEFT}" y="22" font-size="16">{html.escape(title)}</text>',
             *axes(10**low, 10**high, unit, x, y)]
    for number, one in enumerate(series):
        parts += dots(one, COLOURS[number % len(COLOURS)], number, x, y)
    return "\n".join([*parts, "</svg>\n"])


def axes(low, high, unit, x, y):
    def line(factor, style):
        begin, end = max(low, low / factor), min(high, high / factor)
        return f'<path d="M{x(begin):.1f},{y(begin * factor):.1f} L{x(end):.1f},{y(end * factor):.1f}" {style} fill="none"/>'

    parts = [f'<path d="M{LEFT},{TOP} V{y(low)} H{SIZE - RIGHT}" stroke="#444" fill="none"/>',
             f'<text x="{SIZE - RIGHT}" y="{SIZE - 8}" text-anchor="end" fill="#444">measured, {unit}</text>',
             f'<text x="{LEFT + 6}" y="{TOP + 4}" fill="#444">predicted, {unit}</text>',
             line(1, 'stroke="#444"'),
             line(1 + BAND, 'stroke="#aaa" stroke-dasharray="4 3"'), line(1 / (1 + BAND), 'stroke="#aaa" stroke-dasharray="4 3"')]
    for value in ticks(low, high):
        parts.append(f'<path d="M{x(value):.1f},{y(low)} v5" stroke="#444"/><text x="{x(value):.1f}" y="{y(low) + 18:.1f}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<path d="M{LEFT},{y(value):.1f} h-5" stroke="#444"/><text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    return parts


def ticks(low, high):
    """1, 2 and 5 of each power of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high * 1.001]


def dots(one, colour, number, x, y):
    row = SIZE - BOTTOM - 16 - 18 * number
    parts = [f'<circle cx="{x(measured):.1f}" cy="{y(predicted):.1f}" r="2.5" fill="{colour}" fill-opacity="0.6"/>' for measured, predicted in one.points]
    return [*parts, f'<circle cx="{SIZE - 290}" cy="{row - 4}" r="4" fill="{colour}"/>',
            f'<text x="{SIZE - 280}" y="{row}">{html.escape(one.name)}, {len(one.points)} runs</text>']
