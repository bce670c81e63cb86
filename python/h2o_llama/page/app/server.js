// Requests to the page's server.

import { $ } from "./elements.js";

let key = sessionStorage.getItem("key"); // the server's API key, if it needs one
let isRefused = false; // the user has no key

// In the place of a browser's own words for a connection that has failed.
const fail = (cause) => {
  throw cause instanceof TypeError ? new Error("The server does not answer. Is `h2o-llama serve` still running?", { cause }) : cause;
};

export async function call(path, { method = "GET", body, signal } = {}) {
  const headers = body instanceof Blob ? {} : { "Content-Type": "application/json" };
  if (key) headers.Authorization = "Bearer " + key;
  const answer = await fetch(path, { method, headers, body: body instanceof Blob ? body : body && JSON.stringify(body), signal,
    keepalive: method === "DELETE" }).catch(fail); // also of a page that is closed
  if (answer.ok) return answer;
  if (answer.status === 401 && !isRefused) {
    $("key-refused").hidden = !key;
    key = await askForKey();
    isRefused = !key;
    if (key) {
      sessionStorage.setItem("key", key);
      return call(path, { method, body, signal });
    }
  }
  const error = await answer.json().catch(() => null);
  throw Object.assign(new Error(error?.error?.message ?? `${path}: HTTP status ${answer.status}`), { status: answer.status });
}

function askForKey() {
  const dialog = $("key");
  dialog.returnValue = ""; // Escape closes without one
  $("key-value").value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue && $("key-value").value), { once: true });
  });
}

export const get = async (path) => (await call(path)).json();
export const post = async (path, body) => (await call(path, { method: "POST", body })).json();

// The data of an answer's server-sent events.
export async function* streamOf(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(fail);
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}
