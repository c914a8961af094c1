"""One measured figure: its samples, its goal, and whether the goal was reached. No figure is softened or left out."""
import dataclasses
from typing import Optional

import stats


@dataclasses.dataclass
class Figure:
    name: str                        # "crash noticed, no torch"
    unit: str
    values: dict                     # of stats.summary, or {"value": x}, and what else belongs to it
    goal: Optional[float] = None     # at most this, unless at_least
    judged: str = "median"           # which of the values the goal is about
    at_least: bool = False
    note: str = ""
    doubt: str = ""                  # why this can't be judged, whatever the values say

    @property
    def reached(self):
        """None: no goal, nothing measured to judge by, or reason to doubt the measurement."""
        value = self.values.get(self.judged)
        if self.doubt:
            return None
        if self.goal is None or value is None:
            return None
        return value >= self.goal if self.at_least else value <= self.goal

    def to_json(self):
        return {**dataclasses.asdict(self), "reached": self.reached}


def from_samples(name, unit, samples, **options):
    return Figure(name, unit, stats.summary(samples), **options)


def single(name, unit, value, **options):
    return Figure(name, unit, {"value": value}, judged="value", **options)


def from_ratios(name, unit, samples, goal, control=None, note=""):
    """An added cost in percent, judged by the 95 % interval of its median, not by the median alone.

    Reached: all of the interval lies at or below the goal; missed: all of it lies above. In between, or when the interval is
    wider than twice the goal, nothing is known. A cost far below zero is no gain but a comparison of unlike things, and so is
    a control (the same comparison between equals) whose interval leaves zero out.
    """
    values = stats.summary(samples)
    low, high = stats.median_interval(samples)
    values.update(low=low, high=high)
    doubt = ""
    if goal is None:
        doubt = ""
    elif high < -goal:
        doubt = "a cost far below zero: the two sides differ in something else"
    elif control and not control.values["low"] <= 0 <= control.values["high"]:
        doubt = "the control finds a difference between equals"
    elif low <= goal and (high > goal or high - low > 2 * goal):
        doubt = "the interval is too wide, or the goal lies within it"
    span = f"95 % interval of the median {low:+.2f} to {high:+.2f} {unit} (bootstrap)"
    return Figure(name, unit, values, goal, judged="high", note="; ".join(filter(None, [note, span])), doubt=doubt)


COLUMNS = ("figure", "n", "p5", "median", "p95", "p99", "unit", "goal", "reached")


def number(value):
    return "" if value is None else f"{value:.4g}"


def row(figure):
    values = figure.values
    spread = [number(values.get("value" if name == "median" and "value" in values else name)) for name in COLUMNS[2:6]]
    sign = ">=" if figure.at_least else "<="
    judged = {"value": "", "high": "interval "}.get(figure.judged, figure.judged + " ")
    goal = "" if figure.goal is None else f"{judged}{sign} {figure.goal:g}"
    unknown = "inconclusive" if figure.doubt else "not measured"
    reached = {None: unknown if figure.goal is not None else "", True: "yes", False: "NO"}[figure.reached]
    return [figure.name, str(values.get("n", "")), *spread, figure.unit, goal, reached]


def table(figures):
    """Markdown, so that it can be pasted into bench/README.md; also readable as it is."""
    rows = [list(COLUMNS), *map(row, figures)]
    widths = [max(len(line[i]) for line in rows) for i in range(len(COLUMNS))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes = [f"- {figure.name}: {figure.note}" + (f"; INCONCLUSIVE: {figure.doubt}" if figure.doubt else "")
             for figure in figures if figure.note]
    return "\n".join(lines + [""] + notes)
