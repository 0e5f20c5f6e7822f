// The plots of the search: times over seconds, rates over the roofline, seconds by phase.

const W = 380, H = 230, PAD = { left: 58, right: 12, top: 26, bottom: 34 };

const decades = (low, high) => {
  const found = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    for (const m of high / low < 50 ? [1, 2, 5] : [1]) found.push(m * 10 ** e);
  }
  return found.filter((v) => v >= low * 0.999 && v <= high * 1.001);
};

function linear(low, high, from, to) {
  const step = [1, 2, 5, 10].map((m) => m * 10 ** Math.floor(Math.log10((high - low) / 5 || 1)))
    .find((d) => (high - low) / d <= 6);
  const ticks = [];
  for (let v = Math.ceil(low / step) * step; v <= high + 1e-9; v += step) ticks.push(v);
  return { at: (v) => from + ((v - low) / (high - low || 1)) * (to - from), ticks };
}

function logarithmic(low, high, from, to) {
  const [a, b] = [Math.log10(low), Math.log10(high)];
  return { at: (v) => from + ((Math.log10(v) - a) / (b - a || 1)) * (to - from), ticks: decades(low, high) };
}

function frame(x, y, xName, yName, xText, yText, label, content) {
  const [right, bottom] = [W - PAD.right, H - PAD.bottom];
  return s("svg", { viewBox: `0 0 ${W} ${H}`, width: "100%", role: "img", "aria-label": label },
    y.ticks.map((v) => [
      s("line", { class: "grid", x1: PAD.left, x2: right, y1: y.at(v), y2: y.at(v) }),
      s("text", { class: "axis", x: PAD.left - 6, y: y.at(v) + 4, "text-anchor": "end" }, yText(v)),
    ]).flat(),
    x.ticks.map((v) => s("text", { class: "axis", x: x.at(v), y: bottom + 15, "text-anchor": "middle" }, xText(v))),
    s("text", { class: "axis", x: right, y: H - 4, "text-anchor": "end" }, xName),
    s("text", { class: "axis", x: 0, y: 12 }, yName),
    content);
}

const figure = (title, drawing, caption) =>
  h("figure", { class: "card" }, h("h3", {}, title), drawing, h("figcaption", {}, caption));

const key = (color, text) =>
  h("span", { class: "key" }, h("span", { class: "swatch", style: `background:${color}` }), text);

function progressPlot(points) {
  const times = (points || []).flatMap(([, best, bound]) => [best, bound]).filter((v) => v > 0);
  if (!times.length) {
    return h("p", { class: "soft" }, points
      ? "Nothing was searched in this run: the choice came from the database."
      : "The progress of this search was not recorded.");
  }
  const end = points.at(-1)[0];
  const x = linear(0, end, PAD.left, W - PAD.right);
  const y = logarithmic(Math.min(...times) / 1.3, Math.max(...times) * 1.3, H - PAD.bottom, PAD.top);
  const stairs = (column) => {
    let d = "", last = null;
    for (const p of points) {
      if (!(p[column] > 0)) continue;
      const [px, py] = [x.at(p[0]).toFixed(1), y.at(p[column]).toFixed(1)];
      d += last === null ? `M${px},${py}` : `H${px}V${py}`;
      last = py;
    }
    return d && `${d}H${x.at(end)}`;
  };
  const dots = (column, color) => points.filter((p) => p[column] > 0).map((p) =>
    s("circle", { cx: x.at(p[0]), cy: y.at(p[column]), r: 2.6, fill: color },
      s("title", {}, `${time(p[column])} after ${digits(p[0])} s`)));
  return frame(x, y, "seconds", "time of a run", digits, time, `best ${time(points.at(-1)[1])} after ${digits(end)} s`, [
    s("path", { class: "line", d: stairs(2), stroke: "var(--quiet)" }), dots(2, "var(--quiet)"),
    s("path", { class: "line", d: stairs(1), stroke: "var(--accent)" }), dots(1, "var(--accent)"),
  ].flat());
}

// Kernels over operations a byte, under the lines that arithmetic and memory draw.
function rooflinePlot(roofline, kernels, choose) {
  const shown = kernels.filter((k) => k.ms > 0 && k.operations > 0 && !k.at_load);
  if (!roofline || !shown.length) return h("p", { class: "soft" }, "Not recorded, or no kernel that computes.");
  const intensity = (k) => k.operations / Math.max(1, k.bytes_read + k.bytes_written);
  const speed = (k) => k.operations / k.ms * 1e3;
  const peak = roofline.flops.float32 ?? Math.max(...Object.values(roofline.flops));
  const memory = roofline.levels.at(-1)[1], cache = roofline.levels[0][1];
  const range = (values) => [Math.min(...values) / 1.6, Math.max(...values) * 1.6];
  const [low, high] = range([...shown.map(intensity), peak / memory]);
  const [floor, top] = range([...shown.map(speed), peak]);
  const x = logarithmic(low, high, PAD.left, W - PAD.right);
  const y = logarithmic(floor, top, H - PAD.bottom, PAD.top);
  const roof = (bandwidth, color, dash) => {
    const from = Math.max(low, floor / bandwidth), knee = Math.min(high, Math.max(from, peak / bandwidth));
    const d = `M${x.at(from)},${y.at(Math.min(peak, from * bandwidth))}L${x.at(knee)},${y.at(Math.min(peak, knee * bandwidth))}H${x.at(high)}`;
    return s("path", { class: "line", d, stroke: color, "stroke-dasharray": dash });
  };
  return frame(x, y, "operations a byte", "operations a second", digits, (v) => rate(v, ""), `${shown.length} kernels under the roofline`, [
    roof(cache, "var(--quiet)", "4 3"), roof(memory, "var(--quiet)", null),
    ...shown.map((k) => s("circle", {
      class: "dot", cx: x.at(intensity(k)), cy: y.at(speed(k)), r: 3 + 7 * Math.sqrt(k.share),
      fill: "var(--accent)", "fill-opacity": 0.55, stroke: "var(--accent)", onclick: () => choose(k),
    }, s("title", {}, `${k.name}: ${rate(speed(k), "op/s")}, ${percent(k.share)} of a run`))),
  ]);
}

function phases(seconds) {
  const rows = Object.entries(seconds || {}).filter(([, v]) => known(v));
  const total = rows.reduce((sum, [, v]) => sum + v, 0);
  if (!total) return h("p", { class: "soft" }, "Not recorded.");
  const color = (i) => `var(--p${i % 8})`;
  return h("div", {},
    h("div", { class: "bar", "aria-hidden": "true" }, rows.map(([name, v], i) =>
      h("span", { style: `width:${(100 * v) / total}%;background:${color(i)};cursor:default`, title: `${name} ${digits(v)} s` }))),
    table(["phase", "#seconds", "#share"], rows.map(([name, v], i) => [key(color(i), name), digits(v), percent(v / total)])));
}
