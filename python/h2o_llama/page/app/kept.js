// Which tokens of the text the KV heads of a layer keep.

import { $, element, number } from "./elements.js";
import { current, events, messages } from "./conversation.js";
import { get, post } from "./server.js";

let slot = null;
let pieces = []; // of the text that the slot holds

async function look() {
  const own = current;
  const { prompt } = await post("apply-template", { messages: messages(own) });
  const { tokens } = await post("tokenize", { content: prompt, add_special: true, parse_special: true, with_pieces: true });
  const { layers } = await get(`slots/${own.slot}/h2o`);
  if (own !== current) return;
  slot = own.slot;
  pieces = tokens.map(({ piece }) => typeof piece === "string" ? piece : new TextDecoder().decode(new Uint8Array(piece)));
  fill($("layer"), layers, layers[Math.floor(layers.length / 2)]);
  await paint();
}

function fill(select, values, chosen) {
  if (select.options.length === values.length) return;
  select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)));
  select.disabled = false;
}

async function paint() {
  const own = current;
  const { memory_set: sets, chunk_boundaries: chunks } = await get(`slots/${slot}/h2o?layer=${$("layer").value}`);
  if (own !== current) return;
  fill($("head"), ["all", ...sets.keys()], "all");
  const head = $("head").value;
  const shown = head === "all" ? sets : [sets[head]];
  const heads = new Map();
  for (const set of shown) for (const position of set) heads.set(position, (heads.get(position) ?? 0) + 1);
  $("tokens").replaceChildren(...pieces.map((piece, position) => {
    const n = heads.get(position);
    if (!n) return piece;
    const span = element("span", { title: `position ${position}: kept by ${n} of ${shown.length}` }, piece);
    span.style.background = `rgb(var(--kept) / ${0.2 + 0.5 * n / shown.length})`;
    return span;
  }));
  $("tokens").hidden = false;
  const last = chunks.at(-1);
  $("kept").textContent = shown[0].length
    ? `${number(shown[0].length)} of ${number(last[0])} tokens before the open chunk are kept per KV head; the darker, the more heads keep one.`
    : `The text is within its first chunk, of ${number(chunks[0][1])} tokens: nothing had to be chosen.`;
}

function clear(text) {
  $("tokens").hidden = true;
  $("kept").textContent = text;
}

events.addEventListener("opened", () => clear(""));
events.addEventListener("answered", () => look().catch((error) => clear(error.message)));
for (const id of ["layer", "head"]) $(id).addEventListener("change", () => paint().catch((error) => clear(error.message)));
