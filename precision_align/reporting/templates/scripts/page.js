// Controls, keyboard, language and theme: what ties the parts together.
function refresh() {
  shown = select();
  writeAddress();
  body.scrollTop = 0;
  drawAll();
}

function drawAll() {
  drawHead();
  drawControls();
  drawRows();
  drawDetail();
  drawTree();
  drawWalk();
}

function drawFigures() {
  drawCurves();
  drawLayers();
  drawSteps();
  drawErrors();
}

function clearFilters() {
  const { selected, sort, down } = state;
  state = { ...initial(), selected, sort, down };
  refresh();
}

function drawControls() {
  const search = byId("search"), clear = byId("clear"), module = byId("module"), nothing = byId("nothing");
  search.placeholder = data.texts[root.dataset.lang]["page.search"];
  search.setAttribute("aria-label", search.placeholder);
  for (const [id, name] of [["phase", "phase"], ["step", "step"], ["states", "status"], ["tree", "scope"]]) byId(id).setAttribute("aria-label", say(`table.${name}`));
  canvas.setAttribute("aria-label", canvas.previousElementSibling?.innerText ?? "");
  if (search.value !== state.text) search.value = state.text;
  fillSelect(byId("phase"), say("table.phases"), distinct("phase").map((index) => table.texts[index]), state.phase, (name) => say(`phase.short.${name}`));
  fillSelect(byId("step"), say("table.steps"), distinct("step").sort((a, b) => a - b).map(String), state.step, (step) => `${say("table.step")} ${step}`);
  byId("states").replaceChildren(...makeStates());
  const filtered = isFiltered();
  byId("shown").textContent = filtered
    ? say("table.showing", { shown: formatCount(shown.length), count: formatCount(count) })
    : say("table.all", { count: formatCount(count) });
  clear.hidden = !filtered;
  clear.textContent = say("table.clear");
  module.hidden = !state.module;
  module.textContent = `${state.module} ×`;
  nothing.hidden = shown.length > 0;
  nothing.textContent = say(count ? "table.none" : "table.empty");
}

function fillSelect(element, every, values, chosen, name) {
  const options = values.map((value) => make("option", { value }, name(value)));
  element.replaceChildren(make("option", { value: "" }, every), ...options);
  element.value = values.includes(chosen) ? chosen : "";
  element.hidden = values.length < 2;
}

function makeStates() {
  const totals = new Array(table.statuses.length).fill(0);
  for (let row = 0; row < count; row += 1) totals[cell.status(row)] += 1;
  return table.statuses.flatMap((status, index) => (totals[index] ? [make("button", {
    type: "button", class: status, "data-status": status, "aria-pressed": state.statuses.has(status), title: say(`meaning.${status}`),
  }, make("i", { class: `dot ${status}` }), say(`status.${status}`), make("b", {}, formatCount(totals[index])))] : []));
}

function showOrigin() {
  if (data.origin === null) return;
  if (!shown.includes(data.origin)) clearFilters();
  openTo(scopeOf(data.origin));
  drawTree();
  choose(data.origin);
  byId("records").scrollIntoView();
  byId("grid").focus({ preventScroll: true });
}

function switchTheme() {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("precision-align.theme", root.dataset.theme); } catch { /* not kept, still switched */ }
  drawAll();
  drawFigures();
}

function switchLanguage() {
  root.dataset.lang = root.dataset.lang === "en" ? "zh" : "en";
  root.lang = root.dataset.lang;
  drawAll();
  drawFigures();
}

// ink on white, whatever the screen shows: canvases keep the colours they were drawn in
let screenTheme = root.dataset.theme;
function printLight(printing) {
  if (printing) screenTheme = root.dataset.theme;
  root.dataset.theme = printing ? "light" : screenTheme;
  drawFigures();
}

async function copyText(button) {
  const label = button.innerHTML;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
    return;
  }
  button.textContent = data.texts[root.dataset.lang]["page.copied"];
  setTimeout(() => { button.innerHTML = label; }, 1500);
}

const shortcuts = {
  "/": () => { byId("search").focus(); byId("search").select(); },
  j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
  n: () => moveToBad(1), p: () => moveToBad(-1),
  o: showOrigin, t: switchTheme, l: switchLanguage, "?": () => byId("help").showModal(),
  Escape: () => (state.selected >= 0 ? choose(-1) : clearFilters()),
};
let typing = 0;
byId("search").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => { state.text = event.target.value; refresh(); }, count > 20000 ? 150 : 0);
});
for (const name of ["phase", "step"]) {
  byId(name).addEventListener("change", (event) => { state[name] = event.target.value; refresh(); });
}
byId("states").addEventListener("click", (event) => {
  const status = event.target.closest("button")?.dataset.status;
  if (!status) return;
  if (!state.statuses.delete(status)) state.statuses.add(status);
  refresh();
});
byId("module").addEventListener("click", () => { state.module = ""; refresh(); });
byId("clear").addEventListener("click", clearFilters);
byId("origin")?.addEventListener("click", showOrigin);
byId("theme").addEventListener("click", switchTheme);
byId("help-open").addEventListener("click", shortcuts["?"]);
byId("language").addEventListener("click", switchLanguage);
byId("equal")?.addEventListener("change", (event) => byId("sides").classList.toggle("only-different", !event.target.checked));
document.addEventListener("click", (event) => {
  const button = event.target.closest(".copy");
  if (button) copyText(button);
});

document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input, select, textarea");
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (field && event.key === "Escape") { field.blur(); return; }
  const inGrid = byId("grid").contains(event.target);
  if (field || !shortcuts[event.key] || (event.key.startsWith("Arrow") && !inGrid)) return;
  event.preventDefault();
  shortcuts[event.key]();
});
window.addEventListener("beforeprint", () => printLight(true));
window.addEventListener("afterprint", () => printLight(false));
window.addEventListener("hashchange", () => {
  if (!readAddress()) return;
  shown = select();
  drawAll();
  if (state.selected >= 0) reveal(state.selected);
  byId("records").scrollIntoView();
});

let resizing = 0;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const plot of plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: 260 });
    drawRows();
    drawWalk();
    drawErrors();
  }, 60);
});

growTree();
sortLayers();
openChain();
if (data.origin !== null) openTo(scopeOf(data.origin));
if (matchMedia("(max-width: 900px)").matches) byId("modules").open = false;
const linked = readAddress();
layWalk();
shown = select();
drawAll();
drawFigures();
if (linked) {
  if (state.selected >= 0) { openTo(scopeOf(state.selected)); drawTree(); reveal(state.selected); }
  byId("records").scrollIntoView({ behavior: "instant" });
}
root.dataset.ready = "true";
