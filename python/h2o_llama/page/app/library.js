// The library: each document with its conversations, and what the server has kept of it.

import { $, bytes, element, tokens } from "./elements.js";
import { length } from "./documents.js";
import { begin, choose, current, events, remove } from "./conversation.js";
import { call, get } from "./server.js";
import * as store from "./store.js";

const MILLISECONDS = 2000; // in which the server adds the text of an answer
const BEGIN = 1000; // characters of a document that may be the name of its text

let texts = []; // which the server has read, and need not read again

export async function show() {
  const library = await get("h2o/library").catch(() => null); // this server has none
  texts = library?.texts ?? [];
  $("used").textContent = library ? `The server keeps ${bytes(library.n_bytes)} of at most ${bytes(library.limit_bytes)}.` : "";
  await list();
}

async function list() {
  showState();
  const rows = new Map();
  const row = (document, name = "Without a document") => {
    const key = document ? `${document.n_tokens} ${document.name}` : name;
    if (!rows.has(key)) rows.set(key, { document, name: document?.name ?? name, texts: [], conversations: [] });
    return rows.get(key);
  };
  try {
    const documents = new Map((await store.documents()).map((document) => [document.id, document]));
    for (const conversation of await store.conversations()) {
      row(documents.get(conversation.documents[0])).conversations.push(conversation);
    }
    for (const text of texts) row(documentOf(text, [...documents.values()]), text.name).texts.push(text);
  } catch (error) {
    $("library-error").textContent = `The browser cannot keep conversations: ${error.message}`;
  }
  $("texts").replaceChildren(...[...rows.values()].map(item));
}

function showState() {
  const { documents } = current;
  const n = length(current);
  const isRead = n > 0 && texts.some((text) => text.n_tokens >= n && isOf(text, documents[0]));
  $("state").textContent = isRead ? `; ${documents.length > 1 ? "these documents have" : "this document has"} been read` : "";
}

function item({ document, name, texts, conversations }) {
  const title = document ? button(name, `New conversation about ${name}`, () => begin([document])) : element("span", {}, name);
  title.classList.add("name");
  const deletes = texts.length ? [quiet(`Delete ${name} from the server`, () => removeTexts(texts))] : [];
  const facts = document || texts.length ? [tokens(document?.n_tokens ?? Math.max(...texts.map((text) => text.n_tokens)))] : [];
  if (texts.length) {
    const last = Math.max(...texts.map(({ used }) => new Date(used)));
    const size = bytes(texts.reduce((sum, { n_bytes }) => sum + n_bytes, 0));
    facts.push(size, `used ${new Date(last).toLocaleString("en", { month: "short", day: "numeric" })}`);
  }
  return element("li", {}, title, ...deletes, element("span", { className: "facts faint" }, facts.join(" · ")),
    element("ul", {}, ...conversations.map(conversationItem)));
}

function conversationItem({ id, title }) {
  const opens = button(title, "", async () => {
    if (!await choose(id)) await list(); // another window has deleted it
  });
  Object.assign(opens, { className: "name", ariaCurrent: String(id === current.id) });
  const deletes = quiet(`Delete ${title}`, async () => {
    if (!confirm(`Delete the conversation “${title}”?`)) return;
    await remove(id);
    $("again").focus();
  });
  return element("li", {}, opens, deletes);
}

function button(text, title, work) {
  const made = element("button", { type: "button", title }, text);
  made.addEventListener("click", async () => {
    await work();
    $("question").focus();
  });
  return made;
}

function quiet(label, work) {
  const made = element("button", { type: "button", className: "quiet", ariaLabel: label }, "Delete");
  made.addEventListener("click", work);
  return made;
}

// A text's name is that of its file, or the beginning of its first document. The server does not return texts.
function isOf({ name, n_tokens }, document) {
  const begin = name.replace(/…$/, "");
  return document.n_tokens <= n_tokens && (document.name === name || begin && line(document.text).startsWith(begin));
}

const line = (text) => text.slice(0, BEGIN).trim().split(/\s+/).join(" ");

const documentOf = (text, documents) => documents.filter((document) => isOf(text, document))
  .reduce((longest, document) => document.n_tokens > (longest?.n_tokens ?? 0) ? document : longest, undefined);

async function removeTexts(texts) {
  $("library-error").textContent = "";
  for (const { id } of texts) {
    await call(`h2o/library/${encodeURIComponent(id)}`, { method: "DELETE" })
      .catch((error) => { $("library-error").textContent = error.message; });
  }
  await show();
  $("library").querySelector("summary").focus();
}

for (const name of ["opened", "kept", "changed"]) events.addEventListener(name, list);
document.addEventListener("visibilitychange", list); // another window may have changed them
events.addEventListener("answered", () => setTimeout(show, MILLISECONDS));
$("again").addEventListener("click", async () => {
  await begin();
  $("question").focus();
});
