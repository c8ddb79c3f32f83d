// Scalar series of both runs, with the noise band around the reference and the step where they part.
const plots = [];
const WHOLE_STEPS = Array.from({ length: 10 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** power)).flat();
const AXIS = {
  stroke: () => colorOf("muted"), grid: { stroke: () => colorOf("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif",
};

function joinSides(curve) {
  const sides = [new Map(curve.reference), new Map(curve.candidate)];
  const steps = [...new Set([...sides[0].keys(), ...sides[1].keys()])].sort((a, b) => a - b);
  const values = sides.map((side) => steps.map((step) => {
    const value = side.get(step);
    return typeof value === "number" ? value : null;
  }));
  const broken = sides.map((side) => steps.filter((step) => typeof side.get(step) === "string"));
  return { steps, values, broken };
}

function paintBand(plot, curve, values, steps) {
  const band = toNumber(curve.band);
  if (!(band > 0) || !Number.isFinite(band)) return;
  const { ctx } = plot;
  const edge = (sign) => steps.map((step, index) => [step, values[index]]).filter(([, value]) => value !== null)
    .map(([step, value]) => [plot.valToPos(step, "x", true), plot.valToPos(value + sign * band, "y", true)]);
  const outline = [...edge(1), ...edge(-1).reverse()];
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  ctx.clip();
  ctx.beginPath();
  outline.forEach(([x, y], index) => (index ? ctx.lineTo(x, y) : ctx.moveTo(x, y)));
  ctx.closePath();
  ctx.globalAlpha = 0.14;
  ctx.fillStyle = colorOf("muted");
  ctx.fill();
  ctx.restore();
}

function paintMark(plot, place, words) {
  const { ctx, bbox } = plot, x = Math.round(plot.valToPos(place, "x", true)) + 0.5;
  const ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colorOf("fail");
  ctx.lineWidth = ratio;
  ctx.setLineDash([4 * ratio, 3 * ratio]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  const room = bbox.left + bbox.width - x > ctx.measureText(words).width + 8 * ratio;
  ctx.textAlign = room ? "left" : "right";
  ctx.fillText(words, x + (room ? 6 : -6) * ratio, bbox.top + 14 * ratio);
  ctx.restore();
}

function paintBroken(plot, broken) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${11 * ratio}px ui-monospace, monospace`;
  ctx.textAlign = "center";
  broken.forEach((steps, side) => {
    ctx.fillStyle = colorOf(side ? "fail" : "muted");
    for (const step of steps) ctx.fillText("×", plot.valToPos(step, "x", true), bbox.top + (side ? 28 : 40) * ratio);
  });
  ctx.restore();
}

function makePlot(holder, curve) {
  const { steps, values, broken } = joinSides(curve);
  const line = (label, color, width) => ({
    label, stroke: () => colorOf(color), width, spanGaps: true, points: { show: steps.length < 3 },
    value: (_, value) => (value === null ? "–" : formatNumber(value)),
  });
  const options = {
    width: holder.clientWidth, height: 260, scales: { x: { time: false } },
    axes: [{ ...AXIS, incrs: WHOLE_STEPS }, { ...AXIS, size: 56 }],
    series: [{ label: say("table.step") }, line(say("table.reference"), "muted", 1.5), line(say("table.candidate"), "accent", 2)],
    hooks: {
      drawClear: [(plot) => paintBand(plot, curve, values[0], steps)],
      draw: [(plot) => {
        if (curve.onset !== null) paintMark(plot, curve.onset, `${say("table.step")} ${curve.onset}: ${say("table.onset")}`);
        paintBroken(plot, broken);
      }],
    },
  };
  return new uPlot(options, [steps, ...values], holder);
}

function keepPlot(plot) {
  plots.push(plot);
  plot.ctx.canvas.setAttribute("role", "img");
  plot.ctx.canvas.setAttribute("aria-label", plot.root.closest("figure")?.querySelector("figcaption")?.innerText ?? "");
  return plot;
}

function drawCurves() {
  while (plots.length) plots.pop().destroy();
  for (const holder of document.querySelectorAll(".curve")) {
    if (!holder.clientWidth) continue; // in the language that is not shown
    const curve = data.curves[Number(holder.dataset.curve)];
    if (curve.reference.length || curve.candidate.length) keepPlot(makePlot(holder, curve));
  }
}
