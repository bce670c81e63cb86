// --- what was looked up

const text = byId("document").textContent;
const starts = [0];
for (const length of lookups.lengths) starts.push(starts[starts.length - 1] + length);
let queries = [], selectedQuery = -1;

const textOf = (start, stop) => text.slice(starts[Math.max(start, 0)], starts[Math.min(stop, starts.length - 1)]);
// A token that ends inside a character has no text.
const shown = (start, stop) => textOf(start, stop) || "·";
const inLine = text => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
const quoted = position => `“${inLine(shown(position, position + 1))}”`;

function found(text) {
  const mark = document.createElement("mark");
  mark.className = "found";
  mark.textContent = inLine(text);
  return mark;
}

// The position as many characters away, at least, as `n`; a token is never cut.
function away(position, step, n) {
  let to = position;
  while (to + step >= 0 && to + step < starts.length && Math.abs(starts[to] - starts[position]) < n) to += step;
  return to;
}

// Runs of neighbours: [start, stop, queries that asked].
function placesOf(asked) {
  const rows = asked.flatMap(([query, ...positions]) => positions.map(p => [p, query])).sort((a, b) => a[0] - b[0]);
  const places = [];
  for (const [p, query] of rows) {
    const last = places[places.length - 1];
    // A position may have been asked for again.
    if (last && last[1] >= p) { last[1] = p + 1; last[2].add(query); }
    else places.push([p, p + 1, new Set([query])]);
  }
  return places;
}

function listPlaces(asked) {
  const places = placesOf(asked);
  byId("places").replaceChildren(...places.map(([start, stop, by]) => {
    const item = document.createElement("li"), position = document.createElement("span");
    position.className = "count";
    position.textContent = number(start);
    item.append(position, inLine(textOf(away(start, -1, 40), start)), found(shown(start, stop)),
      inLine(textOf(stop, away(stop, 1, 30))));
    if (asked.length > 1) {
      const names = document.createElement("span");
      names.className = "soft";
      names.textContent = " asked by " + [...by].map(quoted).join(", ");
      item.append(names);
    }
    return item;
  }));
  byId("where").setAttribute("d", places.map(([start, stop]) => `M${(start + stop) / 2} 0V1`).join(""));
}

function selectQuery(i) {
  selectedQuery = i;
  for (const mark of document.querySelectorAll("#queries mark")) mark.classList.toggle("chosen", Number(mark.dataset.i) === i);
  const asked = i < 0 ? queries : [queries[i]], positions = new Set(asked.flatMap(row => row.slice(1))).size;
  listPlaces(asked);
  const who = i < 0 ? `Tile ${number(Number(byId("tile").value))}` :
    `Position ${number(queries[i][0])}, ${quoted(queries[i][0])},`;
  say(`${who} looked up ${number(positions)} ${positions === 1 ? "token" : "tokens"}.`);
}

function showTile() {
  const tile = Number(byId("tile").value), start = tile * lookups.size;
  const stop = Math.min(start + lookups.size, starts.length - 1);
  queries = lookups.tiles[tile - lookups.first].map(([query, ...positions]) => [start + query, ...positions]);
  byId("tile-name").textContent = `${number(tile)}: positions ${number(start)} to ${number(stop - 1)}`;
  const most = queries.reduce((n, row) => Math.max(n, row.length - 1), 1);
  const parts = [];
  let next = start;
  queries.forEach(([query, ...positions], i) => {
    const mark = document.createElement("mark"), name = shown(query, query + 1);
    mark.className = "s" + Math.ceil(positions.length * shades / most);
    mark.dataset.i = i;
    if (name.includes("\n")) mark.dataset.newline = "";
    mark.textContent = name;
    parts.push(textOf(next, query), mark);
    next = query + 1;
  });
  byId("queries").replaceChildren(...parts, textOf(next, stop));
  byId("asking").setAttribute("x", start);
  byId("asking").setAttribute("width", stop - start);
  selectQuery(-1);
}

byId("tile").addEventListener("input", showTile);
for (const kind of ["pointerover", "click"])
  byId("queries").addEventListener(kind, event => {
    const mark = event.target.closest("mark");
    if (mark) selectQuery(Number(mark.dataset.i));
    else if (kind === "click") selectQuery(-1);
  });
byId("queries").addEventListener("keydown", event => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (step) event.preventDefault();
  if (event.key === "Escape") selectQuery(-1);
  else if (step && selectedQuery + step >= 0 && selectedQuery + step < queries.length) selectQuery(selectedQuery + step);
});
showTile();
paint(); // what it says comes first
