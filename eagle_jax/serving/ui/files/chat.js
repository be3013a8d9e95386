// The conversation: send, stop, regenerate, clear.

import { Answer } from "./answer.js";
import { $, complain, count, element, figure, writing } from "./dom.js";
import * as lens from "./lens.js";
import { events } from "./server.js";
import { chosen, nextSeed } from "./settings.js";

let turns = []; // {element, role, content, reasoning}, in order
let asking = null; // the AbortController of the answer that is coming

const write = writing($("message"));

/** Offers questions to begin with. */
export function suggest(questions) {
  $("suggestions").replaceChildren(
    ...questions.map((question) => {
      const button = element("button", "suggestion", question);
      button.type = "button";
      button.addEventListener("click", () => send(question));
      return element("li", "", "", button);
    }),
  );
}

async function send(text) {
  if (asking || !text.trim()) return;
  write("");
  add("user", text, element("div", "said", text));
  await answer();
}

async function answer() {
  const request = chosen();
  const place = element("div", request.drafter === "none" ? "said undrafted" : "said"), foot = element("p", "foot");
  const written = new Answer(place), entry = add("assistant", "", place, foot);
  place.setAttribute("aria-busy", "true");
  place.addEventListener("click", ({ target }) => {
    const step = Number(target.closest(".step")?.dataset.step ?? 0);
    if (step) lens.pointAt(written, step);
  });
  lens.look(written);
  asking = new AbortController();
  buttons();
  complain($("chat-error"));
  const messages = turns.slice(0, -1).map(({ role, content, reasoning }) => ({
    role,
    content,
    ...(reasoning ? { reasoning_content: reasoning } : {}),
  }));
  let complete = false, failed = false;
  try {
    for await (const event of events("ui/chat", { messages, ...request }, asking.signal)) {
      if (event.preparing) foot.textContent = "Preparing this way to draft; once for each …";
      if (event.tokens) {
        foot.textContent = "";
        following(() => written.add(event));
        entry.content = written.text;
        entry.reasoning = written.reasoning;
        lens.more();
      }
      if (event.done) {
        foot.textContent = summary(event.done);
        complete = true;
      }
    }
  } catch (error) {
    const stopped = asking.signal.aborted;
    foot.textContent = stopped ? `stopped after ${count(written.tokens, "token")}` : "";
    failed = !stopped;
    if (failed) complain($("chat-error"), error.message);
  }
  asking = null;
  place.removeAttribute("aria-busy");
  if (!complete && !written.tokens) remove(2);
  lens.rest();
  $("status").textContent = failed ? "" : `Answer complete: ${foot.textContent}`;
  buttons();
}

/** Takes back the last turns; a question that got no answer goes back to where it was written. */
function remove(number) {
  for (const { element: shown, role, content } of turns.splice(-number)) {
    shown.remove();
    if (role === "user" && !$("message").value) write(content);
  }
}

function add(role, content, ...children) {
  const name = element("h2", "unseen", role === "user" ? "You" : "Answer");
  const entry = { role, content, element: element("div", `turn ${role}`, "", name, ...children) };
  turns.push(entry);
  following(() => $("talk").append(entry.element), true);
  return entry;
}

/** Changes the page and stays at its end, for those who are there already. */
function following(change, always = false) {
  const page = document.documentElement;
  const atEnd = page.scrollHeight - page.scrollTop - page.clientHeight < 60;
  change();
  if (always || atEnd) page.scrollTop = page.scrollHeight;
}

function summary({ steps, length, tokens_per_second: speed, tokens, reason }) {
  const parts = [count(tokens, "token")];
  if (steps) parts.push(`${count(steps, "step", "steps")} of ${figure(length)}`);
  if (speed !== null) parts.push(`${figure(speed)} tokens a second`);
  if (reason === "length") parts.push("ended by its length");
  return parts.join(" · ");
}

function buttons() {
  $("send").hidden = asking !== null;
  $("stop").hidden = asking === null;
  $("empty").hidden = turns.length > 0;
  $("again").disabled = asking !== null || turns.at(-1)?.role !== "assistant";
  $("clear").disabled = asking !== null || !turns.length;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send($("message").value);
});
$("stop").addEventListener("click", () => {
  asking?.abort();
  $("message").focus();
});
$("again").addEventListener("click", () => {
  remove(1);
  nextSeed();
  answer();
});
$("clear").addEventListener("click", () => {
  for (const turn of turns.splice(0)) turn.element.remove();
  complain($("chat-error"));
  lens.look(null);
  buttons();
  $("message").focus();
});
