"""Draws the report's figures as SVG. Colours are CSS classes, which figures.css defines for light and dark modes; the
report's page and `standalone` figures include it.

Classes `c0` ... `c9` are series in order; `ink` and `faint` are text and lines. The name and value of a mark are in its
`<title>`, which browsers show as a tooltip.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Number = float | int
STYLE = Path(__file__).with_name("figures.css")
WIDTH, ROW, LEFT, COLOURS = 860, 26, 190, 10


class Svg:
    """An SVG image; elements are drawn in the order of the calls."""

    def __init__(self, height: Number, label: str, width: Number = WIDTH):
        self.height, self.width, self.label = height, width, label
        self.elements: list[str] = []

    def line(self, x1: Number, y1: Number, x2: Number, y2: Number, css_class: str) -> None:
        self.elements.append(f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def text(self, x: Number, y: Number, text: object, css_class: str = "ink", anchor: str = "start") -> None:
        self.elements.append(
            f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(str(text))}</text>'
        )

    def dot(self, x: Number, y: Number, css_class: str, title: str, radius: Number = 5.5) -> None:
        where = f'cx="{x:.1f}" cy="{y:.1f}" r="{radius}"'
        self.elements.append(f'<circle class="{css_class}" {where}><title>{html.escape(title)}</title></circle>')

    def box(
        self,
        x: Number,
        y: Number,
        width: Number,
        height: Number,
        css_class: str,
        title: str,
        *,
        round_: Number = 2,
        opacity: Number = 1,
    ) -> None:
        self.elements.append(
            f'<rect class="{css_class}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" '
            f'rx="{round_}" fill-opacity="{opacity:.3f}"><title>{html.escape(title)}</title></rect>'
        )

    def path(self, points: Sequence[tuple[Number, Number]], css_class: str) -> None:
        self.elements.append(
            f'<polyline class="{css_class}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'
        )

    def curve(self, x1: Number, y1: Number, x2: Number, y2: Number, css_class: str) -> None:
        middle = (x1 + x2) / 2
        bend = f"C{middle:.1f},{y1:.1f} {middle:.1f},{y2:.1f} {x2:.1f},{y2:.1f}"
        self.elements.append(f'<path class="{css_class}" d="M{x1:.1f},{y1:.1f} {bend}"/>')

    def __str__(self) -> str:
        return (
            f'<svg viewBox="0 0 {self.width:.0f} {self.height:.0f}" role="img" aria-label="{html.escape(self.label)}" '
            f'xmlns="http://www.w3.org/2000/svg">{"".join(self.elements)}</svg>'
        )


def standalone(svg: str) -> str:
    """Returns a figure as the content of a file, with its style and a background."""
    start = svg.index(">") + 1
    style = f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
    return f'{svg[:start]}{style}<rect class="page" width="100%" height="100%"/>{svg[start:]}'


def dots(rows: Mapping[str, Mapping[str, Number]], label: str, unit: str) -> str:
    """Draws one dot per series in each row, on a common axis from 0, with a rule at 1."""
    values = [value for row in rows.values() for value in row.values() if math.isfinite(value)]
    svg = Svg(len(rows) * ROW + 30, label)
    x, ticks = _axis(max(values, default=1.0))
    for tick in ticks:
        svg.line(x(tick), 4, x(tick), len(rows) * ROW + 4, "rule" if tick == 1 else "grid")
        svg.text(x(tick), len(rows) * ROW + 22, f"{tick:g}{unit}", "faint", "middle")
    if 1 not in ticks:
        svg.line(x(1), 4, x(1), len(rows) * ROW + 4, "rule")
    for place, (name, row) in enumerate(rows.items()):
        y = place * ROW + ROW / 2 + 4
        svg.text(LEFT - 14, y + 4, name, anchor="end")
        svg.line(LEFT, y, WIDTH - 20, y, "grid")
        for number, (series, value) in enumerate(row.items()):
            if math.isfinite(value):
                svg.dot(x(value), y, _colour(number), f"{series}, {name}: {value:.2f}{unit}")
    return str(svg)


def stacked(rows: Mapping[str, Mapping[str, Number]], label: str, unit: str) -> str:
    """Draws a stacked bar per row, with its sum."""
    svg = Svg(len(rows) * ROW + 34, label)
    x, ticks = _axis(max((sum(row.values()) for row in rows.values()), default=1.0), room=90)
    for tick in ticks:
        svg.line(x(tick), 4, x(tick), len(rows) * ROW + 4, "grid")
        svg.text(x(tick), len(rows) * ROW + 22, f"{tick:g} {unit}", "faint", "middle")
    for place, (name, row) in enumerate(rows.items()):
        y, before = place * ROW + 6, 0.0
        svg.text(LEFT - 14, y + ROW / 2 + 2, name, anchor="end")
        for number, (part, value) in enumerate(row.items()):
            title = f"{name}, {part}: {value:.2f} {unit}"
            svg.box(x(before), y, x(before + value) - x(before), ROW - 6, _colour(number), title)
            before += value
        svg.text(x(before) + 8, y + ROW / 2 + 2, f"{before:.2f} {unit}", "faint")
    return str(svg)


def lines(series: Mapping[str, Sequence[Number]], label: str, axis: str, *, legend: bool = False) -> str:
    """Draws shares from 0 to 1 over 1, 2, 3, ..., one line per series."""
    bottom, steps = 250, max((len(values) for values in series.values()), default=1)
    svg = Svg(bottom + 44, label)
    left, right = 60, WIDTH - 30

    def x(step: int) -> Number:
        return left + (right - left) * (step - 1) / max(steps - 1, 1)

    def y(share: Number) -> Number:
        return bottom - (bottom - 14) * share

    for share in (0, 0.25, 0.5, 0.75, 1):
        svg.line(left, y(share), right, y(share), "grid")
        svg.text(left - 10, y(share) + 4, f"{share:.0%}", "faint", "end")
    for step in range(1, steps + 1):
        svg.text(x(step), bottom + 20, step, "faint", "middle")
    svg.text((left + right) / 2, bottom + 38, axis, "faint", "middle")
    for number, (name, values) in enumerate(series.items()):
        points = [(x(step), y(value)) for step, value in enumerate(values, start=1)]
        svg.path(points, f"curve {_colour(number)}")
        for step, (px, py) in enumerate(points, start=1):
            svg.dot(px, py, _colour(number), f"{name}, {axis} {step}: {values[step - 1]:.1%}", 3.5)
        if legend:
            svg.dot(left + 24, bottom - 24 - 22 * number, _colour(number), name)
            svg.text(left + 38, bottom - 20 - 22 * number, name)
    return str(svg)


def agreement(series: Mapping[str, Sequence[tuple[Number, Number]]], label: str, axes: tuple[str, str]) -> str:
    """Draws points of two shares, one colour per series, and the line on which the shares are equal.

    Args:
        series: points (x, y) by name.
        axes: names of x and y.
    """
    size, left, top = 360, 64, 12
    svg = Svg(size + 62, label, width=left + size + 210)

    def at(x: Number, y: Number) -> tuple[Number, Number]:
        return left + size * x, top + size * (1 - y)

    for share in (0, 0.25, 0.5, 0.75, 1):
        svg.line(*at(share, 0), *at(share, 1), "grid")
        svg.line(*at(0, share), *at(1, share), "grid")
        svg.text(left + size * share, top + size + 18, f"{share:.0%}", "faint", "middle")
        svg.text(left - 10, at(0, share)[1] + 4, f"{share:.0%}", "faint", "end")
    svg.line(*at(0, 0), *at(1, 1), "rule")
    svg.text(left + size / 2, top + size + 38, axes[0], "faint", "middle")
    for number, (name, points) in enumerate(series.items()):
        for x, y in points:
            svg.dot(*at(x, y), _colour(number), f"{name}: {axes[0]} {x:.1%}, {axes[1]} {y:.1%}", 3.5)
        svg.dot(left + size + 24, top + 12 + 22 * number, _colour(number), name)
        svg.text(left + size + 38, top + 16 + 22 * number, name)
    svg.text(left + size + 18, top + size - 4, f"upwards: {axes[1]}", "faint")
    return str(svg)


def grid(rows: Mapping[str, Sequence[Number]], label: str, axis: str) -> str:
    """Draws shares as a heatmap: a row per series, columns 1, 2, 3, ..."""
    columns = max((len(row) for row in rows.values()), default=1)
    cell = min((WIDTH - LEFT - 20) / columns, 70)
    svg = Svg(len(rows) * ROW + 44, label)
    for column in range(columns):
        svg.text(LEFT + (column + 0.5) * cell, len(rows) * ROW + 20, column + 1, "faint", "middle")
    svg.text(LEFT + columns * cell / 2, len(rows) * ROW + 38, axis, "faint", "middle")
    for place, (name, row) in enumerate(rows.items()):
        y = place * ROW + 4
        svg.text(LEFT - 14, y + ROW / 2 + 2, name, anchor="end")
        for column, share in enumerate(row):
            title = f"{name}, {axis} {column + 1}: {share:.1%}"
            svg.box(LEFT + column * cell + 1, y, cell - 2, ROW - 2, "c0", title, opacity=0.06 + 0.84 * share)
            if share >= 0.005:
                svg.text(LEFT + (column + 0.5) * cell, y + ROW / 2 + 3, f"{share:.0%}", "ink small", "middle")
    return str(svg)


def tree(parents: Sequence[int], texts: Sequence[str], accepted: Sequence[int], drawn: str, label: str) -> str:
    """Draws a tree from left to right, with committed tokens in colour, and the next root as one more leaf.

    Args:
        parents: parent of each node; -1 for the root, -2 for padding, which is not drawn.
        texts: text of each node's token.
        accepted: the committed nodes, root first.
        drawn: text of the token that the target drew after the last of them, the next root.
    """
    parent_of = {node: parent for node, parent in enumerate(parents) if parent != -2} | {len(parents): accepted[-1]}
    css_class = dict.fromkeys(parent_of, "left") | dict.fromkeys(accepted, "taken") | {len(parents): "drawn"}
    column, row, leaves = _layout(parent_of)
    step, line = WIDTH / (max(column.values()) + 1), 22
    box = min(step - 26, 96)
    positions = {node: (4 + column[node] * step, row[node] * line + 14) for node in parent_of}

    svg = Svg(leaves * line + 8, label)
    for node in sorted((node for node in parent_of if node), key=lambda node: css_class[node] != "left"):
        (x1, y1), (x2, y2) = positions[parent_of[node]], positions[node]
        svg.curve(x1 + box, y1, x2, y2, f"branch {css_class[node]}")
    for node, (x, y) in positions.items():
        _node(svg, x, y, box, [*texts, drawn][node], css_class[node])
    return str(svg)


def _layout(parent: Mapping[int, int]) -> tuple[dict[int, int], dict[int, Number], int]:
    """Returns column and row of each node, and the number of rows; a parent is centred between its children."""
    column: dict[int, int] = {}
    for node in parent:
        column[node] = column[parent[node]] + 1 if node else 0
    row: dict[int, Number] = {}
    leaves = 0

    def place(node: int) -> None:
        nonlocal leaves
        children = [child for child in parent if parent[child] == node]
        for child in children:
            place(child)
        row[node] = sum(row[child] for child in children) / len(children) if children else float(leaves)
        leaves += not children

    place(0)
    return column, row, leaves


def _node(svg: Svg, x: Number, y: Number, width: Number, text: str, css_class: str) -> None:
    visible = text.replace("\n", "⏎").replace(" ", "␣") or "∅"
    label = visible if len(visible) <= 11 else visible[:10] + "…"
    svg.box(x, y - 9, width, 18, f"node {css_class}", repr(text), round_=5)
    svg.text(x + width / 2, y + 4, label, f"small {css_class}", "middle")


def _colour(number: int) -> str:
    return f"c{number % COLOURS}"


def _axis(largest: Number, room: Number = 20) -> tuple[Callable[[Number], Number], list[Number]]:
    """Returns a linear scale from 0 to at least `largest`, and its ticks."""
    raw = max(largest, 1e-9) / 6
    power = 10 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw)
    count = math.ceil(largest / step - 1e-9)

    def x(value: Number) -> Number:
        return LEFT + (WIDTH - LEFT - room) * value / (count * step)

    return x, [step * tick for tick in range(count + 1)]
