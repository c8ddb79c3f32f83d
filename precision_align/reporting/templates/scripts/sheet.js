// Controls of a page of results: language, theme, copying, and curves that follow the window.
function switchTheme() {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  try { localStorage.setItem("precision-align.theme", root.dataset.theme); } catch { /* not kept, still switched */ }
  drawCurves();
}

function switchLanguage() {
  root.dataset.lang = root.dataset.lang === "en" ? "zh" : "en";
  root.lang = root.dataset.lang;
  drawCurves();
}

byId("theme").addEventListener("click", switchTheme);
byId("language").addEventListener("click", switchLanguage);
document.addEventListener("click", async (event) => {
  const button = event.target.closest(".copy");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
  } catch {
    getSelection().selectAllChildren(button.previousElementSibling);
  }
});
window.addEventListener("resize", () => {
  for (const plot of plots) plot.setSize({ width: plot.root.parentElement.clientWidth, height: 260 });
});
drawCurves();
root.dataset.ready = "true";
