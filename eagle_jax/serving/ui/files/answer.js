// An answer as it comes: a span for each step, and in it a span for each token.

import { element } from "./dom.js";

/**
 * What was written of one answer.
 *
 * A step is `{tokens: [{id, text, aside}], drafted, seconds, tree}`: the first `drafted` of its tokens were guessed and
 * accepted, the last is the model's own. `seconds` count from the first token; the first step only holds that.
 * Of models that reason, `aside` tells tokens that are no part of the answer itself, and a step has what it adds to
 * both as `content` and `reasoning_content`.
 */
export class Answer {
  constructor(place) {
    this.place = place;
    this.pieces = [];
    this.spans = [];
    this.text = "";
    this.reasoning = "";
    this.tokens = 0;
    this.seconds = 0;
  }

  add(step) {
    const number = this.pieces.push(step) - 1;
    const span = element("span", number === 0 ? "step" : `step shade${number % 2}`);
    span.dataset.step = number;
    step.tokens.forEach((token, place) => {
      const guessed = place < step.drafted;
      const shown = element("span", `${guessed ? "guessed" : "own"}${token.aside ? " aside" : ""}`, token.text);
      shown.title = number === 0 ? "came with the prompt" : `step ${number}, ${guessed ? "guessed" : "the model’s own"}`;
      if (token.text) span.append(shown);
    });
    this.text += step.content ?? step.tokens.map((token) => token.text).join("");
    this.reasoning += step.reasoning_content ?? "";
    this.tokens += step.tokens.length;
    this.seconds = step.seconds;
    this.spans.push(span);
    this.place.append(span);
  }

  /** Steps after the one that read the prompt. */
  get steps() {
    return Math.max(this.pieces.length - 1, 0);
  }

  /** Tokens a second after the first token; not a number before there is a second one. */
  get speed() {
    return this.seconds > 0 ? (this.tokens - 1) / this.seconds : NaN;
  }

  /** Mean accepted length: tokens a step, the model's own included. */
  get length() {
    return this.steps ? (this.tokens - 1) / this.steps : NaN;
  }

  /** Marks one step as the one that is looked at; none for 0. */
  point(number) {
    this.spans.forEach((span, place) => span.classList.toggle("looked-at", number > 0 && place === number));
  }
}
