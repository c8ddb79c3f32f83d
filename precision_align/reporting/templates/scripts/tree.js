// The modules, each in the colour of the worst record below it.
const blank = () => ({ children: new Map(), worst: table.statuses.length - 1, bad: 0 });
const top_ = { ...blank(), name: "", path: "", depth: 0 };
const open_ = new Set([""]);
const ALARMING = table.statuses.indexOf("warn"); // statuses before this one are counted in the tree

function growTree() {
  const nodes = new Map([["", top_]]);
  for (let row = 0; row < count; row += 1) {
    const scope = scopeOf(row), status = cell.status(row);
    for (let node = nodes.get(scope) ?? plant(scope, nodes); node; node = node.parent) {
      node.worst = Math.min(node.worst, status);
      if (status < ALARMING) node.bad += 1;
    }
  }
}

function plant(scope, nodes) {
  let node = top_;
  for (const name of scope.split(".")) {
    if (!node.children.has(name)) {
      const path = node === top_ ? name : `${node.path}.${name}`;
      node.children.set(name, { ...blank(), name, path, parent: node, depth: node.depth + 1 });
    }
    node = node.children.get(name);
  }
  nodes.set(scope, node);
  return node;
}

// layers of a list in their order, whatever was recorded of them first; named children as they first ran
function sortLayers(node = top_) {
  const children = [...node.children];
  if (children.every(([name]) => /^\d+$/.test(name))) children.sort((a, b) => a[0] - b[0]);
  node.children = new Map(children);
  for (const child of node.children.values()) sortLayers(child);
}

function openTo(scope) {
  const parts = scope.split(".");
  for (let end = 1; end < parts.length; end += 1) open_.add(parts.slice(0, end).join("."));
}

function openChain() {
  let node = top_;
  while (node.children.size === 1) {
    [node] = node.children.values();
    open_.add(node.path);
  }
  for (const child of node.children.values()) if (node.children.size <= 4) open_.add(child.path);
}

function visibleNodes(node = top_, found = []) {
  found.push(node);
  if (open_.has(node.path)) for (const child of node.children.values()) visibleNodes(child, found);
  return found;
}

function makeNode(node) {
  const status = table.statuses[node.worst], origin = data.origin === null ? null : scopeOf(data.origin);
  const opened = open_.has(node.path);
  const element = make("div", {
    role: "treeitem", class: `node ${status}${node !== top_ && node.path === origin ? " origin" : ""}`,
    "data-path": node.path, tabindex: node.path === state.module ? 0 : -1, "aria-level": node.depth + 1,
    "aria-selected": node.path === state.module, "aria-expanded": node.children.size ? opened : undefined,
    title: `${node.path || say("table.modules")} · ${say(`status.${status}`)}`,
  });
  element.style.setProperty("--depth", node.depth);
  element.append(
    make("span", { class: "twist" }, node.children.size ? (opened ? "▾" : "▸") : ""),
    make("i", { class: `dot ${status}` }),
    make("span", { class: "name" }, node === top_ ? say("table.modules") : node.name || "·"),
  );
  if (node.bad) element.append(make("span", { class: "count" }, formatCount(node.bad)));
  return element;
}

function drawTree() {
  byId("tree").replaceChildren(...visibleNodes().map(makeNode));
}

function toggle(path) {
  if (!path) return;
  if (!open_.delete(path)) open_.add(path);
}

function pickModule(path, alsoToggle) {
  if (alsoToggle) toggle(path);
  state.module = path;
  refresh();
}

byId("tree").addEventListener("click", (event) => {
  const element = event.target.closest(".node");
  if (!element) return;
  const path = element.dataset.path;
  if (event.target.closest(".twist")) { toggle(path); drawTree(); return; }
  pickModule(path, path === state.module);
});
byId("tree").addEventListener("keydown", (event) => {
  const element = event.target.closest(".node");
  if (!element) return;
  const path = element.dataset.path, opened = open_.has(path);
  const steps = { ArrowDown: element.nextElementSibling, ArrowUp: element.previousElementSibling };
  if (steps[event.key]) steps[event.key].focus();
  else if ((event.key === "ArrowRight" && !opened) || (event.key === "ArrowLeft" && opened)) { toggle(path); drawTree(); focusNode(path); }
  else if (event.key === "Enter" || event.key === " ") { pickModule(path, false); focusNode(path); }
  else return;
  event.preventDefault();
  event.stopPropagation();
});

function focusNode(path) {
  [...byId("tree").children].find((element) => element.dataset.path === path)?.focus();
}
