// Heat maps: the largest error in each cell, coloured by its logarithm. Zero, NaN and infinities have colours of their own.
const HEAT = { left: 58, right: 10, top: 6, bottom: 40, height: 300 };

function readStops() {
  return [0, 1, 2, 3].map((stop) => colorOf(`heat-${stop}`).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16)));
}

function blendStops(stops, share) {
  const place = share * (stops.length - 1), below = Math.min(Math.floor(place), stops.length - 2), part = place - below;
  const mixed = stops[below].map((value, index) => Math.round(value + part * (stops[below + 1][index] - value)));
  return `rgb(${mixed.join(" ")})`;
}

// the colours run over the decades that occur, at most eight below the largest: what is smaller seldom matters
function makeScale(values) {
  const some = values.filter((value) => value > 0 && Number.isFinite(value));
  const most = some.reduce((a, b) => Math.max(a, b), 0);
  const least = Math.max(some.reduce((a, b) => Math.min(a, b), most), most / 1e8);
  const span = Math.log10(most / least), stops = readStops(), none = colorOf("sunken"), broken = colorOf("mode");
  const share = (value) => (span ? Math.min(Math.max(Math.log10(value / least) / span, 0), 1) : 1);
  const color = (value) => (value === 0 ? none : Number.isFinite(value) ? blendStops(stops, share(value)) : broken);
  return { least, most, color, share, hasNone: values.includes(0), isBroken: values.some((value) => !Number.isFinite(value)) };
}

function openPaper(canvas, height) {
  const width = canvas.clientWidth, ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const paper = canvas.getContext("2d");
  paper.setTransform(ratio, 0, 0, ratio, 0, 0);
  paper.font = "12px system-ui, sans-serif";
  paper.fillStyle = colorOf("muted");
  return { paper, width };
}

// of a dimension longer than its bins, bin i begins at element floor(i * size / bins)
function rangeOf(bin, bins, size) {
  const from = Math.floor((bin * size) / bins), to = Math.floor(((bin + 1) * size) / bins) - 1;
  return from === to ? String(from) : `${from}–${to}`;
}

function paintHeat(canvas, map) {
  const cells = map.cells.map((row) => row.map(toNumber)), rows = cells.length, across = cells[0].length;
  const { paper, width } = openPaper(canvas, HEAT.height), scale = makeScale(cells.flat());
  const wide = width - HEAT.left - HEAT.right, high = HEAT.height - HEAT.top - HEAT.bottom;
  const edge = (place, count, extent) => Math.round((place / count) * extent);
  cells.forEach((row, y) => row.forEach((value, x) => {
    paper.fillStyle = scale.color(value);
    const left = HEAT.left + edge(x, across, wide), top = HEAT.top + edge(y, rows, high);
    paper.fillRect(left, top, HEAT.left + edge(x + 1, across, wide) - left, HEAT.top + edge(y + 1, rows, high) - top);
  }));
  const [down, right] = map.axes.map((axis) => map.shape[axis]);
  paper.strokeStyle = colorOf("line");
  paper.strokeRect(HEAT.left - 0.5, HEAT.top - 0.5, wide + 1, high + 1);
  paper.fillStyle = colorOf("muted");
  paper.textBaseline = "top";
  nameEnds(paper, HEAT.left, wide, HEAT.height - HEAT.bottom + 6, right, say("map.dimension", { dimension: map.axes[1] }));
  paper.textAlign = "right";
  paper.fillText("0", HEAT.left - 6, HEAT.top);
  paper.textBaseline = "bottom";
  paper.fillText(String(down - 1), HEAT.left - 6, HEAT.top + high);
  paper.save();
  paper.translate(14, HEAT.top + high / 2);
  paper.rotate(-Math.PI / 2);
  paper.textAlign = "center";
  paper.textBaseline = "middle";
  paper.fillText(say("map.dimension", { dimension: map.axes[0] }), 0, 0);
  paper.restore();
  canvas.onmousemove = (event) => {
    const x = Math.floor(((event.offsetX - HEAT.left) / wide) * across), y = Math.floor(((event.offsetY - HEAT.top) / high) * rows);
    const value = cells[y]?.[x];
    canvas.title = value === undefined ? "" : `[${rangeOf(y, rows, down)}, ${rangeOf(x, across, right)}] ${formatNumber(value)}`;
  };
  return scale;
}

function nameEnds(paper, left, wide, y, size, name) {
  paper.textAlign = "left";
  paper.fillText("0", left, y);
  paper.textAlign = "right";
  paper.fillText(String(size - 1), left + wide, y);
  paper.textAlign = "center";
  paper.fillText(name, left + wide / 2, y + 14);
}

function makeHeatLegend(scale) {
  const legend = make("p", { class: "heat-legend" });
  const swatch = (color, text) => {
    const mark = make("i", {});
    mark.style.background = color;
    legend.append(make("span", {}, mark, text));
  };
  if (scale.most > 0) {
    const bar = make("b", {});
    bar.style.background = `linear-gradient(90deg, ${[0, 1, 2, 3].map((stop) => colorOf(`heat-${stop}`)).join(", ")})`;
    legend.append(make("span", { class: "figure" }, formatNumber(scale.least)), bar, make("span", { class: "figure" }, formatNumber(scale.most)));
  }
  if (scale.hasNone) swatch(colorOf("sunken"), say("map.none"));
  if (scale.isBroken) swatch(colorOf("mode"), say("map.broken"));
  return legend;
}
