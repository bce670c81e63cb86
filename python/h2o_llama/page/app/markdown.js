// Answers as Markdown. marked shows HTML as text; DOMPurify lets nothing through but these tags, links and columns.

import "./markdown/marked.min.js";
import "./markdown/dompurify.min.js";
import { copyButton, element } from "./elements.js";

const { marked, DOMPurify } = globalThis;
const allowed = {
  ALLOWED_TAGS: ("a blockquote br code del em h4 h5 h6 hr li ol p pre strong table tbody td th thead tr ul").split(" "),
  ALLOWED_ATTR: ["href", "start", "align"], ALLOW_ARIA_ATTR: false, ALLOW_DATA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(https?|mailto):/i, RETURN_DOM_FRAGMENT: true,
};
const asText = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt()};`);
marked.use({
  breaks: true,
  renderer: {
    html: ({ raw, block }) => block ? `<p>${asText(raw)}</p>` : asText(raw),
    image: ({ raw }) => asText(raw), // the page fetches nothing
    checkbox: ({ checked }) => checked ? "☑ " : "☐ ",
    heading({ tokens, depth }) {
      const tag = `h${Math.min(6, depth + 3)}`; // below the page's own headings
      return `<${tag}>${this.parser.parseInline(tokens)}</${tag}>`;
    },
  },
});

// Replaces only the blocks that have changed, so that the others keep a selection. The end of a growing
// text may be half a marker: "Namely:\n-" would be a heading for a moment.
export function write(place, text, isGrowing) {
  const blocks = marked.lexer(isGrowing ? text.replace(/\n[\s\-=*_+#>`~|:\d.)]*$/, "") : text)
    .filter(({ type }) => type !== "space" && type !== "def");
  for (const [i, block] of blocks.entries()) {
    if (place.children[i]?.source === block.raw) continue;
    const made = element("div", { source: block.raw }, DOMPurify.sanitize(marked.parser([block]), allowed));
    for (const link of made.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noreferrer" });
    for (const code of made.querySelectorAll("pre > code")) code.before(copyButton("Copy the code", () => code.textContent));
    if (place.children[i]) place.children[i].replaceWith(made);
    else place.append(made);
  }
  while (place.children.length > blocks.length) place.lastChild.remove();
}
