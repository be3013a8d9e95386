// Elements by name. Text of the model is only ever set as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** A new element with a class, text, and children. */
export function element(name, look = "", text = "", ...children) {
  const made = document.createElement(name);
  if (look) made.className = look;
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

/** Shows a sentence in a place for errors; none hides the place. */
export function complain(place, sentence = "") {
  place.textContent = sentence;
  place.hidden = !sentence;
}

/** A text area that is as high as its text, and whose Enter submits its form (Shift-Enter is a new line). */
export function writing(area) {
  const fit = () => {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + 2}px`;
  };
  area.addEventListener("input", fit);
  area.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    area.form.requestSubmit();
  });
  return (text) => {
    area.value = text;
    fit();
  };
}

/** A number as one reads it: 3.72, 48.1, 214; a dash for none. */
export function figure(number) {
  if (number === null || !Number.isFinite(number)) return "–";
  return number.toFixed(number < 10 ? 2 : number < 100 ? 1 : 0);
}

/** "1 step", "2 steps". */
export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}
