"use strict";
const byId = id => document.getElementById(id);
const { heads, membership, shades, marked } = JSON.parse(byId("data").textContent);
const marks = new Map();
for (const mark of document.querySelectorAll("#document mark"))
  for (const p of mark.dataset.p.split(" ")) marks.set(Number(p), mark);

const number = n => n.toLocaleString("en");
const percent = share => (100 * share).toFixed(1) + " %";
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
    const since = h.since ? `, kept since chunk ${h.since[i]}` : "";
    names.push(`layer ${h.layer} head ${h.head} (score ${h.scores[i]}${since})`);
  }
  say(`Position ${positions.map(number).join(", ")}: ${marked} of ${names.length} of ${selected.length} heads: ` +
    names.slice(0, 6).join(", ") + (names.length > 6 ? ", …" : ""));
}

// --- the membership picture

const cells = [...document.querySelectorAll("#cells rect")];
// Cells are in order: the bins of a memory set, then the next set's.
const places = cells.map(cell => ({ column: Number(cell.getAttribute("x")), bin: 0 }));
places.forEach((place, i) => { if (i && places[i - 1].column === place.column) place.bin = places[i - 1].bin + 1; });
let selectedCell = -1;

function share({ column, bin }, selected) {
  let n = 0;
  for (const h of selected) n += membership.counts[h][column][bin] || 0;
  return n / selected.length / (membership.edges[bin + 1] - membership.edges[bin]);
}

function paintCells(selected) {
  const shares = places.map(place => selected.length ? share(place, selected) : 0);
  const most = shares.reduce((a, b) => Math.max(a, b), 0);
  // Each shade is for twice the share of the one before.
  const shade = share => share > 0 ? Math.max(1, shades - Math.floor(Math.log2(most / share))) : 0;
  cells.forEach((cell, i) => cell.setAttribute("class", "s" + shade(shares[i])));
  byId("strongest").textContent = percent(most);
  byId("whose").textContent = (selected.length === 1 ? "of " : "mean of ") + whose(selected.length);
}

function tellCell(i) {
  selectedCell = i;
  for (const name of ["x", "y", "width", "height"]) byId("cursor").setAttribute(name, cells[i].getAttribute(name));
  const { column, bin } = places[i], selected = chosen(), start = membership.edges[bin];
  say(`After chunk ${membership.sets[column]}, positions ${number(start)} to ${number(membership.edges[bin + 1] - 1)}: ` +
    `${percent(share(places[i], selected))} are heavy hitters of ${whose(selected.length)}` +
    (selected.length === 1 ? "." : ", on average."));
}

function moveCursor(event) {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const { column, bin } = places[selectedCell] || { column: 0, bin: -1 };
  const [dx, dy] = selectedCell < 0 ? [0, 1] : step;
  const i = places.findIndex(p => p.column === column + dx && p.bin === bin + dy);
  if (i >= 0) tellCell(i);
}

// --- everything together

function paint() {
  const selected = chosen();
  const n = paintText(selected);
  if (membership) paintCells(selected);
  say(selected.length === 0 ? "This head does not exist: choose another." :
    `${number(n)} tokens are ${marked} of ` + (selected.length === 1 ? "this head." : `at least one of ${whose(selected.length)}.`));
}

document.addEventListener("pointerover", event => {
  const { target } = event, mark = target.closest("#document mark[class]");
  if (mark) tellMark(mark);
  else if (target.closest("#cells")) tellCell(cells.indexOf(target));
});
if (membership) byId("grid").addEventListener("keydown", moveCursor);
byId("layer").addEventListener("change", paint);
byId("head").addEventListener("change", paint);
paint();
