// The error of one tensor in figures: each with a caption that says in words what it shows.
function drawErrors() {
  for (const holder of document.querySelectorAll(".map-figures")) {
    if (!holder.closest("details:not([open])")) drawErrorMap(holder, data.error_maps[Number(holder.dataset.map)]);
  }
}

function drawErrorMap(holder, map) {
  const words = describeMap(map), others = map.profiles.filter(({ dimension }) => !map.axes.includes(dimension));
  holder.previousElementSibling.textContent = words;
  holder.replaceChildren();
  if (map.cells.length) {
    const figure = addFigure(holder, say("map.cells"), HEAT.height, words);
    figure.className = "heat";
    figure.append(makeHeatLegend(paintHeat(figure.querySelector("canvas"), map)));
  }
  if (map.expected.length) {
    const values = addFigure(holder, say("map.values"), BARS.height, say("map.span", { low: formatNumber(map.bounds[0]), high: formatNumber(map.bounds[1]) }));
    paintValues(values.querySelector("canvas"), map);
    values.append(make("p", { class: "heat-legend" },
      make("span", {}, make("i", { class: "of-expected" }), say(`map.${map.against}`)), make("span", {}, make("i", { class: "of-actual" }), say("table.candidate"))));
  }
  if (map.errors.length) {
    const errors = addFigure(holder, say("map.errors"), BARS.height, say("map.span", { low: `1e${map.decades[0]}`, high: `1e${map.decades[1]}` }));
    paintErrors(errors.querySelector("canvas"), map);
    errors.append(make("p", { class: "heat-legend" }, say("map.equal", { count: formatCount(map.equal) })));
  }
  for (const profile of others) {
    const title = say("map.profile", { dimension: profile.dimension });
    paintProfile(addFigure(holder, title, BARS.height, words).querySelector("canvas"), map, profile);
  }
}

function addFigure(holder, title, height, words) {
  const canvas = make("canvas", { role: "img", "aria-label": `${title}: ${words}` });
  canvas.style.height = `${height}px`;
  const figure = make("figure", {}, make("figcaption", {}, title), canvas);
  holder.append(figure);
  return figure;
}

function describeMap(map) {
  const total = map.shape.reduce((a, b) => a * b, 1), differing = (total - map.equal) / total;
  const values = map.profiles.map(({ errors }) => errors.map(toNumber));
  const most = values.length ? Math.max(...values[0]) : map.nonfinite ? Infinity : 10 ** map.decades[1];
  const ranges = map.profiles.map(({ dimension, errors }, index) => {
    const bin = values[index].indexOf(Math.max(...values[index]));
    return `${say("map.dimension", { dimension })}: ${rangeOf(bin, errors.length, map.shape[dimension])}`;
  });
  const parts = [say(`map.lead.${map.against}`, {
    shape: map.shape.join(" × ") || "1", most: values.length ? formatNumber(most) : `< ${formatNumber(most)}`,
    place: ranges.length ? say("map.place", { ranges: ranges.join(", ") }) : say("map.everywhere"), share: formatShare(differing),
  })];
  if (map.nonfinite) parts.push(say("map.nonfinite", { count: formatCount(map.nonfinite) }));
  return parts.join(" ");
}

function formatShare(share) {
  const percent = 100 * share;
  if (percent > 0 && percent < 0.1) return "< 0.1 %";
  return percent < 100 && percent > 99.9 ? "> 99.9 %" : `${Number(percent.toFixed(1))} %`;
}

document.addEventListener("toggle", (event) => {
  if (event.target.matches?.(".other[open]")) drawErrors();
}, true);
