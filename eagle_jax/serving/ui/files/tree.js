// A draft tree from left to right: what was committed in colour, and the token that the model drew at its end.

const SVG = "http://www.w3.org/2000/svg";
const LINE = 21, HIGH = 17, GAP = 22, LETTER = 6.4, NARROW = 34, WIDE = 92;

/**
 * Draws a tree into `place`, as it is in the server's events: `{texts, parents, accepted, drawn}`, where parents
 * come before children, node 0 is the root, and `accepted` are the committed nodes, root first. Nothing is drawn where
 * the answer ends with a guess.
 */
export function draw(place, tree) {
  const leaf = tree.texts.length;
  const own = tree.drawn === null ? [] : [tree.drawn];
  const texts = [...tree.texts, ...own].map(visible);
  const parents = [...tree.parents, ...own.map(() => tree.accepted.at(-1))];
  const look = parents.map((_, node) => {
    if (node === 0) return "root";
    return node === leaf ? "drawn" : tree.accepted.includes(node) ? "taken" : "left";
  });
  const { column, row, rows } = places(parents);
  const columns = Math.max(...column) + 1;

  const widths = Array(columns).fill(NARROW);
  texts.forEach((text, node) => {
    widths[column[node]] = Math.max(widths[column[node]], Math.min(WIDE, text.length * LETTER + 14));
  });
  const left = widths.map((_, at) => widths.slice(0, at).reduce((sum, width) => sum + width + GAP, 1));
  const width = left.at(-1) + widths.at(-1) + 1, height = rows * LINE + 2;
  const at = parents.map((_, node) => [left[column[node]], row[node] * LINE + LINE / 2 + 1]);

  const guessed = tree.accepted.slice(1).map((node) => texts[node]);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.setAttribute(
    "aria-label",
    `Draft tree of ${leaf - 1} guesses after ${texts[0]}. Accepted: ${guessed.join(", ") || "none"}. ` +
      (own.length ? `The model’s own token: ${texts[leaf]}.` : "The answer ends here."),
  );
  const order = parents.map((_, node) => node).sort((one, other) => (look[one] !== "left") - (look[other] !== "left"));
  for (const node of order) {
    if (parents[node] < 0) continue;
    const [x1, y1] = at[parents[node]], [x2, y2] = at[node], start = x1 + widths[column[parents[node]]];
    const bend = (start + x2) / 2;
    svg.append(make("path", { class: `branch ${look[node]}`, d: `M${start},${y1}C${bend},${y1} ${bend},${y2} ${x2},${y2}` }));
  }
  for (const node of order) {
    const [x, y] = at[node], wide = widths[column[node]];
    const box = make("rect", { class: `node ${look[node]}`, x, y: y - HIGH / 2, width: wide, height: HIGH, rx: 4 });
    const text = make("text", { class: look[node], x: x + wide / 2, y: y + 4, "text-anchor": "middle" });
    const title = make("title", {});
    title.textContent = texts[node];
    text.textContent = short(texts[node], Math.floor((wide - 10) / LETTER));
    box.append(title);
    svg.append(box, text);
  }
  place.replaceChildren(svg);
}

/** Column and row of each node: a leaf takes a row, others stand between their children. */
function places(parents) {
  const children = parents.map(() => []);
  const column = parents.map(() => 0), row = parents.map(() => 0);
  parents.forEach((parent, node) => parent >= 0 && children[parent].push(node));
  let rows = 0;
  const settle = (node) => {
    for (const child of children[node]) {
      column[child] = column[node] + 1;
      settle(child);
    }
    const own = children[node].map((child) => row[child]);
    row[node] = own.length ? own.reduce((sum, each) => sum + each) / own.length : rows++;
  };
  settle(0);
  return { column, row, rows };
}

function visible(text) {
  return text.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "∅";
}

function short(text, letters) {
  const all = [...text];
  return all.length <= letters ? text : `${all.slice(0, Math.max(letters - 1, 1)).join("")}…`;
}

function make(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}
