// The library: each document with its conversations, and what the server has kept of it.

import { begin, choose, current, events, remove } from "./conversation.js";
import { length } from "./documents.js";
import { $, button, bytes, element, tokens } from "./elements.js";
import { call, get } from "./server.js";
import * as store from "./store.js";

const MILLISECONDS = 2000; // in which the server adds the text of an answer

let texts = []; // which the server has read, and need not read again

export async function show() {
  const library = await get("h2o/library").catch(() => null); // this server has none
  texts = library?.texts ?? [];
  $("used").textContent = library ? `The server keeps ${bytes(library.n_bytes)} of at most ${bytes(library.limit_bytes)}.` : "";
  await list();
}

async function list() {
  const { documents: own } = current, n = length(current);
  const isRead = n && texts.some((text) => text.n_tokens >= n && isOf(text, own[0]));
  $("state").textContent = isRead ? `; ${own.length > 1 ? "these documents have" : "this document has"} been read` : "";
  const rows = new Map();
  const rowOf = (document, name = "Without a document") => {
    const key = document ? `${document.name}\n${document.text}` : name;
    if (!rows.has(key)) rows.set(key, { document, name: document?.name ?? name, texts: [], conversations: [] });
    return rows.get(key);
  };
  try {
    const conversations = await store.all();
    for (const conversation of conversations) rowOf(conversation.documents[0]).conversations.push(conversation);
    const documents = conversations.flatMap(({ documents }) => documents).sort((a, b) => b.n_tokens - a.n_tokens);
    for (const text of texts) rowOf(documents.find((document) => isOf(text, document)), text.name).texts.push(text);
  } catch (error) {
    $("library-error").textContent = `The browser cannot keep conversations: ${error.message}`;
  }
  $("texts").replaceChildren(...[...rows.values()].map(item));
}

// The texts of one document share their beginning, so the largest counts.
function item({ document, name, texts, conversations }) {
  const facts = [document, ...texts].filter(Boolean).slice(0, 1).map(({ n_tokens }) => tokens(n_tokens));
  if (texts.length) {
    const last = new Date(Math.max(...texts.map(({ used }) => new Date(used))));
    facts.push(bytes(Math.max(...texts.map(({ n_bytes }) => n_bytes))));
    facts.push(`used ${last.toLocaleString("en", { month: "short", day: "numeric" })}`);
  }
  return element("li", {},
    document ? opener(name, `New conversation about ${name}`, () => begin([document])) : element("span", { className: "name" }, name),
    texts.length ? deleter(`Delete ${name} from the server`, () => removeTexts(texts)) : "",
    element("span", { className: "facts faint" }, facts.join(" · ")),
    element("ul", {}, ...conversations.map(conversationItem)));
}

function conversationItem({ id, turns }) {
  const title = turns[0]?.content ?? "No question yet";
  const opens = opener(title, "", async () => await choose(id) || await list()); // deleted elsewhere
  opens.ariaCurrent = String(id === current.id);
  return element("li", {}, opens, deleter(`Delete ${title}`, async () => {
    if (!confirm(`Delete the conversation “${title}”?`)) return;
    await remove(id);
    $("again").focus();
  }));
}

const opener = (text, title, work) => button(text, async () => {
  await work();
  $("question").focus();
}, { className: "name", title });
const deleter = (ariaLabel, work) => button("Delete", work, { className: "quiet", ariaLabel });

// A text's name is that of its file, or the beginning of its first document. The server does not return texts.
function isOf({ name, n_tokens }, document) {
  const begin = name.replace(/…$/, ""), line = document.text.slice(0, 1000).trim().split(/\s+/).join(" ");
  return document.n_tokens <= n_tokens && (document.name === name || begin && line.startsWith(begin));
}

async function removeTexts(texts) {
  $("library-error").textContent = "";
  for (const { id } of texts) {
    await call(`h2o/library/${encodeURIComponent(id)}`, { method: "DELETE" })
      .catch((error) => { $("library-error").textContent = error.message; });
  }
  await show();
  $("library").querySelector("summary").focus();
}

for (const name of ["opened", "changed"]) events.addEventListener(name, list);
document.addEventListener("visibilitychange", list); // another window may have changed them
events.addEventListener("answered", () => setTimeout(show, MILLISECONDS));
$("again").addEventListener("click", async () => {
  await begin();
  $("question").focus();
});
