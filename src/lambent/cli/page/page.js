// The page: fills its sections from the data.

const found = JSON.parse(document.getElementById("data").textContent);
const kernels = found.kernels || [];
const at = (id) => document.getElementById(id);
measure(kernels);

function header() {
  const whole = found.ms ?? (kernels.length ? kernels.reduce((sum, k) => sum + k.ms * k.count, 0) : null);
  at("top").append(
    h("h1", {}, found.name),
    h("p", { class: "soft" }, `what lambent found on ${found.device ?? "an unknown device"}`),
    facts([
      ["time of a run", time(whole)], ["gap to the bound", percent(found.gap)],
      ["timing noise", percent(found.noise)], ["additivity error", percent(found.additivity_error)],
      ["kernels measured", `${count(found.measured)} of ${count(found.candidates)}`],
      ["e-nodes", count(found.e_nodes)], ["e-classes", count(found.e_classes)],
      ["rounds", `${count(found.rounds)}${found.saturated === false ? ", limited" : ""}`],
      ["programs", count(found.programs)], ["arena", bytes(found.arena_bytes)],
    ]),
    ...(found.certificate_void ? [h("p", { class: "warm" }, "A kernel was measured below its bound: the gap proves nothing.")] : []));
}

function search() {
  at("search").append(
    figure("Best time and bound over the search", progressPlot(found.progress),
      [key("var(--accent)", "best found"), key("var(--quiet)", "no program is faster than this")]),
    figure("Kernels under the roofline", rooflinePlot(found.roofline, kernels, (k) => select(k)),
      "What arithmetic and memory allow; dashed: the nearest cache. A dot is a kernel, its size the share of a run."),
    figure("Seconds by phase", phases(found.seconds), ""));
}

let select = () => {};

function kernelSection() {
  if (!kernels.length) {
    at("boxes").append(h("p", { class: "soft" }, "This program has no kernels, or they were not recorded."));
    at("detail").remove();
    return;
  }
  const place = h("div", { class: "boxes" });
  const bars = new Map();
  let chosen = location.hash.slice(1), later = 0;
  function list(order) {
    const shown = [...kernels].sort(order);
    const boxes = choices(shown, null, boxContent, (k) => {
      at("detail").replaceChildren(...detail(k, found));
      bars.forEach((bar, name) => bar.classList.toggle("on", name === k.name));
      chosen = k.name;
      clearTimeout(later); // browsers refuse addresses that change many times a second
      later = setTimeout(() => history.replaceState(null, "", `#${k.name}`), 300);
    });
    boxes.buttons.forEach((b, i) => { b.className = "box"; b.dataset.kernel = shown[i].name; });
    place.replaceChildren(...boxes.buttons);
    place.onkeydown = boxes.onkeydown;
    select = (k) => {
      boxes.pick(shown.indexOf(k));
      boxes.buttons[shown.indexOf(k)].scrollIntoView({ block: "nearest" });
    };
    boxes.pick(Math.max(0, shown.findIndex((k) => k.name === chosen)));
  }
  const orders = { "by time": (a, b) => b.share - a.share || kernels.indexOf(a) - kernels.indexOf(b), "in order": () => 0 };
  const sort = choices(Object.keys(orders), null, (name) => name, (name) => list(orders[name]));
  kernels.forEach((k, i) => {
    if (!k.share) return;
    const bar = h("span", {
      style: `width:${100 * k.share}%;background:var(--p${i % 8})`,
      title: `${k.name}: ${percent(k.share)}`, onclick: () => select(k),
    });
    bars.set(k.name, bar);
    at("shares").append(bar);
  });
  at("boxes").append(h("div", { class: "row", role: "group", "aria-label": "Order of the kernels" }, sort.buttons), place);
  sort.pick(0);
}

// Runs of one segment stand as one box.
function runs() {
  const out = [];
  found.instances.forEach(({ segment }, i) => {
    if (out.length && out.at(-1).segment === segment) out.at(-1).count++;
    else out.push({ segment, count: 1, first: i });
  });
  return out;
}

// What the inputs of a segment stand for, where it is there first.
function named(segment) {
  const { inputs } = found.instances.find((i) => i.segment === segment);
  const told = inputs.slice(0, 6).map((x, i) =>
    `x${i} is ${typeof x === "string" ? x : `a result of segment ${found.instances[x].segment}`}`);
  return told.join(", ") + (inputs.length > 6 ? ", …" : "");
}

function graphSection() {
  if (!found.segments) {
    at("graph").append(h("p", { class: "soft" }, "The graph was not recorded."));
    return;
  }
  let shown = 0, views = false, zoom = 1;
  const drawing = h("div", { class: "drawing card", tabindex: "0", role: "group", "aria-label": "The segment's graph; arrow keys scroll" });
  const told = h("p", { class: "soft" });
  const draw = () => {
    const segment = found.segments[shown];
    const times = found.instances.filter((i) => i.segment === shown).length;
    const fitted = (width) => (zoom ? zoom : Math.min(1, (drawing.clientWidth - 34) / width));
    drawing.replaceChildren(drawGraph(segment, views, fitted, `segment ${shown}`));
    drawing.scrollLeft = (drawing.scrollWidth - drawing.clientWidth) / 2;
    told.textContent = `Segment ${shown}, ${times === 1 ? "there once" : `${times} times in the graph, searched once`}: `
      + `${segment.nodes.length} nodes; ${count(segment.e_nodes)} e-nodes in ${count(segment.e_classes)} e-classes. ${named(shown)}`;
  };
  const flow = runs();
  const boxes = choices(flow, null, (r) => `segment ${r.segment}${r.count > 1 ? ` × ${r.count}` : ""}`, (r) => { shown = r.segment; draw(); });
  const arrows = boxes.buttons.map((b, i) => (i ? [h("span", { class: "soft", "aria-hidden": "true" }, "→"), b] : [b])).flat();
  const toggle = h("button", { type: "button", "aria-pressed": "false", onclick: () => {
    views = !views;
    toggle.setAttribute("aria-pressed", String(views));
    draw();
  } }, "show views");
  const scales = choices([["fit", 0], ["½", 0.5], ["1", 1]], null, ([name]) => name, ([, value]) => { zoom = value; draw(); });
  const legend = ["input", "weight", "reduce", "view"].map((kind) => key(`var(--${kind})`, kind));
  const from = found.instances[0].inputs.filter((x) => typeof x === "string");
  at("graph").append(
    h("div", { class: "flow", role: "group", "aria-label": "Segments in order", onkeydown: boxes.onkeydown },
      h("span", { class: "soft" }, from.length ? `${from.join(", ")} →` : ""), arrows),
    h("div", { class: "row" }, toggle, h("span", { class: "soft" }, "size"), scales.buttons, h("span", { class: "push soft" }, legend)),
    drawing, told);
  boxes.pick(flow.findIndex((r) => r.count === Math.max(...flow.map((f) => f.count))));
  scales.pick(2);
}

function storedSection() {
  const rows = (found.stored || []).map((b) => [h("code", {}, b.name), b.dtype, b.shape.join("×") || "scalar", bytes(b.bytes)]);
  at("stored").append(rows.length
    ? h("div", { class: "card scroll", tabindex: "0", role: "group", "aria-label": "Stored intermediates" }, table(["name", "dtype", "shape", "#size"], rows))
    : h("p", { class: "soft" }, found.stored ? "None: nothing between the kernels goes through memory." : "Not recorded."));
}

header();
search();
kernelSection();
graphSection();
storedSection();
