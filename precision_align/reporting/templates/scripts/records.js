// The columns of the table, read row by row.
const table = data.records;
const count = table.count;

function reader(name) {
  const column = table.columns[name];
  return Array.isArray(column) ? (row) => column[row] : () => column.all;
}

const cell = Object.fromEntries(Object.keys(table.columns).map((name) => [name, reader(name)]));
const textOf = (name) => (row) => table.texts[cell[name](row)];
const scopeOf = textOf("scope"), opOf = textOf("op"), phaseOf = textOf("phase"), roleOf = textOf("role");
const pathOf = textOf("path"), noteOf = textOf("note"), siteOf = textOf("site"), evidenceOf = textOf("evidence");
const sourceOf = textOf("source");
const statusOf = (row) => table.statuses[cell.status(row)];
const nameScope = (scope) => scope || say("root");
const nameTensor = (row) => `${translate(`role.${roleOf(row)}`, roleOf(row))}${pathOf(row) ? ` ${pathOf(row)}` : ""}`;

const naturally = new Intl.Collator("en", { numeric: true }).compare;

function rankTexts() {
  const order = table.texts.map((_, index) => index).sort((a, b) => naturally(table.texts[a], table.texts[b]));
  const ranks = new Float64Array(order.length);
  order.forEach((index, rank) => { ranks[index] = rank; });
  return ranks;
}

let textRanks = null;
function sortKeys(name) {
  const keys = new Float64Array(count);
  const isText = ["scope", "op", "phase", "note"].includes(name);
  if (isText) textRanks = textRanks ?? rankTexts();
  for (let row = 0; row < count; row += 1) {
    const value = name === "tensor" ? cell.role(row) * 1e6 + cell.path(row) : cell[name](row);
    keys[row] = isText ? textRanks[value] : value === null ? -1 : toNumber(value);
  }
  return keys;
}

let haystack = null;
function searchable() {
  haystack = haystack ?? Array.from({ length: count }, (_, row) =>
    [scopeOf(row), opOf(row), pathOf(row), noteOf(row), statusOf(row), cell.key(row)].join("\n").toLowerCase());
  return haystack;
}

function distinct(name) {
  const seen = new Set();
  for (let row = 0; row < count; row += 1) seen.add(cell[name](row));
  return [...seen];
}
