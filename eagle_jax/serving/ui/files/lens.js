// Beside the conversation: how fast an answer comes, and the draft tree of one of its passes.

import { $, figure } from "./dom.js";
import { draw } from "./tree.js";

const PAUSE = 120; // milliseconds between two drawings while an answer comes

let answer = null, number = 0, follows = true, drawn = -Infinity;

/** Looks at an answer from now on; null at none. */
export function look(at) {
  answer?.point(0);
  [answer, number, follows, drawn] = [at, 0, true, -Infinity];
  $("figure").hidden = true;
  $("before").hidden = at !== null;
  $("figures").hidden = at === null;
  tell();
}

/** There is more of the answer; the drawing follows its last pass unless another one was chosen. */
export function more() {
  tell();
  if (follows && performance.now() - drawn > PAUSE) last();
}

/** The answer is complete. */
export function rest() {
  tell();
  if (follows) last();
}

/** Shows one pass, the nearest that has a tree in the direction of `step`. */
function show(wanted, step) {
  let at = wanted;
  while (at > 0 && at < answer.passes.length && !answer.passes[at].tree) at += step;
  const pass = answer?.passes[at];
  if (!pass?.tree) return;
  number = at;
  drawn = performance.now();
  const { texts, accepted } = pass.tree;
  $("which").textContent = `Pass ${at} of ${answer.steps}: ${accepted.length - 1} of ${texts.length - 1} guesses accepted`;
  $("pass").max = answer.steps;
  $("pass").value = at;
  $("figure").hidden = false;
  draw($("drawing"), pass.tree);
  if (!follows) answer.point(at);
}

function last() {
  if (answer) show(answer.passes.length - 1, -1);
}

function choose(wanted, step) {
  follows = false;
  show(wanted, step);
}

function tell() {
  $("speed").textContent = answer ? figure(answer.speed) : "–";
  $("length").textContent = answer ? figure(answer.length) : "–";
  $("passes").textContent = answer?.steps || "–";
}

$("earlier").addEventListener("click", () => choose(Math.max(number - 1, 1), -1));
$("later").addEventListener("click", () => choose(number + 1, 1));
$("pass").addEventListener("input", (event) => choose(Number(event.target.value), 1));

/** A click on a token of an answer shows its pass. */
export function pointAt(at, pass) {
  if (at !== answer) look(at);
  choose(pass, 1);
}
