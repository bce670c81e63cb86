// The model's name, and how much it reads.

import { $, number, tokens } from "./elements.js";
import { get } from "./server.js";

const MILLISECONDS = 1000; // between two requests while the server loads its model
const NO_LIMIT = 2 ** 31 - 1; // of a context

const limits = { context: Infinity, trained: Infinity };

export async function show() {
  try {
    const props = await get("props");
    $("model").textContent = props.model_alias ?? props.model_path?.split("/").pop() ?? "";
    const { n_ctx } = props.default_generation_settings, { data: [{ meta }] } = await get("v1/models");
    if (n_ctx < NO_LIMIT) Object.assign(limits, { context: n_ctx, trained: meta.n_ctx_train });
    $("settings").textContent = `reads ${n_ctx < NO_LIMIT ? tokens(n_ctx) : "texts of any length"}`;
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
