// Elements, and numbers as people read them.

const SVG = "http://www.w3.org/2000/svg";

function fill(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return made;
}

const h = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

const s = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

const known = (x) => typeof x === "number" && isFinite(x);

function digits(x, n = 3) {
  if (!known(x)) return "–";
  if (x !== 0 && Math.abs(x) < 1e-4) return x.toExponential(1);
  if (Math.abs(x) >= 1000) return Math.round(x).toLocaleString("en");
  return String(Number(x.toPrecision(n)));
}

const percent = (x) => (known(x) ? `${digits(100 * x, x < 0.1 ? 2 : 3)} %` : "–");

function time(ms) {
  if (!known(ms)) return "–";
  if (ms >= 1000) return `${digits(ms / 1000)} s`;
  return ms >= 1 || ms === 0 ? `${digits(ms)} ms` : `${digits(ms * 1000)} µs`;
}

function scaled(x, units, base) {
  if (!known(x)) return "–";
  let i = 0;
  while (x >= base && i < units.length - 1) [x, i] = [x / base, i + 1];
  return `${digits(x)} ${units[i]}`;
}

const bytes = (x) => scaled(x, ["B", "KiB", "MiB", "GiB"], 1024);
const rate = (x, unit) => scaled(x, [unit, `k${unit}`, `M${unit}`, `G${unit}`, `T${unit}`], 1000);

function count(x) {
  if (!known(x)) return "–";
  if (x < 1e9) return x.toLocaleString("en");
  const exponent = String(Math.floor(Math.log10(x)));
  return `about 10${[...exponent].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]).join("")}`;
}

const facts = (pairs) =>
  h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));

// Columns whose name starts with "#" hold numbers.
function table(columns, rows) {
  const kinds = columns.map((c) => (c.startsWith("#") ? "num" : "name"));
  const head = columns.map((c, i) => h("th", { class: kinds[i], scope: "col" }, c.replace("#", "")));
  const line = (cells) => h("tr", {}, cells.map((x, i) => h("td", { class: kinds[i] }, x)));
  return h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map(line)));
}

// One of several is chosen; arrows move between them. `make` returns the button's content.
function choices(items, role, make, choose) {
  const buttons = items.map((item, i) =>
    h("button", { type: "button", role, onclick: () => pick(i) }, make(item, i)));
  const state = role === "tab" ? "aria-selected" : "aria-pressed";
  function pick(i) {
    buttons.forEach((b, j) => {
      b.setAttribute(state, String(i === j));
      if (role === "tab") b.tabIndex = i === j ? 0 : -1;
    });
    choose(items[i], i);
  }
  function onkeydown(event) {
    const at = buttons.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const to = { Home: 0, End: buttons.length - 1 }[event.key] ?? at + step;
    if (at < 0 || !buttons[to]) return;
    event.preventDefault();
    buttons[to].focus();
    if (role === "tab") pick(to);
  }
  return { buttons, pick, onkeydown };
}
