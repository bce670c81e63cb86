// The page of `h2o-llama serve`. Each file is a part of it. The conversation's events connect them.

import "./conversations.js";
import "./documents.js";
import "./questions.js";
import { begin, choose, last } from "./conversation.js";
import * as library from "./library.js";
import * as model from "./model.js";

if (matchMedia("(max-width: 50em)").matches) {
  for (const panel of document.querySelectorAll(".more")) panel.open = false; // the conversation is below them
}
const isOpen = await choose(last()).catch(() => false);
if (!isOpen) await begin();
await model.show();
await library.show();
