"""Progress over time as an SVG: one line per contender, a ring where a fault struck it."""
import dataclasses
import html
import itertools

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 900, 460, 56, 24, 40, 44
COLOURS = ("#0072b2", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")  # told apart by the colour-blind too


@dataclasses.dataclass
class Line:
    name: str
    points: list  # [(seconds, step)]
    faults: list  # seconds


def progress(title, lines, steps):
    """The whole document. Steps that are done again show as a fall."""
    seconds = max(line.points[-1][0] for line in lines)

    def x(value):
        return LEFT + value / seconds * (WIDTH - LEFT - RIGHT)

    def y(value):
        return HEIGHT - BOTTOM - value / steps * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
             f'<text x="{LEFT}" y="22" font-size="16">{html.escape(title)}</text>']
    parts += axes(seconds, steps, x, y)
    for number, line in enumerate(lines):
        parts += curve(line, COLOURS[number % len(COLOURS)], number, x, y)
    return "\n".join([*parts, "</svg>\n"])


def axes(seconds, steps, x, y):
    parts = [f'<path d="M{LEFT},{TOP} V{y(0)} H{WIDTH - RIGHT}" stroke="#444" fill="none"/>',
             f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end" fill="#444">seconds since the first step</text>',
             f'<text x="{LEFT + 6}" y="{TOP + 4}" fill="#444">step</text>']
    for value in ticks(seconds):
        parts.append(f'<path d="M{x(value):.1f},{y(0)} v5" stroke="#444"/><text x="{x(value):.1f}" y="{y(0) + 18}" text-anchor="middle">{value:g}</text>')
    for value in ticks(steps):
        parts.append(f'<path d="M{LEFT},{y(value):.1f} h-5" stroke="#444"/><text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    return parts


def ticks(top):
    """Round values up to `top`: four to ten of them."""
    size = next(digit * 10.0**power for power in itertools.count() for digit in (1, 2, 5) if top <= 10 * digit * 10.0**power)
    return [size * number for number in range(1, int(top / size) + 1)]


def curve(line, colour, number, x, y):
    path = " ".join(f"{x(at):.1f},{y(step):.1f}" for at, step in line.points)
    rings = [f'<circle cx="{x(at):.1f}" cy="{y(step_at(line.points, at)):.1f}" r="4" fill="white" stroke="{colour}" stroke-width="1.5"/>'
             for at in line.faults]
    row = HEIGHT - BOTTOM - 16 - 18 * number
    key = (f'<path d="M{WIDTH - 372},{row - 4} h22" stroke="{colour}" stroke-width="2.5"/>'
           f'<text x="{WIDTH - 344}" y="{row}">{html.escape(line.name)}: {line.points[-1][0]:.0f} s</text>')
    return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>', *rings, key]


def step_at(points, at):
    return max((step for when, step in points if when <= at), default=0)
