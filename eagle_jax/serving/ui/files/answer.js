// An answer as it comes: a span for each pass of the model, and in it a span for each token.

import { element } from "./dom.js";

/**
 * What was written of one answer.
 *
 * A pass is `{tokens: [{id, text}], drafted, seconds, tree}`: the first `drafted` of its tokens were guessed and
 * accepted, the last is the model's own. `seconds` count from the first token; the first pass only holds that.
 */
export class Answer {
  constructor(place) {
    this.place = place;
    this.passes = [];
    this.spans = [];
    this.text = "";
    this.tokens = 0;
    this.seconds = 0;
  }

  add(pass) {
    const number = this.passes.push(pass) - 1;
    const span = element("span", number === 0 ? "pass" : `pass shade${number % 2}`);
    span.dataset.pass = number;
    pass.tokens.forEach((token, place) => {
      const guessed = place < pass.drafted;
      const shown = element("span", guessed ? "guessed" : "own", token.text);
      shown.title = number === 0 ? "came with the prompt" : `pass ${number}, ${guessed ? "guessed" : "the model’s own"}`;
      if (token.text) span.append(shown);
      this.text += token.text;
    });
    this.tokens += pass.tokens.length;
    this.seconds = pass.seconds;
    this.spans.push(span);
    this.place.append(span);
  }

  /** Passes of the model after the one that read the prompt. */
  get steps() {
    return Math.max(this.passes.length - 1, 0);
  }

  /** Tokens a second after the first token; not a number before there is a second one. */
  get speed() {
    return this.seconds > 0 ? (this.tokens - 1) / this.seconds : NaN;
  }

  /** Mean accepted length: tokens a pass, the model's own included. */
  get length() {
    return this.steps ? (this.tokens - 1) / this.steps : NaN;
  }

  /** Marks one pass as the one that is looked at; none for 0. */
  point(number) {
    this.spans.forEach((span, place) => span.classList.toggle("looked-at", number > 0 && place === number));
  }
}
