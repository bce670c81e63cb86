// What the server serves.

import { $, number } from "./elements.js";
import { get } from "./server.js";

const MILLISECONDS = 1000; // until the server is asked again whether it has loaded its model

export async function show() {
  try {
    const props = await get("props");
    $("model").textContent = props.model_alias ?? props.model_path?.split("/").pop() ?? "";
    const { settings, has_limit } = await get("slots/0/h2o");
    const room = has_limit ? number(props.default_generation_settings.n_ctx) : "any text";
    $("settings").textContent = `chunks of ${number(settings.chunk_size)} tokens, memory sets of ${number(settings.memory_size)}, ` +
      `${number(settings.lookup_budget)} looked up; room for ${room}`;
  } catch (error) {
    $("settings").textContent = error.message;
    if (error.status !== 503) return;
    await new Promise((resolve) => setTimeout(resolve, MILLISECONDS));
    await show();
  }
}
