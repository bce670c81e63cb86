// The server's library: texts that it has read, and their size.

import { $, bytes, element, tokens } from "./elements.js";
import { begin, events } from "./conversation.js";
import { call, get } from "./server.js";
import * as store from "./store.js";

const MILLISECONDS = 2000; // in which the server adds the text of an answer
const BEGIN = 1000; // characters of a document that may be the name of its text

export async function show() {
  let library;
  try {
    library = await get("h2o/library");
  } catch {
    $("library").hidden = true; // this server has none
    return;
  }
  const documents = await store.documents().catch(() => []);
  $("used").max = library.limit_bytes;
  $("used").value = library.n_bytes;
  $("used-text").textContent = `${bytes(library.n_bytes)} of ${bytes(library.limit_bytes)} used`;
  $("texts").replaceChildren(...library.texts.map((text) => item(text, documentOf(text, documents))));
  $("library").hidden = false;
}

function item({ id, name, n_tokens, n_bytes, used }, document) {
  const title = document
    ? element("button", { type: "button", className: "name", title: `New conversation about ${document.name}` }, name)
    : element("span", { className: "name", title: "No conversation in this browser has this document" }, name);
  if (document) {
    title.addEventListener("click", async () => {
      await begin([document]);
      $("question").focus();
    });
  }
  const last = new Date(used).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
  const facts = element("span", { className: "faint" }, `${tokens(n_tokens)}, ${bytes(n_bytes)}, used ${last}`);
  const deletes = element("button", { type: "button", ariaLabel: `Delete ${name}` }, "Delete");
  deletes.addEventListener("click", () => remove(id));
  return element("li", {}, title, facts, deletes);
}

// A text's name is that of its file, or the beginning of its first document. The server does not return texts.
function documentOf({ name, n_tokens }, documents) {
  const begin = name.replace(/…$/, "");
  return documents
    .filter((document) => document.n_tokens <= n_tokens && (document.name === name || begin && line(document.text).startsWith(begin)))
    .reduce((longest, document) => document.n_tokens > (longest?.n_tokens ?? 0) ? document : longest, undefined);
}

const line = (text) => text.slice(0, BEGIN).trim().split(/\s+/).join(" ");

async function remove(id) {
  $("library-error").textContent = "";
  try {
    await call(`h2o/library/${encodeURIComponent(id)}`, { method: "DELETE" });
  } catch (error) {
    $("library-error").textContent = error.message;
  }
  await show();
  $("library").querySelector("summary").focus();
}

events.addEventListener("answered", () => setTimeout(show, MILLISECONDS));
