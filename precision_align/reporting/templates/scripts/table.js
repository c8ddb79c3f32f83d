// The list of records: only the rows in view exist.
const columns = [
  { name: "order" }, { name: "status" }, { name: "scope" }, { name: "op" }, { name: "phase" },
  { name: "tensor" }, { name: "step", right: true }, { name: "excess", right: true },
];
const body = byId("grid-body"), fill = byId("grid-fill");
const OVERSCAN = 6;

function rowHeight() {
  return parseInt(colorOf("row"), 10);
}

function drawHead() {
  byId("grid-head").replaceChildren(...columns.map(({ name, right }) => {
    const sorted = state.sort === name;
    const arrow = sorted ? (state.down ? " ↓" : " ↑") : "";
    const button = make("button", { type: "button", "data-sort": name }, say(`table.${name}`) + arrow);
    const direction = sorted ? (state.down ? "descending" : "ascending") : undefined;
    if (sorted) button.setAttribute("aria-sort", direction);
    return make("span", { role: "columnheader", class: `c-${name}${right ? " right" : ""}`, "aria-sort": direction }, button);
  }));
}

function makeLine(row, position, height) {
  const status = statusOf(row), excess = cell.excess(row);
  const over = excess !== null && toNumber(excess) > 1 ? " over" : "";
  const line = make("div", {
    role: "row", class: `line ${status}${row === data.origin ? " origin" : ""}`, "data-row": row,
    "aria-rowindex": position + 2, "aria-selected": row === state.selected,
  });
  line.style.top = `${position * height}px`;
  const add = (kind, ...children) => line.append(make("span", { class: kind, role: "gridcell" }, ...children));
  add("order figure", String(cell.order(row)));
  add("state", make("i", { class: `dot ${status}` }), say(`status.${status}`));
  add("scope", make("bdi", {}, nameScope(scopeOf(row))));
  add("op", opOf(row));
  add("phase", say(`phase.short.${phaseOf(row)}`));
  add("tensor", nameTensor(row));
  add("step figure right", String(cell.step(row)));
  add(`excess figure right${over}`, formatExcess(excess));
  line.title = noteOf(row);
  return line;
}

function drawRows() {
  const height = rowHeight();
  fill.style.height = `${shown.length * height}px`;
  const from = Math.max(0, Math.floor(body.scrollTop / height) - OVERSCAN);
  const to = Math.min(shown.length, Math.ceil((body.scrollTop + body.clientHeight) / height) + OVERSCAN);
  const lines = [];
  for (let position = from; position < to; position += 1) lines.push(makeLine(shown[position], position, height));
  fill.replaceChildren(...lines);
  byId("grid").setAttribute("aria-rowcount", shown.length + 1);
}

function reveal(row) {
  const position = shown.indexOf(row);
  if (position < 0) return;
  const height = rowHeight(), top = position * height;
  const inside = top >= body.scrollTop && top + height <= body.scrollTop + body.clientHeight;
  if (!inside) body.scrollTop = Math.max(0, top - body.clientHeight / 3);
}

function move(by) {
  if (!shown.length) return;
  const now = shown.indexOf(state.selected);
  const next = now < 0 ? 0 : Math.min(Math.max(now + by, 0), shown.length - 1);
  choose(shown[next]);
}

function moveToBad(by) {
  const isBad = (row) => cell.status(row) < ALARMING;
  const now = shown.indexOf(state.selected), ahead = by > 0 ? shown.slice(now + 1) : shown.slice(0, Math.max(now, 0)).reverse();
  const next = ahead.find(isBad);
  if (next !== undefined) choose(next);
}

function choose(row) {
  state.selected = row;
  writeAddress();
  drawDetail();
  if (row >= 0) reveal(row);
  drawRows();
  drawWalkCursor();
}

let waiting = false;
body.addEventListener("scroll", () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; drawRows(); });
});
fill.addEventListener("click", (event) => {
  const line = event.target.closest(".line");
  if (line) choose(Number(line.dataset.row));
});
byId("grid-head").addEventListener("click", (event) => {
  const name = event.target.dataset.sort;
  if (!name) return;
  // the interesting end first: the largest excess, but the first step and the worst status
  state.down = state.sort === name ? !state.down : name === "excess";
  state.sort = name;
  refresh();
});
