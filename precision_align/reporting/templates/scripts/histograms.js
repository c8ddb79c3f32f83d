// Bars: the values of both sides, the errors by decades, the largest error along a dimension. All on logarithmic heights.
const BARS = { left: 58, right: 10, top: 8, bottom: 40, height: 170 };

// the height of a count: one element must still be seen beside a billion
function makeHeights(counts, high) {
  const most = Math.log10(counts.reduce((a, b) => Math.max(a, b), 1) * 2);
  return (count) => (count > 0 ? Math.max((Math.log10(count * 2) / most) * high, 2) : 0);
}

function openBars(canvas) {
  const { paper, width } = openPaper(canvas, BARS.height);
  const wide = width - BARS.left - BARS.right, high = BARS.height - BARS.top - BARS.bottom, floor = BARS.top + high;
  paper.strokeStyle = colorOf("line");
  paper.beginPath();
  paper.moveTo(BARS.left, floor + 0.5);
  paper.lineTo(BARS.left + wide, floor + 0.5);
  paper.stroke();
  return { paper, wide, high, floor };
}

function paintBars({ paper, wide, floor }, heights, color, alpha = 1) {
  const edge = (place) => Math.round(BARS.left + (place / heights.length) * wide);
  paper.globalAlpha = alpha;
  paper.fillStyle = color;
  heights.forEach((height, index) => paper.fillRect(edge(index), floor - height, Math.max(edge(index + 1) - edge(index) - 1, 1), height));
  paper.globalAlpha = 1;
}

function paintOutline({ paper, wide, floor }, heights, color) {
  paper.strokeStyle = color;
  paper.lineWidth = 1.5;
  paper.beginPath();
  paper.moveTo(BARS.left, floor);
  heights.forEach((height, index) => {
    for (const place of [index, index + 1]) paper.lineTo(BARS.left + (place / heights.length) * wide, floor - height);
  });
  paper.lineTo(BARS.left + wide, floor);
  paper.stroke();
  paper.lineWidth = 1;
}

function paintScale({ paper, wide, floor }, left, right, top, name) {
  paper.fillStyle = colorOf("muted");
  paper.textBaseline = "top";
  paper.textAlign = "left";
  paper.fillText(left, BARS.left, floor + 6);
  paper.textAlign = "right";
  paper.fillText(right, BARS.left + wide, floor + 6);
  paper.fillText(top, BARS.left - 6, BARS.top);
  paper.textAlign = "center";
  paper.fillText(name, BARS.left + wide / 2, floor + 20);
}

function paintValues(canvas, map) {
  const sheet = openBars(canvas), height = makeHeights([...map.expected, ...map.actual], sheet.high);
  paintBars(sheet, map.expected.map(height), colorOf("muted"), 0.45);
  paintOutline(sheet, map.actual.map(height), colorOf("accent"));
  const most = Math.max(...map.expected, ...map.actual);
  paintScale(sheet, ...map.bounds.map(formatNumber), formatShort(most), say("map.elements"));
}

function paintErrors(canvas, map) {
  const sheet = openBars(canvas);
  paintBars(sheet, map.errors.map(makeHeights(map.errors, sheet.high)), colorOf("fail"));
  const [low, high] = map.decades.map((power) => `1e${power}`);
  paintScale(sheet, low, high, formatShort(Math.max(...map.errors, 0)), say("map.elements"));
}

function paintProfile(canvas, map, { dimension, errors }) {
  const sheet = openBars(canvas), values = errors.map(toNumber), scale = makeScale(values);
  const rise = (value) => (value === 0 ? 0 : Number.isFinite(value) ? 0.15 + 0.85 * scale.share(value) : 1);
  const height = (value) => rise(value) * sheet.high;
  const edge = (place) => Math.round(BARS.left + (place / values.length) * sheet.wide);
  values.forEach((value, index) => {
    sheet.paper.fillStyle = scale.color(value);
    sheet.paper.fillRect(edge(index), sheet.floor - height(value), Math.max(edge(index + 1) - edge(index) - 1, 1), height(value));
  });
  paintScale(sheet, "0", String(map.shape[dimension] - 1), formatNumber(scale.most), say("map.dimension", { dimension }));
}

function formatShort(count) {
  const units = ["", "k", "M", "G", "T"];
  let size = count, unit = 0;
  while (size >= 1000 && unit < units.length - 1) { size /= 1000; unit += 1; }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)}${units[unit]}`;
}
