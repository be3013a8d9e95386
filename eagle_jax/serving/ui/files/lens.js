// Beside the conversation: how fast an answer comes, and the draft tree of one of its steps.

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

/** There is more of the answer; the drawing follows its last step unless another one was chosen. */
export function more() {
  tell();
  if (follows && performance.now() - drawn > PAUSE) last();
}

/** The answer is complete. */
export function rest() {
  tell();
  if (follows) last();
}

/** Shows one step, the nearest that has a tree in that direction. */
function show(wanted, direction) {
  let at = wanted;
  while (at > 0 && at < answer.pieces.length && !answer.pieces[at].tree) at += direction;
  const step = answer?.pieces[at];
  if (!step?.tree) return;
  number = at;
  drawn = performance.now();
  const { texts, accepted } = step.tree;
  $("which").textContent = `Step ${at} of ${answer.steps}: ${accepted.length - 1} of ${texts.length - 1} guesses accepted`;
  $("step").max = answer.steps;
  $("step").value = at;
  $("figure").hidden = false;
  draw($("drawing"), step.tree);
  if (!follows) answer.point(at);
}

function last() {
  if (answer) show(answer.pieces.length - 1, -1);
}

function choose(wanted, direction) {
  follows = false;
  show(wanted, direction);
}

function tell() {
  $("speed").textContent = answer ? figure(answer.speed) : "–";
  $("length").textContent = answer ? figure(answer.length) : "–";
  $("steps").textContent = answer?.steps || "–";
}

$("earlier").addEventListener("click", () => choose(Math.max(number - 1, 1), -1));
$("later").addEventListener("click", () => choose(number + 1, 1));
$("step").addEventListener("input", (event) => choose(Number(event.target.value), 1));

/** A click on a token of an answer shows its step. */
export function pointAt(at, step) {
  if (at !== answer) look(at);
  choose(step, 1);
}
