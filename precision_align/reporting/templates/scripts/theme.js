(() => {
  "use strict";
  // before the first paint, so that a dark room sees no white flash; storage is off limits in some browsers' file pages
  let chosen = null;
  try { chosen = localStorage.getItem("precision-align.theme"); } catch { chosen = null; }
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = chosen || (dark ? "dark" : "light");
})();
