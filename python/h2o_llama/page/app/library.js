// The library: each document with its conversations, and what the server has kept of it.

import { begin, choose, current, events, messages, remove } from "./conversation.js";
import { length } from "./documents.js";
import { $, button, bytes, element, tokens } from "./elements.js";
import { call, get, post } from "./server.js";
import * as store from "./store.js";

const MILLISECONDS = 2000; // in which the server adds the text of an answer
const UNDO = 10000; // milliseconds
const NOTHING = { text: "\u0001" }; // a document that begins as no other
const JOINED = 2; // tokens at the ends of a document, which may be others in its place

let texts = []; // which the server has read, and need not read again
let likes = new Map(); // by documents: how many of their first tokens each of these has, by its id
const deleted = new Map(); // texts by their ids, until they are deleted

export async function show() {
  const library = await get("h2o/library").catch(() => null); // this server has none
  texts = library?.texts ?? [];
  likes = new Map();
  $("used").textContent = library ? `The server keeps ${bytes(library.n_bytes)} of at most ${bytes(library.limit_bytes)}.` : "";
  await list();
}

// The ids of the texts that begin with these documents. A name says nothing: others may have it. A text that
// continues where the documents end, as a longer document does, is another one.
async function textsOf(documents) {
  const last = documents.at(-1), longer = [...documents.slice(0, -1), { ...last, text: last.text + NOTHING.text }];
  const [found, beyond, before] = await Promise.all([documents, longer, [NOTHING]].map(likesOf)), n = length({ documents });
  return new Set(texts.filter(({ id, n_tokens }) => found[id] - before[id] >= n - JOINED
    && (found[id] > beyond[id] || found[id] === n_tokens)).map(({ id }) => id));
}

function likesOf(documents) {
  const body = { messages: messages({ documents, turns: [] }, "?"), h2o_texts: true }, [{ content: key }] = body.messages;
  if (!likes.has(key)) likes.set(key, post("v1/chat/completions/input_tokens", body));
  return likes.get(key);
}

let n_lists = 0;

async function list() {
  const last = ++n_lists, left = texts.filter(({ id }) => !deleted.has(id)), { documents } = current;
  const rows = new Map();
  const rowOf = (key, name, document) => {
    if (!rows.has(key)) rows.set(key, { name, document, texts: [], conversations: [] });
    return rows.get(key);
  };
  let isRead = false;
  try {
    const found = documents.length && left.length ? await textsOf(documents) : new Set();
    isRead = left.some(({ id }) => found.has(id));
    const owners = new Map(); // rows of texts
    for (const conversation of await store.all()) {
      const [document] = conversation.documents;
      const row = document ? rowOf(`${document.name}\n${document.text}`, document.name, document) : rowOf("", "Without a document");
      row.conversations.push(conversation);
      if (document && left.length && row.conversations.length === 1) for (const id of await textsOf([document])) owners.set(id, row);
    }
    for (const text of left) (owners.get(text.id) ?? rowOf(`text ${text.document}`, text.name)).texts.push(text);
  } catch (error) {
    $("library-error").textContent = error.message;
  }
  if (last !== n_lists) return; // another one has begun meanwhile
  $("state").textContent = isRead ? `; ${documents.length > 1 ? "these documents have" : "this document has"} been read` : "";
  $("waits").hidden = isRead;
  $("texts").replaceChildren(...[...rows.values()].map(item));
}

// The texts of one document share their beginning, so the largest counts.
function item({ document, name, texts, conversations }) {
  const facts = [document, ...texts].filter(Boolean).slice(0, 1).map(({ n_tokens }) => tokens(n_tokens));
  if (!document && texts[0]?.folder) facts.unshift(`in ${texts[0].folder}`); // others may have its name
  if (texts.length) {
    const last = new Date(Math.max(...texts.map(({ used }) => new Date(used))));
    facts.push(bytes(sizeOf(texts)), `used ${last.toLocaleString("en", { month: "short", day: "numeric" })}`);
  }
  const opens = document || texts.length
    ? opener(name, `New conversation about ${name}`, async () => begin([document ?? await documentOf(name, texts)]))
    : element("span", { className: "name" }, name);
  if (!document && texts.length) opens.title = texts[0].begin;
  return element("li", {}, opens,
    texts.length ? deleter(`Delete ${name} from the server`, () => removeTexts(name, texts)) : "",
    element("span", { className: "facts faint" }, facts.join(" · ")),
    element("ul", {}, ...conversations.map(conversationItem),
      ...[...document ? [] : new Set(texts.map(({ question }) => question))].filter(Boolean).map((question) => element("li", {}, question))));
}

const sizeOf = (texts) => Math.max(...texts.map(({ n_bytes }) => n_bytes));
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
  $("library-error").textContent = "";
  await work().catch((error) => { $("library-error").textContent = error.message; });
  $("question").focus();
}, { className: "name", title });
const deleter = (ariaLabel, work) => button("Delete", work, { className: "quiet", ariaLabel });

// The document in a text that another program has read, by its place in the template.
async function documentOf(name, texts) {
  const shortest = texts.reduce((a, b) => a.n_tokens < b.n_tokens ? a : b);
  const { content } = await post("detokenize", await get(`h2o/library/${shortest.id}`));
  const asked = messages({ documents: [NOTHING], turns: [] }, "\u0002");
  const [after] = (await post("apply-template", { messages: asked })).prompt.split("\u0001")[1].split("\u0002");
  const about = asked[0].content.slice(0, -1), start = content.indexOf(about) + about.length;
  if (start < about.length) throw new Error(`${name} is not a document: a program has sent it in a form of its own.`);
  const text = content.slice(start, content.endsWith(after) ? -after.length : content.indexOf(after, start));
  return { name, text, n_tokens: (await post("tokenize", { content: text })).tokens.length };
}

function removeTexts(name, texts) {
  const said = `${name} (${tokens(Math.max(...texts.map(({ n_tokens }) => n_tokens)))}, ${bytes(sizeOf(texts))})`;
  if (!confirm(`Delete ${said} from the server, with ${texts.length} of its texts? Commands read it again then, too.`)) return;
  for (const text of texts) deleted.set(text.id, text);
  const finish = async () => {
    clearTimeout(timer);
    removeEventListener("pagehide", finish);
    note.remove();
    const gone = texts.map(({ id }) => id).filter((id) => deleted.has(id));
    await Promise.all(gone.map((id) => call(`h2o/library/${id}`, { method: "DELETE" })))
      .catch((error) => { $("library-error").textContent = error.message; });
    for (const id of gone) deleted.delete(id);
    await show();
  };
  const timer = setTimeout(finish, UNDO);
  addEventListener("pagehide", finish);
  const note = element("p", { role: "status" }, `${name} is deleted. `, button("Undo", () => {
    for (const { id } of texts) deleted.delete(id);
    return finish();
  }));
  $("texts").before(note);
  note.querySelector("button").focus();
  return list();
}

for (const name of ["opened", "changed"]) events.addEventListener(name, list);
document.addEventListener("visibilitychange", list); // another window may have changed them
events.addEventListener("answered", () => setTimeout(show, MILLISECONDS));
$("again").addEventListener("click", async () => {
  await begin();
  $("question").focus();
});
