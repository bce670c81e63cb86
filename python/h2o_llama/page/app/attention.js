// What the question of an answer has read: the attention of its tokens, beyond what a question without content reads.

import { current, messages } from "./conversation.js";
import { $, button, element, number } from "./elements.js";
import { call } from "./server.js";

const POSITIONS = 128; // of each head
const USUAL = 2; // times the share that a question without content reads
const MARKED = 0.05; // of the tokens
const PAGE = /\[(?:page|sheet) [^\]]*\]/g; // before its text

export async function show(turn, signal) {
  const { documents, turns } = current, i = turns.indexOf(turn) - 1;
  const attentionOf = async (question) => {
    const body = { messages: messages({ documents, turns: turns.slice(0, i) }, question), max_tokens: 1, top_attention: POSITIONS };
    const answer = await call("v1/chat/completions", { method: "POST", body, signal });
    return (await answer.json()).usage.prompt_tokens_details.attention;
  };
  const usual = await attentionOf("…"), { heads, pieces, end } = await attentionOf(turns[i].content);
  if (!heads.length) throw new Error("This server keeps no attention: start it without --h2o off and --evict.");
  const tokens = pieces.slice(0, end).map((text) => ({ text, weight: 0, heads: [] }));
  for (const [j, { layer, head, sum, positions, weights }] of heads.entries()) {
    const other = usual.heads[j], shares = new Map(other.positions.map((p, k) => [p, other.weights[k] / other.sum]));
    for (const [k, p] of positions.entries()) {
      const weight = weights[k] - USUAL * sum * (shares.get(p) ?? 0);
      if (weight <= 0) continue;
      tokens[p].weight += weight;
      tokens[p].heads.push({ layer, head, weight });
    }
  }
  draw(tokens);
}

const strongestFirst = (a, b) => b.weight - a.weight;

function draw(tokens) {
  const read = tokens.filter(({ weight }) => weight).sort(strongestFirst), all = read.reduce((sum, { weight }) => sum + weight, 0);
  const percent = (weight) => `${(100 * weight / all).toFixed(1)} %`;
  const whole = tokens.map(({ text }) => text).join(""), pageOf = (index) => whole.slice(0, index).match(PAGE)?.at(-1) ?? "";
  const sentences = new Intl.Segmenter("en", { granularity: "sentence" }).segment(whole);
  let end = 0;
  for (const token of tokens) token.end = end += token.text.length;
  const passages = new Map(); // sentences and lines, by their places
  for (const token of read.slice(0, Math.ceil(MARKED * tokens.length))) {
    token.mark = element("mark", { title: percent(token.weight), onclick: () => tell(token) }, token.text);
    token.mark.style.setProperty("--weight", `${100 * Math.sqrt(token.weight / read[0].weight)}%`);
    const { index, segment } = sentences.containing(Math.max(0, token.end - 1));
    const passage = passages.get(index) ?? { text: segment, page: pageOf(index), weight: 0, mark: token.mark };
    passages.set(index, { ...passage, weight: passage.weight + token.weight });
  }
  $("read-text").replaceChildren(...tokens.map(({ mark, text }) => mark ?? text));
  const strongest = [...passages.values()].filter(({ text }) => text.trim()).sort(strongestFirst).slice(0, 3), [first = 0, second = 0] = strongest.map(({ weight }) => weight / all);
  $("read-heads").textContent = first > Math.min(0.5, Math.max(0.1, 2 * second)) ? "" : "The question has read several passages: look at more than the first.";
  $("passages").replaceChildren(...strongest.map(({ text, page, weight, mark }) =>
    button(`${percent(weight)} ${page} ${text}`, () => mark.scrollIntoView({ block: "center" }), { className: "quiet" })));
  $("read").showModal();
  strongest[0]?.mark.scrollIntoView({ block: "center" });
}

function tell({ mark, text, weight, heads }) {
  const named = heads.sort(strongestFirst).slice(0, 6).map((own) => `layer ${own.layer} head ${own.head} (${number(100 * own.weight / weight)} %)`);
  $("read-heads").textContent = `“${text.trim()}”, ${mark.title}, is read by ${named.join(", ")}${heads.length > 6 ? ", …" : ""}`;
}
