"use strict";
const byId = id => document.getElementById(id);
const { heads, shades, most } = JSON.parse(byId("data").textContent);
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

// --- the text

// Heavy hitters of several heads are coloured by how many have them, all others by weight; of read tokens the strongest.
function paintText(selected) {
  const byHeads = !most && selected.length > 1, weight = new Map(), shade = new Map();
  for (const h of selected)
    heads[h].positions.forEach((p, i) => weight.set(p, (weight.get(p) || 0) + (byHeads ? 1 : heads[h].scores[i])));
  const ranked = [...weight].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, most || weight.size);
  ranked.forEach(([p, n], i) =>
    shade.set(p, byHeads ? Math.ceil(n * shades / ranked[0][1]) : shades - Math.floor(i * shades / ranked.length)));
  for (const mark of marks.values()) mark.removeAttribute("class");
  for (const [p, s] of [...shade].sort((a, b) => a[1] - b[1])) marks.get(p).className = "s" + s;
  byId("scale").textContent = byHeads ? "of more heads" : most ? "read more" : "higher score";
  return shade.size;
}

function tellMark(mark) {
  const positions = mark.dataset.p.split(" ").map(Number), found = [];
  const selected = chosen();
  for (const h of selected.map(i => heads[i])) {
    const i = h.positions.findIndex(p => positions.includes(p));
    if (i >= 0) found.push([h.scores[i], `layer ${h.layer} head ${h.head}: ${h.scores[i]}`]);
  }
  found.sort((a, b) => b[0] - a[0]);
  const sum = found.reduce((sum, [score]) => sum + score, 0);
  const what = most ? `read with weight ${sum.toPrecision(3)} by` : "heavy hitter of";
  say(`Position ${positions.map(number).join(", ")}: ${what} ${found.length} of ${selected.length} heads: ` +
    found.slice(0, 6).map(([, name]) => name).join(", ") + (found.length > 6 ? ", …" : ""));
}

// --- everything together

function paint() {
  const selected = chosen();
  const n = number(paintText(selected)), of = selected.length === 1 ? "this head" : `these ${selected.length} heads`;
  say(!selected.length ? "This head does not exist: choose another." :
    most ? `The ${n} tokens that ${of} read most.` : `${n} tokens are heavy hitters of ${of}.`);
}

document.addEventListener("pointerover", event => {
  const mark = event.target.closest("#document mark[class]");
  if (mark) tellMark(mark);
});
byId("layer").addEventListener("change", paint);
byId("head").addEventListener("change", paint);
paint();
