(() => {
  "use strict";
  const entries = [...document.querySelectorAll(".entry")];
  const controls = ["search", "kind", "status", "domain", "release"].map((id) => document.getElementById(id));
  const [search, ...choices] = controls;
  const counter = document.getElementById("shown");
  const nothing = document.getElementById("nothing");

  const fits = (entry, words) =>
    words.every((word) => entry.dataset.words.includes(word)) &&
    choices.every(({ id, value }) => !value || (id === "release"
      ? entry.dataset.release.split(" ").includes(value)
      : entry.dataset[id] === value));

  const apply = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const entry of entries) {
      entry.hidden = !fits(entry, words);
      shown += entry.hidden ? 0 : 1;
    }
    counter.textContent = `${shown} of ${entries.length} rows`;
    nothing.hidden = shown > 0;
    const state = new URLSearchParams(controls.filter((c) => c.value).map((c) => [c.id, c.value]));
    history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
  };

  // a link to #search=rope&kind=fused opens filtered, one to #M053 opens that row
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.classList.contains("entry")) {
    target.open = true;
    target.scrollIntoView();
  } else {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const control of controls) control.value = wanted.get(control.id) || "";
    apply();
  }
  for (const control of controls) control.addEventListener("input", apply);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== search) { event.preventDefault(); search.focus(); }
  });
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("precision-align.theme", root.dataset.theme); } catch { /* not in this browser's file pages */ }
  });
  document.documentElement.dataset.ready = "yes";
})();
