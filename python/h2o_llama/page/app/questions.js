// Questions and answers.

import * as attention from "./attention.js";
import { $, button, copyButton, element, number, seconds, tokens } from "./elements.js";
import { current, events, isRunning, keep, messages, run, stop } from "./conversation.js";
import { added, addPasted, length } from "./documents.js";
import * as markdown from "./markdown.js";
import { tooLong } from "./model.js";
import { call, streamOf } from "./server.js";

// Opening another conversation first stops this.
async function answer(question, signal) {
  const own = current;
  $("error").textContent = "";
  $("news").textContent = "";
  const asked = show(question, "You");
  reading({});
  scroll();
  let turn, place, timings, isCutOff = false, frame = 0;
  try {
    own.draft = question;
    await Promise.race([added(), aborted(signal)]);
    if ($("error").textContent) throw new Error($("error").textContent); // a file could not be added
    if (tooLong(length(own))) throw new Error(tooLong(length(own)));
    await keep(own);
    const body = { messages: messages(own, question), stream: true, return_progress: true, timings_per_token: true, max_tokens: 512 };
    const sent = await call("v1/chat/completions", { method: "POST", body, signal });
    $("news").textContent = "The question was sent.";
    for await (const event of streamOf(sent)) {
      if (event.error) throw new Error(event.error.message);
      if (event.prompt_progress) reading(event.prompt_progress);
      timings = event.timings ?? timings;
      const { delta, finish_reason } = event.choices?.[0] ?? {};
      const { content = "", reasoning_content: thoughts = "" } = delta ?? {};
      isCutOff ||= finish_reason === "length";
      if (!content && !thoughts) continue;
      if (!turn) {
        turn = { role: "assistant", content: "", thoughts: "", isStopped: true };
        own.turns.push({ role: "user", content: question }, turn);
        own.draft = "";
        $("reading").hidden = true;
        place = show("", "Answer");
      }
      turn.content += content ?? ""; // null next to a call of a tool
      turn.thoughts += thoughts ?? "";
      cancelAnimationFrame(frame); // one layout for all tokens of a frame
      frame = requestAnimationFrame(() => follow(() => write(place, turn, true)));
    }
    if (turn) delete turn.isStopped;
  } catch (error) {
    failed(error, error.cause instanceof TypeError && !turn ? " Your question is kept: press Ask again." : "");
  }
  cancelAnimationFrame(frame);
  if (turn && timings) turn.facts = facts(timings, own.longest) + (isCutOff ? ` The answer was cut off after ${tokens(timings.predicted_n)}, the limit.` : "") +
    (turn.content ? "" : " There are only thoughts, no answer.");
  await keep(own);
  if (turn) {
    follow(() => finish(place, turn));
    $("news").textContent = `Answer: ${turn.content}`; // all at once: a screen reader would stumble over it growing
  } else asked.parentElement.remove();
  $("question").value ||= own.draft;
  $("question").focus();
  if (turn) events.dispatchEvent(new Event("answered"));
}

const failed = ({ name, message }, help = "") => {
  if (name !== "AbortError") $("error").textContent = message + help;
};
const aborted = (signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

function show(text, speaker) {
  const content = element("div", { className: "text" }, text);
  const thoughts = element("details", { className: "thoughts", hidden: true }, element("summary", {}, "Thoughts"), element("div"));
  const className = `turn ${speaker.toLowerCase()}`;
  $("turns").append(element("article", { className }, element("h3", {}, speaker), thoughts, content));
  return content;
}

// An answer, and before it the model's thoughts, folded.
function write(place, { content, thoughts }, isGrowing) {
  markdown.write(place, content, isGrowing);
  place.previousElementSibling.hidden = !thoughts;
  place.previousElementSibling.lastChild.textContent = thoughts;
}

const scroll = () => $("turns").scrollIntoView({ block: "end" });

// Scrolls with the change of an answer, unless the user has scrolled up.
function follow(change) {
  const [end, seen] = ["turns", "form"].map((id) => $(id).getBoundingClientRect().bottom);
  change();
  if (end <= seen) scroll();
}

function finish(place, turn) {
  write(place, turn, false);
  const facts = (turn.facts ?? "") + (turn.isStopped ? " The answer was stopped." : "");
  place.after(element("div", { className: "faint" }, facts), copyButton("Copy the answer", () => turn.content),
    current.documents.length ? button("Passages read", () => isRunning() || run(look), { className: "quiet copy look" }) : "");
  const look = (signal) => {
    reading({});
    return attention.show(turn, signal).catch(failed);
  };
}

function reading({ processed, total, cache, time_ms }) {
  $("reading").hidden = false;
  const bar = $("progress");
  if (total) bar.value = processed / total; else bar.removeAttribute("value");
  const left = processed > cache ? `, ${seconds((total - processed) * time_ms / (processed - cache))} left` : "";
  $("progress-text").textContent = total
    ? `Reading: ${number(processed)} of ${tokens(total)}` + (cache ? `, ${number(cache)} of them cached` : "") + left
    : "Waiting for the server";
}

function facts({ prompt_n, prompt_ms, cache_n, predicted_n, predicted_per_second }, longest) {
  if (prompt_n > longest.n) Object.assign(longest, { n: prompt_n, ms: prompt_ms });
  // A token of a short reading takes longer, and would promise too much.
  const saved = longest.n > cache_n / 2 ? `, which saved about ${seconds(cache_n * longest.ms / longest.n)}` : "";
  return `Read ${tokens(prompt_n)} in ${seconds(prompt_ms)}.` +
    (cache_n > prompt_n ? ` ${number(cache_n)} tokens were cached${saved}.` : "") +
    ` Wrote ${tokens(predicted_n)}, ${number(predicted_per_second)} per second.`;
}

events.addEventListener("opened", () => {
  $("turns").replaceChildren();
  for (const turn of current.turns) turn.role === "user" ? show(turn.content, "You") : finish(show("", "Answer"), turn);
  $("question").value = current.draft;
  if (current.turns.length) scroll();
});
$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || isRunning()) return;
  $("question").value = "";
  await addPasted();
  run((signal) => answer(question, signal));
});
events.addEventListener("changed", () => {
  $("reading").hidden ||= !isRunning();
  $("send").disabled = isRunning();
  $("stop").disabled = !isRunning();
});
$("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
