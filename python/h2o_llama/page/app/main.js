// The page of `h2o-llama serve`. Each file is a part of it; they hear of each other by the conversation's events.

import "./conversations.js";
import "./documents.js";
import "./kept.js";
import "./questions.js";
import { begin, choose, last } from "./conversation.js";
import * as library from "./library.js";
import * as model from "./model.js";

const isOpen = await choose(last()).catch(() => false);
if (!isOpen) await begin();
await model.show();
await library.show();
