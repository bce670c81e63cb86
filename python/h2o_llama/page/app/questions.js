// Questions, and answers as they come.

import { $, element, number, seconds } from "./elements.js";
import { change, current, events, keep, keepTurns, messages } from "./conversation.js";
import { added, addPasted } from "./documents.js";
import { isRunning, run, stop } from "./running.js";
import { call, get, streamOf } from "./server.js";

// No other conversation is opened while this runs: that stops it first.
async function answer(question, signal) {
  const own = current;
  $("error").textContent = "";
  $("send").disabled = true;
  $("stop").disabled = false;
  const asked = show("You", question);
  let turn = null, place = null, timings = null;
  try {
    own.draft = question;
    await Promise.race([added(), aborted(signal)]);
    if ($("error").textContent) throw new Error($("error").textContent); // a file that was to be added could not be read
    own.isAsked = true;
    change(own);
    await keep(own);
    own.slot = await freeSlot(own.slot);
    reading(0, 0, 0);
    const body = {
      messages: messages(own, question), stream: true, return_progress: true, timings_per_token: true, cache_prompt: true, id_slot: own.slot, max_tokens: 1024,
    };
    for await (const event of streamOf(await call("v1/chat/completions", { method: "POST", body, signal }))) {
      if (event.error) throw new Error(event.error.message);
      const progress = event.prompt_progress;
      if (progress) reading(progress.processed, progress.total, progress.cache);
      timings = event.timings ?? timings;
      const text = event.choices?.[0]?.delta?.content;
      if (!text) continue;
      if (!turn) {
        turn = { role: "assistant", content: "", isStopped: true };
        own.turns.push({ role: "user", content: question }, turn);
        own.draft = "";
        $("reading").hidden = true;
        place = show("Answer", "");
      }
      turn.content += text;
      place.textContent = turn.content;
      keepTurns(own);
    }
    if (turn) delete turn.isStopped;
  } catch (error) {
    if (error.name !== "AbortError") $("error").textContent = error.message;
  }
  own.isAsked = false;
  if (turn && timings) turn.facts = facts(timings, own.longest);
  await keep(own);
  change(own);
  $("reading").hidden = true;
  $("send").disabled = false;
  $("stop").disabled = true;
  if (turn) finish(place, turn);
  else asked.parentElement.remove();
  $("question").value ||= own.draft;
  $("question").focus();
  if (turn) events.dispatchEvent(new Event("answered"));
}

const aborted = (signal) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));

async function freeSlot(preferred) {
  const slots = await get("slots");
  const free = slots.filter((slot) => !slot.is_processing);
  return (free.find(({ id }) => id === preferred) ?? free[0] ?? slots[0]).id;
}

function show(role, text) {
  const content = element("span", {}, text);
  $("turns").append(element("div", { className: "turn" }, element("b", {}, role), content));
  return content;
}

function finish(place, turn) {
  if (turn.isStopped) place.append(" … (stopped)");
  if (turn.facts) place.parentElement.append(element("div", { className: "faint" }, turn.facts));
}

function reading(done, total, cached) {
  $("reading").hidden = false;
  const bar = $("progress");
  if (total) bar.value = done / total; else bar.removeAttribute("value");
  $("progress-text").textContent = total
    ? `Reading: ${number(done)} of ${number(total)} tokens` + (cached ? `, ${number(cached)} of them known from before` : "")
    : "Waiting for the server";
}

function facts({ prompt_n, prompt_ms, cache_n, predicted_n, predicted_per_second }, longest) {
  if (prompt_n > longest.n) Object.assign(longest, { n: prompt_n, ms: prompt_ms });
  // Short readings take longer for each token.
  const saved = longest.n > cache_n / 2 ? `, which saved about ${seconds(cache_n * longest.ms / longest.n)}` : "";
  return `Read ${number(prompt_n)} tokens in ${seconds(prompt_ms)}, wrote ${number(predicted_n)} at ${predicted_per_second.toFixed(0)} a second.` +
    (cache_n > prompt_n ? ` ${number(cache_n)} tokens were known from before${saved}.` : "");
}

events.addEventListener("opened", () => {
  $("turns").replaceChildren();
  for (const turn of current.turns) finish(show(turn.role === "user" ? "You" : "Answer", turn.content), turn);
  $("question").value = current.draft;
});
$("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const question = $("question").value.trim();
  if (!question || isRunning()) return;
  $("question").value = "";
  await addPasted();
  run((signal) => answer(question, signal));
});
$("stop").addEventListener("click", stop);
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });
