// The chosen kernels as boxes, and what is known of the one that is selected.

const schedule = (text) => {
  try {
    const [tiles, order, grid, block, options] = JSON.parse(text);
    const named = options.map(([name, value]) => (value === 1 ? name : `${name} ${value}`));
    return [`tiles ${tiles.map(([, t]) => t).join("×") || "none"}`, `order ${order.join(" ")}`,
      `grid ${grid}`, `block ${block.join("×")}`, ...named].join(", ");
  } catch { return text; }
};

// What follows from the data: a kernel's share of a run, its rates, how near it is to its bound.
function measure(kernels) {
  const total = kernels.reduce((sum, k) => sum + (k.at_load ? 0 : (k.ms || 0) * (k.count || 1)), 0);
  for (const k of kernels) {
    k.share = total && !k.at_load ? ((k.ms || 0) * (k.count || 1)) / total : 0;
    k.reached = k.ms > 0 && known(k.bound_ms) ? k.bound_ms / k.ms : null;
    k.moved = known(k.bytes_read) ? k.bytes_read + k.bytes_written : null;
  }
}

const speeds = (k) => (k.ms > 0 && known(k.operations)
  ? `${rate(k.operations / k.ms * 1e3, "op/s")} · ${rate(k.moved / k.ms * 1e3, "B/s")}` : "–");

function boxContent(k) {
  return [
    h("span", { class: "ends" }, h("strong", {}, k.name), h("span", { class: "soft" }, k.at_load ? "once, at load" : `× ${count(k.count)}`)),
    h("span", { class: "ends num" }, h("span", {}, k.at_load ? "–" : time(k.ms)), h("span", {}, k.at_load ? "" : percent(k.share))),
    h("div", { class: "thin" }, h("span", { style: `width:${Math.min(100, 100 * (k.reached || 0))}%` })),
    h("span", { class: "soft num" }, k.at_load ? "not part of a run" : `${percent(k.reached)} of the bound's rate`), h("br"),
    h("span", { class: "soft num" }, speeds(k)), h("br"),
    h("span", { class: "soft num" }, `in ${bytes(k.bytes_read)}, out ${bytes(k.bytes_written)}`),
  ];
}

function rejectedTable(k) {
  if (!k.rejected) return h("p", { class: "soft" }, "Not recorded.");
  if (!k.rejected.length) return h("p", {}, "No other kernel makes this value, and no other schedule was tried.");
  const state = (r) => (r.status === "ok" ? "slower or not in the best cover" : r.status === "open" ? "not measured" : r.status);
  const row = (r) => [
    r.what === "schedule" ? schedule(r.name) : r.name, time(r.ms), r.ms && k.ms ? `${digits(r.ms / k.ms, 3)} ×` : "–",
    time(r.bound_ms), h("span", { class: ["ok", "open"].includes(r.status) ? "soft" : "warm" }, r.message ? `${state(r)}: ${r.message}` : state(r)),
  ];
  const part = (what, title, first) => {
    const rows = k.rejected.filter((r) => r.what === what);
    return rows.length ? [h("h3", {}, title), table([first, "#time", "#of chosen", "#bound", "status"], rows.map(row)), h("br")] : [];
  };
  return h("div", {}, part("kernel", "Other kernels that make this value", "kernel"),
    part("schedule", "Other schedules of this kernel", "schedule"));
}

function rulesTable(rules) {
  const rows = Object.entries(rules || {}).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
  return rows.length ? table(["rule", "#new equalities"], rows.map(([name, n]) => [h("code", {}, name), count(n)]))
    : h("p", { class: "soft" }, "No rule found anything new, or none was recorded.");
}

const TABS = {
  "Tile program": (k) => h("pre", {}, k.tile_program),
  Source: (k) => h("pre", {}, k.source),
  Rules: (k, found) => h("div", {}, k.segments
    ? k.segments.map((i) => [h("h3", {}, `Segment ${i}`), rulesTable(found.segments[i].rules)]).flat()
    : rulesTable(found.rules)),
  Rejected: rejectedTable,
};
let tabOpen = 0;

function detail(k, found) {
  const panel = h("div", { role: "tabpanel", id: "panel", tabindex: "0" });
  const tabs = choices(Object.keys(TABS), "tab", (name) => name, (name, i) => {
    tabOpen = i;
    panel.setAttribute("aria-label", `${name} of ${k.name}`);
    panel.replaceChildren(TABS[name](k, found));
    panel.scrollTop = 0;
  });
  tabs.buttons.forEach((b) => b.setAttribute("aria-controls", "panel"));
  tabs.pick(tabOpen);
  return [
    h("h3", {}, k.writes ? `${k.name}: ${k.writes.join(", ")} from ${k.reads.join(", ")}` : k.name),
    facts([
      ["time", time(k.ms)], ["bound", time(k.bound_ms)], ["of the bound's rate", percent(k.reached)],
      ["runs", k.at_load ? "at load" : count(k.count)], ["share", percent(k.share)], ["rate", speeds(k)],
      ["operations", scaled(k.operations, ["", "k", "M", "G", "T"], 1000)],
      ["reads", bytes(k.bytes_read)], ["writes", bytes(k.bytes_written)],
    ]),
    k.schedule ? h("p", { class: "soft mono" }, schedule(k.schedule)) : null,
    h("div", { class: "row", role: "tablist", "aria-label": `About ${k.name}`, onkeydown: tabs.onkeydown }, tabs.buttons),
    panel,
  ].filter((x) => x !== null);
}
