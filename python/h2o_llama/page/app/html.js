// The text of HTML files, as documents.py has it.

const inline = new Set(("A ABBR B BDI BDO CITE CODE DATA DFN EM I KBD MARK Q S SAMP SMALL SPAN STRONG SUB SUP TIME U VAR "
  + "WBR").split(" "));
const hidden = new Set(["SCRIPT", "STYLE", "TEMPLATE", "NOSCRIPT", "SVG", "TITLE"]);

export const isHtml = (text) => /^\s*<(!doctype html|html)\b/i.test(text);

export function textOfHtml(source) {
  const parts = [""];
  const add = (text) => {
    const added = parts.at(-1).endsWith("\n") ? text.trimStart() : text;
    if (added) parts.push(added);
  };
  const walk = (node, inPre) => {
    const name = node.nodeName.toUpperCase();
    if (node.nodeType === Node.TEXT_NODE) {
      if (inPre) parts.push(node.data);
      else add(node.data.replace(/\s+/g, " "));
    }
    if (node.nodeType !== Node.ELEMENT_NODE || hidden.has(name)) return;
    const isCell = name === "TD" || name === "TH";
    if (!inline.has(name)) add(isCell ? "\t" : "\n");
    for (const child of node.childNodes) walk(child, inPre || name === "PRE");
    if (!inline.has(name) && !isCell) add("\n");
  };
  walk(new DOMParser().parseFromString(source, "text/html").documentElement, false);
  return parts.join("").replace(/[ \t]+\n/g, "\n").trim();
}
