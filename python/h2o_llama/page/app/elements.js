// The page's elements and the format of its numbers.

export const $ = (id) => document.getElementById(id);

export const number = (n) => Math.round(n).toLocaleString("en");
export const tokens = (n) => `${number(n)} token${n === 1 ? "" : "s"}`;
export const seconds = (ms) => (ms / 1000).toFixed(ms < 9950 ? 1 : 0) + " s";
export const bytes = (n) => n < 1e9 ? number(n / 1e6) + " MB" : (n / 1e9).toFixed(1) + " GB";

// Children are nodes or text, never HTML: documents and names are not trusted, and answers come from markdown.js.
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function button(text, work, properties) {
  const made = element("button", { type: "button", ...properties }, text);
  made.addEventListener("click", work);
  return made;
}

export const copyButton = (ariaLabel, text) => button("Copy", async ({ target }) => {
  await copy(text());
  target.textContent = "Copied";
}, { className: "quiet copy", ariaLabel });

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = element("textarea", { value: text }); // a page of another machine without TLS has no clipboard
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
