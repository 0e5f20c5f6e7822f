// A segment's graph in layers: longest paths, order by the mean of the neighbours, curves between.

const VIEWS = ["permute", "expand", "reshape", "slice", "pad", "window"];
const LAYER = 66, HEIGHT = 40, GAP = 22;

const kindOf = (op) =>
  op === "input" || op === "weight" ? op
    : op.endsWith("_reduce") ? "reduce"
    : VIEWS.includes(op) ? "view"
    : "map";

// What is drawn: constants stand in the nodes that read them; views are passed over if not wanted.
function visible(segment, views) {
  const nodes = segment.nodes.map(([op, dtype, shape, attr, from]) => ({ op, dtype, shape, attr, from }));
  const outputs = new Set(segment.outputs);
  const constant = nodes.map(() => null);
  nodes.forEach((n, i) => {
    if (n.op === "constant") constant[i] = n.attr;
    else if (VIEWS.includes(n.op) && n.op !== "pad") constant[i] = constant[n.from[0]];
  });
  const through = (i) =>
    !views && VIEWS.includes(nodes[i].op) && !outputs.has(i) ? through(nodes[i].from[0]) : i;
  const shown = [], place = new Map();
  const see = (i) => {
    if (place.has(i)) return place.get(i);
    const n = nodes[i];
    const reads = n.from.filter((f) => constant[f] === null || outputs.has(f)).map((f) => see(through(f)));
    const with_ = n.from.map((f) => constant[f]).filter((c, k) => c !== null && !outputs.has(n.from[k]));
    const name = n.op.endsWith("_reduce") ? `${n.op.slice(0, 3)} over axis` : n.op;
    const label = [name, ...(n.attr ? [n.attr] : []), ...with_.map(short)].join(" ");
    const shape = `${n.dtype} ${n.shape.length ? n.shape.join("×") : "scalar"}`;
    place.set(i, shown.length);
    shown.push({ label, shape, kind: kindOf(n.op), output: outputs.has(i), reads: [...new Set(reads)] });
    return shown.length - 1;
  };
  segment.outputs.forEach(see);
  return shown;
}

const short = (text) => (isNaN(Number(text)) ? text : digits(Number(text), 4));

// Layers of {node, up, down, x, w}; an edge over several layers is a chain of items without a node.
function layered(nodes) {
  const depth = nodes.map(() => 0);
  nodes.forEach((n, i) => n.reads.forEach((r) => { depth[i] = Math.max(depth[i], depth[r] + 1); }));
  const readers = nodes.map(() => []);
  nodes.forEach((n, i) => n.reads.forEach((r) => readers[r].push(i)));
  nodes.forEach((n, i) => { // leaves stand just above what reads them first
    if (!n.reads.length && readers[i].length) depth[i] = Math.min(...readers[i].map((r) => depth[r])) - 1;
  });
  const layers = Array.from({ length: Math.max(...depth) + 1 }, () => []);
  const add = (d, node) => {
    const width = node ? Math.max(node.label.length * 6.9, node.shape.length * 6.3) + 20 : 4;
    const item = { node, up: [], down: [], x: 0, w: width };
    layers[d].push(item);
    return item;
  };
  const items = nodes.map((n, i) => add(depth[i], n));
  const edges = [];
  nodes.forEach((n, i) => n.reads.forEach((r) => {
    const path = [items[r]];
    for (let d = depth[r] + 1; d < depth[i]; d++) path.push(add(d, null));
    path.push(items[i]);
    path.slice(1).forEach((b, k) => { path[k].down.push(b); b.up.push(path[k]); });
    edges.push(path);
  }));
  return { layers, edges };
}

const mean = (items) => items.reduce((sum, i) => sum + i.x, 0) / items.length;

function arrange(layers) {
  for (const layer of layers) pack(layer);
  for (let round = 0; round < 12; round++) {
    const side = round % 2 ? "down" : "up";
    for (const layer of round % 2 ? [...layers].reverse() : layers) {
      for (const i of layer) i.want = i[side].length ? mean(i[side]) : i.up.length + i.down.length ? mean([...i.up, ...i.down]) : i.x;
      if (round < 8) layer.sort((a, b) => a.want - b.want);
      spread(layer);
    }
  }
}

function pack(layer) {
  let x = 0;
  for (const i of layer) [i.x, x] = [x + i.w / 2, x + i.w + GAP];
}

// As near to where they want to be as their widths allow: runs that would overlap share a shift.
function spread(layer) {
  const runs = [];
  for (const i of layer) {
    let run = { items: [i], width: i.w + GAP, at: i.want };
    while (runs.length && runs.at(-1).at + runs.at(-1).width / 2 > run.at - run.width / 2) {
      const left = runs.pop(), width = left.width + run.width;
      const middle = (r, from) => r.at + (width / 2 - from - r.width / 2);
      const [a, b] = [left.items.length, run.items.length];
      const at = (middle(left, 0) * a + middle(run, left.width) * b) / (a + b);
      run = { items: [...left.items, ...run.items], width, at };
    }
    runs.push(run);
  }
  for (const run of runs) {
    let x = run.at - run.width / 2;
    for (const i of run.items) [i.x, x] = [x + (i.w + GAP) / 2, x + i.w + GAP];
  }
}

function drawGraph(segment, views, zoom, name) {
  const nodes = visible(segment, views);
  const { layers, edges } = layered(nodes);
  arrange(layers);
  const all = layers.flat();
  const left = Math.min(...all.map((i) => i.x - i.w / 2)) - 12;
  const width = Math.max(...all.map((i) => i.x + i.w / 2)) + 12 - left;
  const height = layers.length * LAYER;
  layers.forEach((layer, d) => layer.forEach((i) => { i.y = d * LAYER + LAYER / 2; i.x -= left; }));
  const half = (i) => (i.node ? HEIGHT / 2 : 0);
  const curve = (a, b) => {
    const [from, to] = [a.y + half(a), b.y - half(b)], middle = (from + to) / 2;
    return `L${a.x},${from} C${a.x},${middle} ${b.x},${middle} ${b.x},${to}`;
  };
  const line = (path) => s("path", {
    class: "edge",
    d: path.slice(1).map((b, k) => curve(path[k], b)).join(" ").replace("L", "M"),
  });
  const box = (i) => s("g", { class: `node ${i.node.kind}${i.node.output ? " output" : ""}` },
    s("title", {}, `${i.node.label}: ${i.node.shape}`),
    s("rect", { x: i.x - i.w / 2, y: i.y - HEIGHT / 2, width: i.w, height: HEIGHT, rx: 7 }),
    s("text", { x: i.x, y: i.y - 3, "text-anchor": "middle" }, i.node.label),
    s("text", { x: i.x, y: i.y + 12, "text-anchor": "middle", class: "shape" }, i.node.shape));
  const scale = zoom(width);
  return s("svg", {
    viewBox: `0 0 ${width} ${height}`, width: width * scale, height: height * scale, role: "img",
    "aria-label": `${name}: ${nodes.length} nodes, ${edges.length} edges`,
    style: "margin: 0 auto",
  }, edges.map(line), all.filter((i) => i.node).map(box));
}
