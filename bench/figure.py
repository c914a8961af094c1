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

    @property
    def reached(self):
        """None: no goal, or nothing measured to judge by."""
        value = self.values.get(self.judged)
        if self.goal is None or value is None:
            return None
        return value >= self.goal if self.at_least else value <= self.goal

    def to_json(self):
        return {**dataclasses.asdict(self), "reached": self.reached}


def from_samples(name, unit, samples, **options):
    return Figure(name, unit, stats.summary(samples), **options)


def single(name, unit, value, **options):
    return Figure(name, unit, {"value": value}, judged="value", **options)


COLUMNS = ("figure", "n", "p5", "median", "p95", "p99", "unit", "goal", "reached")


def number(value):
    return "" if value is None else f"{value:.4g}"


def row(figure):
    values = figure.values
    spread = [number(values.get("value" if name == "median" and "value" in values else name)) for name in COLUMNS[2:6]]
    sign = ">=" if figure.at_least else "<="
    goal = "" if figure.goal is None else f"{figure.judged} {sign} {figure.goal:g}".replace("value ", "")
    reached = {None: "" if figure.goal is None else "not measured", True: "yes", False: "NO"}[figure.reached]
    return [figure.name, str(values.get("n", "")), *spread, figure.unit, goal, reached]


def table(figures):
    """Markdown, so that it can be pasted into bench/README.md; also readable as it is."""
    rows = [list(COLUMNS), *map(row, figures)]
    widths = [max(len(line[i]) for line in rows) for i in range(len(COLUMNS))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes = [f"- {figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join(lines + [""] + notes)
