// One prompt and one seed decoded twice, side by side.

import { Answer } from "./answer.js";
import { $, complain, count, element, figure, writing } from "./dom.js";
import { events } from "./server.js";
import { chosen, drafter } from "./settings.js";

const write = writing($("prompt"));
let racing = null;

/** One of the two: its clock, its bar, its text. */
class Lane {
  constructor(id) {
    this.place = $(`lane-${id}`);
    this.name = element("h2");
    this.name.id = `name-${id}`;
    this.clock = element("p", "clock", "0.00 s");
    this.bar = element("span", "fill");
    this.said = element("div", id === "plain" ? "said undrafted" : "said");
    this.facts = element("p", "foot");
    const track = element("div", "track", "", this.bar);
    track.setAttribute("aria-hidden", "true");
    this.place.replaceChildren(element("div", "head", "", this.name, this.clock), track, this.said, this.facts);
    this.begin("");
  }

  begin(name) {
    this.name.textContent = name;
    this.clock.textContent = "0.00 s";
    this.facts.textContent = "";
    this.said.replaceChildren();
    this.place.classList.remove("first", "under-way");
    this.answer = new Answer(this.said);
    this.fill(0);
  }

  add(step) {
    this.answer.add(step);
    this.place.classList.add("under-way");
    this.clock.textContent = `${step.seconds.toFixed(2)} s`;
    const steps = this.answer.steps ? `, ${figure(this.answer.length)} a step` : "";
    this.facts.textContent = `${count(this.answer.tokens, "token")}${steps}`;
  }

  end(done) {
    this.clock.textContent = `${done.seconds.toFixed(2)} s`;
    const parts = [count(done.tokens, "token"), `${count(done.steps, "step", "steps")} of ${figure(done.length)}`];
    if (done.tokens_per_second !== null) parts.push(`${figure(done.tokens_per_second)} tokens a second`);
    this.facts.textContent = parts.join(" · ");
  }

  fill(share) {
    this.bar.style.inlineSize = `${100 * share}%`;
  }
}

const lanes = { plain: new Lane("plain"), drafted: new Lane("drafted") };

async function race(prompt) {
  racing = new AbortController();
  lanes.plain.begin("One token a step");
  lanes.drafted.begin(`With ${drafter().title}`);
  buttons();
  complain($("race-error"));
  $("verdict").className = "";
  const request = { ...chosen(), drafter: drafter().name, messages: [{ role: "user", content: prompt }] };
  try {
    for await (const event of events("ui/race", request, racing.signal)) {
      if (event.preparing) $("verdict").textContent = "Preparing both; neither clock runs yet …";
      const lane = lanes[event.lane];
      if (event.tokens) {
        $("verdict").textContent = "";
        lane.add(event);
        compare();
      }
      if (event.done) finish(lane, event.done);
      if (event.verdict) judge(event.verdict);
    }
  } catch (error) {
    $("verdict").textContent = racing.signal.aborted ? "Stopped." : "";
    if (!racing.signal.aborted) complain($("race-error"), error.message);
  }
  racing = null;
  buttons();
}

/** The bars: the lane that leads has a full one. */
function compare() {
  const both = Object.values(lanes), most = Math.max(...both.map((lane) => lane.answer.tokens));
  for (const lane of both) lane.fill(lane.answer.tokens / most);
}

function finish(lane, done) {
  lane.end(done);
  const decided = Object.values(lanes).some((other) => other.place.classList.contains("first"));
  lane.place.classList.toggle("first", !decided);
  lane.place.classList.remove("under-way");
}

function judge({ identical, tokens, same, times }) {
  const faster = times === null ? "" : times >= 1 ? `, ${figure(times)} times as fast` : `, at ${figure(times)} of the speed`;
  const strong = element("strong", "", identical ? "Identical text." : "The texts part");
  const more = identical
    ? `${count(tokens, "token")}, one by one the same${faster}.`
    : `after ${count(same, "token")}: two next tokens were tied but for the rounding of this number format${faster}.`;
  $("verdict").replaceChildren(strong, ` ${more}`);
  $("verdict").className = identical ? "same" : "parted";
}

function buttons() {
  $("go").hidden = racing !== null;
  $("halt").hidden = racing === null;
}

/** A prompt to begin with. */
export function suggest(question) {
  if (!$("prompt").value) write(question);
}

$("start").addEventListener("submit", (event) => {
  event.preventDefault();
  const prompt = $("prompt").value;
  if (!racing && prompt.trim()) race(prompt);
});
$("halt").addEventListener("click", () => racing?.abort());
