// The conversation that is open: its documents and turns, its place in the browser's database, and its running request.

import { $ } from "./elements.js";
import * as store from "./store.js";

// "opened": another conversation is open. "changed": a conversation was kept, or a request began or ended. "answered":
// an answer has ended.
export const events = new EventTarget();
const tell = (type) => events.dispatchEvent(new Event(type));

export let current = fresh([]);

// `draft` is a question that has no answer yet. `longest` is the longest reading so far, in tokens and milliseconds.
function fresh(documents) {
  return { id: store.newId(), documents, turns: [], draft: "", longest: { n: 0, ms: 0 } };
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
  $("begun").hidden = true;
  tell("opened");
}

export async function keep(conversation) {
  try {
    const { documents, turns, draft } = conversation; // one without all of these was only tried
    if (documents.length || turns.length || draft) await store.write({ ...conversation, changed: Date.now() });
    else await store.remove(conversation.id);
  } catch (error) {
    $("error").textContent = `The browser cannot keep this conversation: ${error.message}`;
  }
  tell("changed");
}

export async function remove(id) {
  if (id === current.id) await stop();
  await store.remove(id);
  if (id === current.id) await begin();
  else tell("changed");
}

let running = null; // the AbortController of the request: one at a time
let over = Promise.resolve();

export const isRunning = () => running !== null;
export const isFixed = () => isRunning() || current.turns.length > 0;

export function run(work) {
  running = new AbortController();
  tell("changed");
  over = work(running.signal).finally(() => {
    running = null;
    tell("changed");
  });
}

// Fulfilled when the request has ended and its part of the answer is kept.
export function stop() {
  running?.abort();
  return over;
}

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
