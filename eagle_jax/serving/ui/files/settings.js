// The options of a request: what the model has to offer, and what is chosen.

import { $, element } from "./dom.js";

let drafters = [];

/** Fills in what the model has; `about` is the server's. */
export function offer(about) {
  drafters = about.drafters;
  $("drafter").replaceChildren(
    ...drafters.map((drafter) => {
      const option = element("option", "", drafter.title);
      option.value = drafter.name;
      return option;
    }),
  );
  $("drafter").value = about.drafter ?? drafters[0].name;
  $("drafting").checked = about.drafter !== null;
  $("max_tokens").max = about.max_tokens;
  choose("tree", about.tree);
  show();
  $("options").addEventListener("input", show);
  $("options").addEventListener("submit", (event) => event.preventDefault());
}

/** The drafter that is chosen, whether it is on or not. */
export function drafter() {
  return drafters.find((one) => one.name === $("drafter").value);
}

/** What is chosen, as the server wants it. */
export function chosen() {
  return {
    drafter: $("drafting").checked ? $("drafter").value : "none",
    tree: drafter().trees ? tree() : "auto",
    temperature: number("temperature") ?? 0,
    top_p: number("top_p") ?? 1,
    max_tokens: number("max_tokens"),
    seed: number("seed") ?? 0,
  };
}

/** Another seed, where sampling makes it another answer. */
export function nextSeed() {
  if (number("temperature") > 0) $("seed").value = number("seed") + 1;
  show();
}

function tree() {
  if ($("tree").value !== "custom") return $("tree").value;
  const numbers = $("shape").value.split(",").map((part) => (part.trim() ? Number(part) : NaN));
  return numbers.every(Number.isInteger) ? numbers : $("shape").value;
}

function choose(id, value) {
  const known = [...$(id).options].some((option) => option.value === value);
  if (known) $(id).value = value;
  else if (Array.isArray(value)) {
    $(id).value = "custom";
    $("shape").value = value.join(", ");
  }
}

function number(id) {
  return $(id).value === "" ? null : Number($(id).value);
}

function show() {
  const { title, trees } = drafter(), on = $("drafting").checked;
  $("drafting-name").textContent = title;
  $("drafter").disabled = !on;
  $("tree").disabled = !on || !trees;
  $("custom").hidden = !on || !trees || $("tree").value !== "custom";
  const heat = number("temperature") > 0 ? `temperature ${$("temperature").value}` : "greedy";
  $("in-short").textContent = `${on ? title : `${title} off`}, ${heat}, seed ${$("seed").value}`;
}
