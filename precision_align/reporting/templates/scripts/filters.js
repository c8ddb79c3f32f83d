// What is shown: one state, kept in the address so that a view can be linked to.
const initial = () => ({ statuses: new Set(), text: "", phase: "", step: "", module: "", sort: "order", down: false });
let state = { ...initial(), selected: -1 };
let shown = [];

function fitsModule(scope) {
  return !state.module || scope === state.module || scope.startsWith(`${state.module}.`);
}

function select() {
  const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
  const lines = words.length ? searchable() : [];
  const scopes = table.texts.map(fitsModule);
  const statuses = table.statuses.map((status) => !state.statuses.size || state.statuses.has(status));
  const phase = state.phase ? table.texts.indexOf(state.phase) : -1;
  const step = state.step === "" ? null : Number(state.step);
  const rows = [];
  for (let row = 0; row < count; row += 1) {
    if (!statuses[cell.status(row)] || !scopes[cell.scope(row)]) continue;
    if (phase >= 0 && cell.phase(row) !== phase) continue;
    if (step !== null && cell.step(row) !== step) continue;
    if (words.length && !words.every((word) => lines[row].includes(word))) continue;
    rows.push(row);
  }
  const keys = sortKeys(state.sort), sign = state.down ? -1 : 1;
  return rows.sort((a, b) => sign * (keys[a] - keys[b]) || a - b);
}

function isFiltered() {
  return Boolean(state.statuses.size || state.text.trim() || state.phase || state.step !== "" || state.module);
}

function readAddress() {
  const hash = location.hash.slice(1);
  if (!hash.includes("=")) return false;
  const given = new URLSearchParams(hash);
  const known = (given.get("status") ?? "").split(",").filter((status) => table.statuses.includes(status));
  state = { ...initial(), selected: -1, statuses: new Set(known) };
  state.text = given.get("q") ?? "";
  state.phase = ["forward", "backward", "step"].includes(given.get("phase")) ? given.get("phase") : "";
  state.step = /^-?\d+$/.test(given.get("step") ?? "") ? given.get("step") : "";
  state.module = given.get("module") ?? "";
  if (columns.some(({ name }) => name === given.get("sort"))) state.sort = given.get("sort");
  state.down = given.get("down") === "1";
  if (given.has("record")) state.selected = table.columns.key.indexOf(given.get("record"));
  return true;
}

function writeAddress() {
  const parts = new URLSearchParams();
  if (state.statuses.size) parts.set("status", [...state.statuses].join(","));
  if (state.text) parts.set("q", state.text);
  for (const name of ["phase", "step", "module"]) if (state[name] !== "") parts.set(name, state[name]);
  if (state.sort !== "order") parts.set("sort", state.sort);
  if (state.down) parts.set("down", "1");
  if (state.selected >= 0) parts.set("record", cell.key(state.selected));
  const hash = parts.toString();
  try { history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search); } catch { return; }
}
