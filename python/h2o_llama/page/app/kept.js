// Which tokens of the text the KV heads of a layer keep.

import { $, element, number } from "./elements.js";
import { current, events, messages } from "./conversation.js";
import { get, post } from "./server.js";

let answered = null; // the slot's state after the last answer
let pieces = []; // of the slot's text

// The state of a slot. Its `text` tells two requests apart.
async function stateOf(id, layer = "") {
  const state = await get(`slots/${id}/h2o?layer=${layer}`);
  const { id_task } = (await get("slots"))[id];
  return { ...state, text: `${id_task}: ${state.n_tokens}` };
}

async function offer() {
  const own = current;
  const state = await stateOf(own.slot);
  if (own !== current || own.isAsked) return;
  answered = state;
  $("look").hidden = false;
}

async function look() {
  clear("Loading");
  $("kept").showModal();
  const { prompt } = await post("apply-template", { messages: messages(current) });
  const options = { add_special: true, parse_special: true, with_pieces: true };
  const { tokens } = await post("tokenize", { content: prompt, ...options });
  const decode = (bytes) => new TextDecoder().decode(new Uint8Array(bytes));
  pieces = tokens.map(({ piece }) => typeof piece === "string" ? piece : decode(piece));
  const { layers } = answered;
  fill($("layer"), layers, layers[Math.floor(layers.length / 2)]);
  await paint();
}

function fill(select, values, chosen) {
  if (select.options.length === values.length) return;
  select.replaceChildren(...values.map((value) => new Option(value, value, false, value === chosen)));
}

async function paint() {
  const now = await stateOf(answered.id_slot, $("layer").value);
  const { memory_set: sets, chunk_boundaries: chunks, settings } = now;
  if (now.text !== answered.text) throw new Error("The server has read another text since. Ask again to see this one.");
  fill($("head"), ["all", ...sets.keys()], "all");
  const head = $("head").value;
  const shown = head === "all" ? sets : [sets[head]];
  const heads = new Map();
  for (const set of shown) for (const position of set) heads.set(position, (heads.get(position) ?? 0) + 1);
  $("tokens").replaceChildren(...pieces.map((piece, position) => {
    const n = heads.get(position);
    if (!n) return piece;
    const mark = element("mark", { title: `position ${position}: kept by ${n} of ${shown.length}` }, piece);
    mark.style.background = `rgb(var(--kept) / ${0.2 + 0.5 * n / shown.length})`;
    return mark;
  }));
  $("tokens").hidden = false;
  const before = chunks.at(-1)[0];
  $("kept-text").textContent = shown[0].length
    ? `Each KV head keeps ${number(shown[0].length)} of the ${number(before)} tokens before the current chunk. ` +
      "The more heads keep a token, the stronger its colour." +
      (settings.lookup_budget ? ` Each query looks up at most ${number(settings.lookup_budget)} more.` : "")
    : `The text fits into its first chunk of ${number(settings.chunk_size)} tokens, which attends to all of it.`;
}

function clear(text) {
  $("tokens").hidden = true;
  $("kept-text").textContent = text;
}

const hide = () => { $("look").hidden = true; };
const fail = (error) => clear(error.message);

events.addEventListener("opened", hide);
events.addEventListener("changed", () => { if (current.isAsked) hide(); });
events.addEventListener("answered", () => offer().catch(hide)); // H2O may be off
$("look").addEventListener("click", () => look().catch(fail));
$("close").addEventListener("click", () => $("kept").close());
for (const id of ["layer", "head"]) $(id).addEventListener("change", () => paint().catch(fail));
