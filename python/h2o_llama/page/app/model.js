// The model's name, and how much it reads.

import { $, number, tokens } from "./elements.js";
import { get } from "./server.js";

const MILLISECONDS = 1000; // between two requests while the server loads its model

const limits = { context: Infinity, trained: Infinity };

export async function show() {
  try {
    const props = await get("props");
    $("model").textContent = props.model_alias ?? props.model_path?.split("/").pop() ?? "";
    const { has_limit } = await get("slots/0/h2o").catch(() => ({ has_limit: true })); // H2O is off
    const { data: [{ meta }] } = await get("v1/models");
    if (has_limit) Object.assign(limits, { context: props.default_generation_settings.n_ctx, trained: meta.n_ctx_train });
    $("settings").textContent = `reads ${has_limit ? tokens(limits.context) : "texts of any length"}`;
  } catch (error) {
    $("settings").textContent = error.message;
    if (error.status !== 503) return;
    await new Promise((resolve) => setTimeout(resolve, MILLISECONDS));
    await show();
  }
}

// Says before the reading that documents are too long, and what helps.
export function tooLong(n) {
  if (n < limits.context) return "";
  const least = Math.ceil(n / 1024 + 2) * 1024, most = limits.trained;
  return `This text is too long: ${tokens(n)}, this server takes ${number(limits.context)}. Add a shorter part` + (n >= most
    ? `: the model was trained for ${number(most)}.`
    : `, or start the server with --n-ctx ${least < most ? least : `${most} (the model's most)`}.`);
}
