"use strict";
const byId = id => document.getElementById(id);
const { heads, shades, marked } = JSON.parse(byId("data").textContent);
const marks = new Map();
for (const mark of document.querySelectorAll("#document mark"))
  for (const p of mark.dataset.p.split(" ")) marks.set(Number(p), mark);

const number = n => n.toLocaleString("en");
const say = text => { byId("detail").textContent = text; };

// Indices of the heads that the two lists choose.
function chosen() {
  const fits = (list, value) => list.value === "" || Number(list.value) === value;
  return [...heads.keys()].filter(i => fits(byId("layer"), heads[i].layer) && fits(byId("head"), heads[i].head));
}

function whose(n) {
  if (n === 1) return "this head";
  return n === heads.length ? `the ${n} heads` : `these ${n} heads`;
}

// --- the text

function paintText(selected) {
  const one = selected.length === 1, shade = new Map();
  if (one) {
    heads[selected[0]].positions.forEach((p, i, all) => shade.set(p, shades - Math.floor(i * shades / all.length)));
  } else {
    const count = new Map();
    for (const h of selected) for (const p of heads[h].positions) count.set(p, (count.get(p) || 0) + 1);
    let most = 1;
    for (const n of count.values()) most = Math.max(most, n);
    for (const [p, n] of count) shade.set(p, Math.ceil(n * shades / most));
  }
  for (const mark of marks.values()) mark.removeAttribute("class");
  for (const [p, s] of [...shade].sort((a, b) => a[1] - b[1])) marks.get(p).className = "s" + s;
  byId("scale").textContent = one ? "higher score" : "of more heads";
  return shade.size;
}

function tellMark(mark) {
  const positions = mark.dataset.p.split(" ").map(Number), names = [];
  const selected = chosen();
  for (const h of selected.map(i => heads[i])) {
    const i = h.positions.findIndex(p => positions.includes(p));
    if (i < 0) continue;
    names.push(`layer ${h.layer} head ${h.head} (score ${h.scores[i]})`);
  }
  say(`Position ${positions.map(number).join(", ")}: ${marked} of ${names.length} of ${selected.length} heads: ` +
    names.slice(0, 6).join(", ") + (names.length > 6 ? ", …" : ""));
}

// --- everything together

function paint() {
  const selected = chosen();
  const n = paintText(selected);
  say(selected.length === 0 ? "This head does not exist: choose another." :
    `${number(n)} tokens are ${marked} of ` + (selected.length === 1 ? "this head." : `at least one of ${whose(selected.length)}.`));
}

document.addEventListener("pointerover", event => {
  const mark = event.target.closest("#document mark[class]");
  if (mark) tellMark(mark);
});
byId("layer").addEventListener("change", paint);
byId("head").addEventListener("change", paint);
paint();
