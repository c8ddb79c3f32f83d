// Texts and small helpers that the other scripts share.
const data = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
const byId = (id) => document.getElementById(id);

function say(key, values = {}) {
  const texts = data.texts[root.dataset.lang];
  const text = (values.count === "1" && texts[`${key}.one`]) || (texts[key] ?? key);
  return text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

function translate(key, fallback) {
  return data.texts[root.dataset.lang][key] ?? fallback;
}

// Builds an element; text always goes in as text, never as markup.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function toNumber(value) {
  return typeof value === "string" ? Number(value) : value;
}

function formatNumber(value) {
  const number = toNumber(value);
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "Inf" : "-Inf";
  if (Number.isInteger(number) && Math.abs(number) < 1e6) return String(number);
  const size = Math.abs(number);
  return size >= 1e-4 && size < 1e6 ? String(Number(number.toPrecision(3))) : number.toExponential(2);
}

function formatBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let size = count, unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

const formatCount = (count) => count.toLocaleString("en-US");
const colorOf = (name) => getComputedStyle(root).getPropertyValue(`--${name}`).trim();

function formatExcess(value) {
  if (value === null) return "–";
  const number = toNumber(value);
  if (!Number.isFinite(number)) return "∞";
  if (number >= 1e6) return `${number.toExponential(1)}×`;
  return number >= 9.95 ? `${formatCount(Math.round(number))}×` : `${number.toFixed(2)}×`;
}
