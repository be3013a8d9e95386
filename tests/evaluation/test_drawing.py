import xml.etree.ElementTree as ElementTree

import pytest

from eagle_jax.evaluation import drawing

NAMES = ["plain", "eagle:60,7,10", 'a "quoted" <name>']
#        root
#        +- 1 - 3 - 5
#        |      +- 6 (no guess)
#        +- 2 - 4
PARENTS = [-1, 0, 0, 1, 2, 3, -2]
TEXTS = ["the", " cat", "<b>", "\n", "", "a rather long token", "never"]


def parts(svg: str, name: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}" + name))


def test_dots_stand_at_their_values():
    svg = drawing.dots({"qa": dict(zip(NAMES, (1.0, 2.0, float("nan")), strict=True))}, "speedup", "x")
    one, two = parts(svg, "circle")
    ticks = {text.text: float(text.get("x")) for text in parts(svg, "text")}
    assert float(one.get("cx")) == ticks["1x"] and float(two.get("cx")) == ticks["2x"]
    assert [line.get("class") for line in parts(svg, "line")].count("rule") == 1
    assert one[0].text == "plain, qa: 1.00x"


def test_bars_are_as_long_as_their_parts():
    svg = drawing.stacked({NAMES[2]: {"draft": 1.0, "verify": 3.0, "rest": 0.0}}, "time", "ms")
    draft, verify, rest = (float(box.get("width")) for box in parts(svg, "rect"))
    assert verify == pytest.approx(3 * draft, abs=0.2) and rest < 1
    assert "4.00 ms" in [text.text for text in parts(svg, "text")]


def test_shares_that_agree_lie_on_the_diagonal():
    svg = drawing.agreement({"greedy": [(0.25, 0.25), (0.5, 0.75)]}, "calibration", ("predicted", "accepted"))
    on, above, _ = parts(svg, "circle")
    (rule,) = (line for line in parts(svg, "line") if line.get("class") == "rule")
    (x1, y1), (x2, y2) = ([float(rule.get(name)) for name in names] for names in (("x1", "y1"), ("x2", "y2")))

    def off(dot: ElementTree.Element) -> float:
        share = (float(dot.get("cx")) - x1) / (x2 - x1)
        return y1 + share * (y2 - y1) - float(dot.get("cy"))

    assert off(on) == pytest.approx(0, abs=0.2) and off(above) == pytest.approx(0.25 * (y1 - y2), abs=0.2)
    assert above[0].text == "greedy: predicted 50.0%, accepted 75.0%"


def test_lines_and_cells():
    svg = drawing.lines({"plain": [], "eagle": [0.9, 0.5]}, "acceptance", "depth")
    assert [len(line.get("points").split()) for line in parts(svg, "polyline")] == [0, 2]
    assert [dot[0].text for dot in parts(svg, "circle")] == ["eagle, depth 1: 90.0%", "eagle, depth 2: 50.0%"]
    named = drawing.lines({"plain": [], "eagle": [0.9, 0.5]}, "acceptance", "depth", legend=True)
    assert [text.text for text in parts(named, "text")][-2:] == ["plain", "eagle"]
    cells = parts(drawing.grid({"eagle": [0.25, 0.75]}, "lengths", "tokens"), "rect")
    assert float(cells[0].get("fill-opacity")) < float(cells[1].get("fill-opacity"))


def test_a_tree_shows_its_path():
    svg = drawing.tree(PARENTS, TEXTS, [0, 1, 3], " sat", "tree")
    looks = [box.get("class") for box in parts(svg, "rect")]
    assert looks.count("node taken") == 3 and looks.count("node left") == 3 and looks.count("node drawn") == 1
    shown = [text.text for text in parts(svg, "text")]
    assert shown == ["the", "␣cat", "<b>", "⏎", "∅", "a␣rather␣l…", "␣sat"]
    assert len(parts(svg, "path")) == 6
    height = float(svg.split('viewBox="0 0 860 ')[1].split('"')[0])
    assert all(0 <= float(box.get("y")) and float(box.get("y")) + 18 <= height for box in parts(svg, "rect"))
    columns = [float(box.get("x")) for box in parts(svg, "rect")]
    assert columns[0] < columns[1] == columns[2] < columns[3] == columns[4] < columns[5] == columns[6] < 860


def test_a_root_alone_is_a_tree():
    assert len(parts(drawing.tree([-1], ["a"], [0], "b", "tree"), "rect")) == 2


def test_a_figure_of_its_own_brings_its_style():
    svg = drawing.standalone(drawing.tree(PARENTS, TEXTS, [0, 1, 3], " sat", "tree"))
    (style,) = parts(svg, "style")
    assert all(f"--{name}:" in style.text for name in ("page", "ink", "taken")) and parts(svg, "rect")[0].get("class")
