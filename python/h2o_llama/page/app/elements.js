// The page's elements and the format of its numbers.

export const $ = (id) => document.getElementById(id);

export const number = (n) => Math.round(n).toLocaleString("en");
export const tokens = (n) => `${number(n)} token${n === 1 ? "" : "s"}`;
export const seconds = (ms) => (ms / 1000).toFixed(ms < 9950 ? 1 : 0) + " s";
export const bytes = (n) => n < 1e9 ? number(n / 1e6) + " MB" : (n / 1e9).toFixed(1) + " GB";

// Children are nodes or text, never HTML: documents, names and answers are not trusted.
export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}
