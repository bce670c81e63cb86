// The model's name and H2O's settings.

import { $, number, tokens } from "./elements.js";
import { get } from "./server.js";

const MILLISECONDS = 1000; // between two requests while the server loads its model

export async function show() {
  try {
    const props = await get("props");
    $("model").textContent = props.model_alias ?? props.model_path?.split("/").pop() ?? "";
    const { settings, has_limit } = await get("slots/0/h2o");
    const room = has_limit ? `context of ${tokens(props.default_generation_settings.n_ctx)}` : "unlimited context";
    $("settings").textContent = `H2O: chunks of ${tokens(settings.chunk_size)}, ` +
      `${number(settings.memory_size)} kept, ${number(settings.lookup_budget)} looked up; ${room}`;
  } catch (error) {
    $("settings").textContent = error.message;
    if (error.status !== 503) return;
    await new Promise((resolve) => setTimeout(resolve, MILLISECONDS));
    await show();
  }
}
