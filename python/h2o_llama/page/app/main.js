// The page of `h2o-llama serve`. Each file is a part of it. The conversation's events connect them.

import "./documents.js";
import "./questions.js";
import { begin, choose, events, isFixed } from "./conversation.js";
import * as library from "./library.js";
import * as model from "./model.js";

// On a small screen the conversation is below the panels.
const isNarrow = matchMedia("(max-width: 50em)");
function fold({ type }) {
  if (!isNarrow.matches && type !== "change") return;
  for (const panel of document.querySelectorAll("details:has(h2)")) {
    panel.open = !isNarrow.matches || panel.className !== "more" && !isFixed();
  }
}
isNarrow.addEventListener("change", fold);
for (const name of ["opened", "changed"]) events.addEventListener(name, fold);

if (!await choose(sessionStorage.getItem("conversation") ?? "").catch(() => false)) await begin(); // as before a reload
await model.show();
events.dispatchEvent(new Event("changed"));
await library.show();
