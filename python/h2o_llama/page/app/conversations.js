// The list of conversations.

import { $, element } from "./elements.js";
import { begin, choose, current, events, remove } from "./conversation.js";
import * as store from "./store.js";

async function list() {
  const conversations = await store.conversations();
  $("conversations").replaceChildren(...conversations.map(({ id, title }) => {
    const name = element("button", { type: "button", className: "name", ariaCurrent: String(id === current.id) }, title);
    name.addEventListener("click", async () => {
      if (!await choose(id)) show(); // another window has deleted it
      $("question").focus();
    });
    const deletes = element("button", { type: "button", ariaLabel: `Delete ${title}` }, "Delete");
    deletes.addEventListener("click", async () => {
      if (!confirm(`Delete the conversation “${title}”?`)) return;
      await remove(id);
      $("again").focus();
    });
    return element("li", {}, name, deletes);
  }));
}

function show() {
  list().catch((error) => { $("error").textContent = `The browser cannot keep conversations: ${error.message}`; });
}

events.addEventListener("opened", show);
events.addEventListener("kept", show);
document.addEventListener("visibilitychange", show); // another window may have changed them
$("again").addEventListener("click", async () => {
  await begin();
  $("question").focus();
});
