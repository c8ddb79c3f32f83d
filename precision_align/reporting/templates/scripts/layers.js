// Error by layer, in the step of the first divergence, and the largest error of each step.
// not every module can be replayed: single points where one was, a line only for the difference between the runs
const LAYER_SERIES = [["raw_rel_l2", "raw", "muted", 1.5, true], ["native_rel_l2", "native", "pass", 1.5, false], ["rel_l2", "own", "accent", 2, false]];

function metricOf(row, name) {
  const place = table.metric_names[cell.names(row)].indexOf(name);
  const value = place < 0 ? null : toNumber(table.columns.values[row][place]);
  return value > 0 && Number.isFinite(value) ? value : null; // a logarithmic axis has no place for the rest
}

// whole decades, as many as there is room for
function splitDecades(low, high) {
  const from = Math.ceil(Math.log10(low)), to = Math.floor(Math.log10(high)), by = Math.ceil((to - from + 1) / 8) || 1;
  return Array.from({ length: Math.floor((to - from) / by) + 1 }, (_, place) => 10 ** (from + place * by));
}

// a decade more at the top: the mark's words stand there
function frameDecades(low, high) {
  return low > 0 ? [10 ** Math.floor(Math.log10(low)), 10 ** (Math.floor(Math.log10(high)) + 2)] : [null, null];
}

function makeLogPlot(holder, columns, series, label, mark = () => {}) {
  const lines = series.map(([, name, color, width, joined]) => ({
    label: say(`layers.${name}`), stroke: () => colorOf(color), width, spanGaps: false,
    points: { show: !joined || columns[0].length < 60, size: joined ? 4 : columns[0].length < 200 ? 6 : 3, fill: () => colorOf(color) },
    value: (_, value) => (value === null || value === undefined ? "–" : formatNumber(value)),
    ...(joined ? {} : { paths: () => null }),
  }));
  const options = {
    width: holder.clientWidth, height: 260, scales: { x: { time: false }, y: { distr: 3, range: (_, low, high) => frameDecades(low, high) } },
    axes: [
      { ...AXIS, incrs: WHOLE_STEPS },
      { ...AXIS, size: 62, splits: (_, __, low, high) => splitDecades(low, high), filter: (_, splits) => splits, values: (_, ticks) => ticks.map((tick) => tick.toExponential(0)) },
    ],
    series: [label, ...lines],
    hooks: { draw: [mark] },
  };
  return keepPlot(new uPlot(options, columns, holder));
}

function present(columns, series) {
  const kept = series.filter((_, index) => columns[index].some((value) => value !== null));
  return { kept, columns: columns.filter((column) => column.some((value) => value !== null)) };
}

function drawLayers() {
  const figure = byId("layers");
  if (!figure || !count) return;
  const step = cell.step(data.origin ?? 0), output = table.texts.indexOf("output"), forward = table.texts.indexOf("forward");
  const rows = walkOrder.filter((row) => cell.step(row) === step && cell.role(row) === output && cell.phase(row) === forward);
  const { kept, columns } = present(LAYER_SERIES.map(([name]) => rows.map((row) => metricOf(row, name))), LAYER_SERIES);
  figure.hidden = !kept.length || rows.length < 2;
  if (figure.hidden) return;
  figure.querySelector("figcaption").textContent = say("layers.lead", { step });
  const holder = figure.querySelector(".plot");
  const label = {
    label: say("table.scope"), value: (_, place) => (place === null || place === undefined ? "–" : `${nameScope(scopeOf(rows[place]))} · ${say("layers.call")} ${cell.call(rows[place])}`),
  };
  const origin = rows.indexOf(data.origin);
  const plot = makeLogPlot(holder, [rows.map((_, place) => place), ...columns], kept, label, (drawn) => {
    if (origin >= 0) paintMark(drawn, origin, nameScope(scopeOf(data.origin)));
  });
  plot.over.addEventListener("click", () => {
    const row = rows[plot.cursor.idx];
    if (row === undefined) return;
    if (!shown.includes(row)) clearFilters();
    choose(row);
    byId("records").scrollIntoView();
  });
}

function drawSteps() {
  const figure = byId("steps");
  if (!figure || !count) return;
  const steps = distinct("step").sort((a, b) => a - b), places = new Map(steps.map((step, place) => [step, place]));
  const found = LAYER_SERIES.map(() => new Array(steps.length).fill(null));
  for (let row = 0; row < count; row += 1) {
    const place = places.get(cell.step(row));
    LAYER_SERIES.forEach(([name], index) => {
      const value = metricOf(row, name);
      if (value !== null) found[index][place] = Math.max(found[index][place] ?? 0, value);
    });
  }
  const { kept, columns } = present(found, LAYER_SERIES);
  figure.hidden = !kept.length || steps.length < 2;
  if (!figure.hidden) makeLogPlot(figure.querySelector(".plot"), [steps, ...columns], kept, { label: say("table.step") });
}
