// The conversation that is open: its documents and turns, and its place in the browser's database.

import { $ } from "./elements.js";
import { stop } from "./running.js";
import * as store from "./store.js";

// "opened": another conversation is open. "changed": its documents changed, or a question fixed them. "asked": a question
// was sent. "answered": an answer has ended. "kept": the list of conversations has changed.
export const events = new EventTarget();

export let current = fresh([]);

const removed = new Set(); // ids of deleted conversations

// `draft` is a question that has no answer yet. `longest` is the longest reading so far, in tokens and milliseconds.
function fresh(documents) {
  return { id: store.newId(), documents, turns: [], draft: "", slot: null, longest: { n: 0, ms: 0 } };
}

export async function begin(documents = []) {
  await stop();
  open(fresh(documents));
  if (documents.length) await keep(current);
}

// Opens a conversation of the database. Returns false if there is none with this id.
export async function choose(id) {
  if (id === current.id) return true;
  await stop();
  const conversation = await store.read(id);
  if (conversation) open(conversation);
  return conversation !== undefined;
}

function open(conversation) {
  current = conversation;
  sessionStorage.setItem("conversation", conversation.id);
  $("error").textContent = "";
  events.dispatchEvent(new Event("opened"));
}

// The id of the conversation that was open before a reload.
export const last = () => sessionStorage.getItem("conversation") ?? "";

export async function keep(conversation) {
  await write(conversation, conversation.documents);
  events.dispatchEvent(new Event("kept"));
}

let isWriting = false, isNewer = false;

// Writes a growing answer as often as the browser can. The documents are already in the database.
export async function keepTurns(conversation) {
  isNewer = true;
  if (isWriting) return;
  isWriting = true;
  while (isNewer) {
    isNewer = false;
    await write(conversation, []);
  }
  isWriting = false;
}

async function write(conversation, documents) {
  if (removed.has(conversation.id)) return;
  const { isAsked, ...kept } = conversation;
  try {
    await store.write({ ...kept, title: title(conversation), changed: Date.now() }, documents);
  } catch (error) {
    $("error").textContent = `The browser cannot keep this conversation: ${error.message}`;
  }
}

const title = ({ turns, draft }) => turns[0]?.content ?? (draft || "No question yet");

export async function remove(id) {
  if (id === current.id) await stop();
  removed.add(id);
  await store.remove(id);
  if (id === current.id) await begin();
  else events.dispatchEvent(new Event("kept"));
}

export function change(conversation) {
  if (conversation === current) events.dispatchEvent(new Event("changed"));
}

export const isFixed = (conversation) => conversation.isAsked || conversation.turns.length > 0;

// One document makes the same message as in `h2o-llama chat --file`, so both find it in one library. A second document
// follows it, so the first one is not read again.
export function messages({ documents, turns }, question) {
  const text = documents.map(({ name, text }, i) =>
    (i === 0 ? "Answer questions about this text:\n\n" : `\n\nThat was ${documents[i - 1].name}. This is ${name}:\n\n`) + text).join("");
  return [
    ...(text ? [{ role: "system", content: text }] : []),
    ...turns.map(({ role, content }) => ({ role, content })),
    { role: "user", content: question },
  ];
}
