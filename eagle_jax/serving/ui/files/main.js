// Brings the page to life: what the model is, the two views, the key.

import * as chat from "./chat.js";
import { $, complain } from "./dom.js";
import * as race from "./race.js";
import { about, keepKey } from "./server.js";
import { offer } from "./settings.js";

const TABS = ["chat", "race"];

function view(name) {
  for (const tab of TABS) {
    const chosen = tab === name;
    $(tab).hidden = !chosen;
    $(`to-${tab}`).setAttribute("aria-selected", String(chosen));
    $(`to-${tab}`).tabIndex = chosen ? 0 : -1;
  }
}

function tabs() {
  for (const tab of TABS) {
    $(`to-${tab}`).addEventListener("click", () => history.replaceState(null, "", `#${tab}`) ?? view(tab));
    $(`to-${tab}`).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      const other = TABS.find((name) => name !== tab);
      $(`to-${other}`).click();
      $(`to-${other}`).focus();
    });
  }
  view(location.hash === "#race" ? "race" : "chat");
}

async function begin() {
  tabs();
  $("settings").open = matchMedia("(min-width: 48rem)").matches;
  const told = await about();
  if (told === null) return askForKey();
  $("about").textContent = `${told.model} on ${told.device}`;
  document.title = `${told.model} · eagle_jax`;
  offer(told);
  chat.suggest(told.suggestions);
  race.suggest(told.suggestions[0]);
  document.body.classList.add("ready");
}

function askForKey() {
  $("ask-key").showModal();
  $("ask-key").addEventListener("close", () => {
    keepKey($("key").value);
    location.reload();
  });
}

begin().catch((error) => complain($("chat-error"), error.message));
