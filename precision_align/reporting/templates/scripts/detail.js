// All that is known of the chosen record.
function drawDetail() {
  const panel = byId("detail"), row = state.selected;
  panel.hidden = row < 0;
  if (row < 0) return;
  const status = statusOf(row);
  const close = make("button", { type: "button", class: "link" }, say("table.close"));
  close.addEventListener("click", () => choose(-1));
  const head = make("header", {}, make("i", { class: `dot ${status}` }), make("code", {}, nameScope(scopeOf(row))), close);
  panel.replaceChildren(head, make("dl", { class: "facts" }, ...listFacts(row).flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {}, value)])));
}

function listFacts(row) {
  const status = statusOf(row);
  const at = { step: cell.step(row), micro: cell.micro(row), rank: cell.rank(row), call: cell.call(row) };
  const facts = [
    [say("table.status"), `${say(`status.${status}`)}: ${noteOf(row) || say(`meaning.${status}`)}`],
    [say("table.place"), `${say(`phase.short.${phaseOf(row)}`)} · ${say("table.at", at)}`],
    [say("table.tensor"), `${nameTensor(row)} · ${formatBytes(cell.nbytes(row))}`],
    [say("table.op"), [opOf(row), sourceOf(row)].filter(Boolean).join(" · ")],
    [say("table.site"), translate(`site.${siteOf(row)}`, siteOf(row))],
    [say("table.limit"), describeLimit(row)],
  ];
  if (evidenceOf(row)) facts.push([say("table.evidence"), evidenceOf(row)]);
  const names = table.metric_names[cell.names(row)];
  const numbers = names.map((name, index) => {
    const label = make("span", { title: translate(`metric.${name}`, name) }, make("span", { class: "muted" }, `${name} `));
    label.append(make("span", { class: "figure" }, formatNumber(table.columns.values[row][index])));
    return label;
  });
  if (numbers.length) facts.push(["", make("div", { class: "numbers" }, ...numbers)]);
  facts.push([say("table.key"), make("code", {}, cell.key(row))]);
  return facts;
}

function describeLimit(row) {
  const limit = table.limits[cell.limit(row)];
  if (!limit) return say("table.unjudged");
  const [metric, value, origin] = limit;
  return `${metric} ≤ ${formatNumber(value)} · ${formatExcess(cell.excess(row))} · ${origin}`;
}
