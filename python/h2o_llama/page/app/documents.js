// The documents of a conversation: added from files or pasted, shown, and removed before the first question.

import { $, button, element, tokens } from "./elements.js";
import { begin, current, events, isFixed, keep } from "./conversation.js";
import { tooLong } from "./model.js";
import { call, post } from "./server.js";

let adding = Promise.resolve();

// Fulfilled when the browser has read all files that were dropped so far.
export const added = () => adding;

export async function addPasted() {
  const text = $("text").value;
  if (!text.trim()) return;
  $("text").value = "";
  const line = text.trim().split(/\s+/).join(" ");
  await add([() => documentOf(line.length > 40 ? line.slice(0, 40) + "…" : line, text).catch((error) => {
    $("text").value ||= text;
    throw error;
  })]);
}

const addFiles = (files) => add([...files].map((file) => async (own) => documentOf(file.name, await textOf(file, own))));

async function add(sources) {
  if (isFixed()) await begin().then(() => { $("begun").hidden = false; });
  const own = current;
  $("error").textContent = "";
  adding = adding.then(() => addTo(own, sources)); // in the order of choice
}

async function addTo(own, sources) {
  const errors = [];
  for (const source of sources) {
    await source(own).then((document) => own.documents.push(document) && keep(own), (error) => errors.push(error.message));
    show();
  }
  if (errors.length) $("error").textContent = errors.join("\n");
}

// The server reads files as the commands do, so that all have the same text.
async function textOf(file, own) {
  if (own === current) $("size").textContent = `Reading ${file.name} …`;
  const body = new Blob([file], { type: "application/octet-stream" });
  return (await (await call(`h2o/document?name=${encodeURIComponent(file.name)}`, { method: "POST", body })).json()).text;
}

export const length = ({ documents }) => documents.reduce((sum, { n_tokens }) => sum + n_tokens, 0);

async function documentOf(name, text) {
  const { tokens: found } = await post("tokenize", { content: text });
  return { name, text, n_tokens: found.length };
}

async function remove(document) {
  current.documents = current.documents.filter((other) => other !== document);
  await keep(current);
  $("file").focus();
}

function show() {
  const { documents } = current;
  const fixed = isFixed();
  $("documents").replaceChildren(...documents.map((document) => {
    const { name, n_tokens } = document;
    const size = element("span", { className: "faint" }, documents.length > 1 ? tokens(n_tokens) : "");
    const removes = button("Remove", () => remove(document), { className: "quiet", ariaLabel: `Remove ${name}`, hidden: fixed });
    return element("li", {}, element("span", { className: "name" }, name), size, removes);
  }));
  const n = length(current);
  const size = documents.length > 1 ? `${tokens(n)} in ${documents.length} documents` : n ? tokens(n) : "";
  $("size").textContent = tooLong(n) || size;
  $("size").className = tooLong(n) ? "bad" : "faint";
  $("first").hidden = documents.length > 0;
  $("fixed").hidden = !fixed;
  $("adding").open = !fixed;
}

events.addEventListener("opened", show);
events.addEventListener("changed", show);
$("add").addEventListener("click", addPasted);
$("file").addEventListener("change", () => {
  addFiles($("file").files);
  $("file").value = ""; // the same file can be chosen again
});
// On the whole page: a browser would leave the page for a file that misses its place.
for (const type of ["dragover", "drop"]) document.addEventListener(type, (event) => {
  if (!event.dataTransfer.types.includes("Files")) return;
  event.preventDefault();
  if (type === "drop") addFiles(event.dataTransfer.files);
});
