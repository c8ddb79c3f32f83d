// Every judged tensor in execution order: what was measured over what is allowed, on a logarithmic axis.
const walk = byId("walk"), canvas = walk.querySelector("canvas");
const LOW = -3, TOP = 8; // decades shown at most; beyond them points sit on the edge
const PAD = { left: 62, right: 8, top: 8, bottom: 22 };
let HIGH = 2, walkOrder = [], walkPlace = new Map(), painted = null;

function layWalk() {
  const keys = sortKeys("order");
  walkOrder = Array.from({ length: count }, (_, row) => row).sort((a, b) => keys[a] - keys[b] || a - b);
  walkPlace = new Map(walkOrder.map((row, position) => [row, position]));
  for (const row of walkOrder) HIGH = Math.max(HIGH, Math.min(2 * Math.ceil(decade(cell.excess(row), TOP) / 2), TOP));
  walk.hidden = !walkOrder.some((row) => cell.excess(row) !== null);
}

function decade(excess, high = HIGH) {
  const number = toNumber(excess);
  if (!(number > 0)) return LOW;
  return Math.min(Math.max(Math.log10(number), LOW), high);
}

const walkX = (row, width) => PAD.left + ((walkPlace.get(row) + 0.5) / count) * (width - PAD.left - PAD.right);
const walkY = (value, height) => PAD.top + ((HIGH - value) / (HIGH - LOW)) * (height - PAD.top - PAD.bottom);

function drawWalk() {
  if (walk.hidden) return;
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const paper = canvas.getContext("2d");
  paper.setTransform(ratio, 0, 0, ratio, 0, 0);
  paper.font = "12px system-ui, sans-serif";
  paintWalkAxes(paper, width, height);
  paintWalkPoints(paper, width, height);
  painted = make("canvas", { width: canvas.width, height: canvas.height });
  painted.getContext("2d").drawImage(canvas, 0, 0);
  drawWalkCursor();
}

function paintWalkAxes(paper, width, height) {
  paper.textAlign = "right";
  paper.textBaseline = "middle";
  for (let value = -2; value <= HIGH; value += 2) {
    const y = Math.round(walkY(value, height)) + 0.5;
    paper.strokeStyle = value === 0 ? colorOf("ink") : colorOf("line");
    paper.beginPath();
    paper.moveTo(PAD.left, y);
    paper.lineTo(width - PAD.right, y);
    paper.stroke();
    paper.fillStyle = value === 0 ? colorOf("ink") : colorOf("muted");
    paper.fillText(value === 0 ? say("table.limit") : value < 0 ? "0.01×" : value > 4 ? `10${"⁰¹²³⁴⁵⁶⁷⁸"[value]}×` : `${formatCount(10 ** value)}×`, PAD.left - 8, y);
  }
  paintWalkSteps(paper, width, height);
}

function paintWalkSteps(paper, width, height) {
  const starts = walkOrder.filter((row, position) => position === 0 || cell.step(row) !== cell.step(walkOrder[position - 1]));
  const room = Math.ceil((starts.length * 56) / Math.max(width - PAD.left, 1));
  paper.textAlign = "left";
  paper.strokeStyle = colorOf("line");
  paper.fillStyle = colorOf("muted");
  starts.forEach((row, index) => {
    if (index % room) return;
    const x = Math.round(walkX(row, width)) - 0.5;
    if (index) { paper.beginPath(); paper.moveTo(x, PAD.top); paper.lineTo(x, height - PAD.bottom + 6); paper.stroke(); }
    paper.fillText(`${say("table.step")} ${cell.step(row)}`, x + 3, height - 9);
  });
}

function paintWalkPoints(paper, width, height) {
  const inside = new Set(shown);
  const size = count > 20000 ? 1.5 : count > 2000 ? 2.5 : 4;
  const colors = table.statuses.map(colorOf);
  const passes = [...walkOrder].sort((a, b) => cell.status(b) - cell.status(a)); // the worst on top
  for (const row of passes) {
    const excess = cell.excess(row);
    const bad = cell.status(row) < ALARMING, extent = bad ? Math.max(size * 1.6, 5) : size; // one among 100,000 must be seen
    paper.globalAlpha = inside.has(row) ? (bad ? 1 : 0.75) : 0.08;
    paper.fillStyle = colors[cell.status(row)];
    const y = excess === null ? height - PAD.bottom : walkY(decade(excess), height);
    paper.fillRect(walkX(row, width) - extent / 2, y - extent / 2, extent, extent);
  }
  paper.globalAlpha = 1;
}

function drawWalkCursor() {
  if (!painted || walk.hidden) return;
  const paper = canvas.getContext("2d");
  paper.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  paper.drawImage(painted, 0, 0, canvas.clientWidth, canvas.clientHeight);
  if (state.selected < 0) return;
  const x = walkX(state.selected, canvas.clientWidth), excess = cell.excess(state.selected);
  const y = excess === null ? canvas.clientHeight - PAD.bottom : walkY(decade(excess), canvas.clientHeight);
  paper.strokeStyle = colorOf("ink");
  paper.lineWidth = 1.5;
  paper.beginPath();
  paper.arc(x, y, 7, 0, 2 * Math.PI);
  paper.stroke();
  paper.lineWidth = 1;
}

function nearestOnWalk(event) {
  const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  const wide = box.width - PAD.left - PAD.right;
  const middle = Math.round(((x - PAD.left) / wide) * count), reach = Math.ceil((14 / wide) * count) + 1;
  let best = -1, least = 20 * 20;
  for (let place = Math.max(0, middle - reach); place < Math.min(count, middle + reach); place += 1) {
    const row = walkOrder[place], excess = cell.excess(row);
    if (excess === null) continue;
    const far = (walkX(row, box.width) - x) ** 2 + (walkY(decade(excess), box.height) - y) ** 2;
    if (far < least) { least = far; best = row; }
  }
  return best;
}

canvas.addEventListener("mousemove", (event) => {
  const row = nearestOnWalk(event);
  canvas.title = row < 0 ? "" : `${nameScope(scopeOf(row))} · ${nameTensor(row)} · ${formatExcess(cell.excess(row))}`;
});
canvas.addEventListener("click", (event) => {
  const row = nearestOnWalk(event);
  if (row < 0) return;
  if (!shown.includes(row)) clearFilters();
  choose(row);
});
