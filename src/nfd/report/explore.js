// Sliders over stored numbers: what is chosen, what is known there, its charts in SVG, and the command of each.

const { grid } = table;
const axes = [
  { key: "width", title: "width n", values: [...grid.widths, Infinity], start: 1 },
  { key: "depth", title: "depth L", values: grid.depths, start: 2 },
  { key: "horizon", title: "horizon T", values: grid.horizons, start: 1 },
  { key: "rate", title: "rate eta_c", values: grid.rates, start: 4 },
  { key: "rule", title: "rule", values: grid.rules, start: 1 },
];
const chosen = Object.fromEntries(axes.map((axis) => [axis.key, axis.start]));
const limited = () => chosen.width === grid.widths.length;
const seeds = Array.from({ length: grid.seeds }, (_, k) => k).join(",");

// ---- numbers: [value, low, high] or null, by places in the lists of the grid

const cell = (c) => table.cells[
  (((c.horizon * grid.rules.length + c.rule) * grid.rates.length + c.rate) * grid.depths.length + c.depth) * grid.widths.length + c.width];
const limit = (c) => table.limits[((c.horizon * grid.rules.length + c.rule) * grid.rates.length + c.rate) * grid.depths.length + c.depth];
const best = (c) => table.best[((c.horizon * grid.rules.length + c.rule) * grid.depths.length + c.depth) * grid.widths.length + c.width];
const law = (c) => table.laws[(c.horizon * grid.rules.length + c.rule) * grid.rates.length + c.rate];
const lawAt = (c) => law(c)?.lines[c.depth * grid.widths.length + c.width] ?? null;
const loss = (c) => (c.width === grid.widths.length ? limit(c) : cell(c)[1]);
const TOP = 4; // nats: losses above are marked like those of networks that diverged
const low = (c) => (loss(c)?.[0] < TOP ? loss(c) : null);
const update = (k) => (c) => (c.width === grid.widths.length ? null : cell(c)[k]);
const marked = (number) => (c) => (number === low ? !low(c) : number !== best && cell(c)[0] > 0);

const name = (x) => (x === Infinity ? "∞" : typeof x === "string" ? x : Number(x.toPrecision(x < 1 ? 2 : 4)).toString());
const digits = (x) => (Math.abs(x) >= 100 && Math.abs(x) < 1e5 ? Math.round(x).toString() : x.toPrecision(3));
const shown = (number) => (number ? `${digits(number[0])} [${digits(number[1])}, ${digits(number[2])}]` : null);
const value = (key, c = chosen) => axes.find((axis) => axis.key === key).values[c[key]];

// ---- commands

function sweep(lists) {
  const one = (setting, key) => `${setting}=${lists[key] ? lists[key].join(",") : value(key)}`;
  const widths = lists.width ?? [value("width")];
  const meter = widths.every((n) => grid.measured.includes(n)) ? " meter=updates" : "";
  return `nfd sweep ${one("width", "width")} ${one("depth", "depth")} ${one("horizon", "horizon")} ${one("eta_c", "rate")} ${one("rule", "rule")} ` +
    `block=two-layer steps=${grid.steps} batch=${grid.batch} seed=${seeds}${meter}`;
}

const training = () => `--block two-layer --horizon ${value("horizon")} --steps ${grid.steps} --batch ${grid.batch}`;
const predicted = () => `nfd predict --depth ${value("depth")} --rule ${value("rule")} --eta-c ${value("rate")} ${training()} ` +
  `--width ${grid.limit_width} --replicates ${grid.replicates}`;
const transferred = () => `nfd transfer --widths ${value("width")} --depths ${grid.depths.join(" ")} --rules ${grid.rules.join(" ")} ` +
  `--eta-c ${grid.rates.join(" ")} ${training()} --seeds ${grid.seeds}`;
const fitted = () => `${sweep({ width: grid.widths, depth: grid.depths })} --out out/law && ` +
  "nfd capacity --from out/law/runs.csv --columns loss=train_loss";

// ---- elements

function element(tag, attributes = {}, ...children) {
  const drawn = ["svg", "path", "text", "line", "circle", "polygon", "title"].includes(tag);
  const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, text] of Object.entries(attributes)) made.setAttribute(key, text);
  made.append(...children);
  return made;
}

function command(text, about, caption = "") {
  const button = element("button", { type: "button", "aria-label": `copy the command of ${about}` }, "copy");
  const line = element("pre", { tabindex: "0" }, ...text.split(" ").flatMap((word) => [element("span", {}, word), " "]).slice(0, -1));
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(line);
      button.textContent = "selected";
    }
  });
  const box = element("div", { class: "command" }, line, button);
  return caption ? element("div", {}, element("p", { class: "note" }, caption), box) : box;
}

// ---- charts: the places of an axis stand at equal distances, as the lists of the grid grow by factors

const box = { width: 416, height: 260, left: 50, right: 120, top: 14, bottom: 38 };
const inner = { width: box.width - box.left - box.right, height: box.height - box.top - box.bottom };

function ticks(low, high, log) {
  const steps = [];
  if (log && high / low > 4) {
    const few = Math.log10(high / low) > 2.2 ? [1] : [1, 2, 5];
    for (let p = Math.floor(Math.log10(low)); p <= Math.log10(high); p++) for (const f of few) steps.push(Number(`${f}e${p}`));
  } else {
    const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((f) => f * power).find((s) => s >= rough);
    for (let k = Math.ceil(low / step); k * step <= high; k++) steps.push(k * step);
  }
  return steps.filter((y) => y >= low && y <= high);
}

// Of the means of all series, with a margin; intervals that reach farther are cut at the edges.
function span(series, log) {
  const means = series.flatMap((s) => s.points.filter(Boolean).map((p) => p[0])).filter((y) => !log || y > 0);
  if (!means.length) return null;
  let [low, high] = [Math.min(...means), Math.max(...means)];
  for (const p of series.filter((s) => s.strong).flatMap((s) => s.points.filter(Boolean))) {
    const reach = log ? 2 : 0.5 * (high - low) + 0.05;
    low = Math.min(low, log ? Math.max(p[1], low / reach) : Math.max(p[1], low - reach));
    high = Math.max(high, log ? Math.min(p[2], high * reach) : Math.min(p[2], high + reach));
  }
  return log ? [low / 1.15, high * 1.15] : [low - 0.04 * (high - low + 0.01), high + 0.04 * (high - low + 0.01)];
}

function drawing({ title, places, across, up, log, series, at }) {
  const x = (k) => box.left + inner.width * (places.length > 1 ? k / (places.length - 1) : 0.5);
  const svg = element("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "img", "aria-label": words(title, places, series) });
  const range = span(series, log);
  const bottom = box.top + inner.height;
  svg.append(element("text", { x: box.left + inner.width / 2, y: bottom + 33, "text-anchor": "middle" }, across),
    element("text", { x: 4, y: 9 }, up));
  if (!range) {
    svg.append(element("text", { x: box.left, y: bottom / 2 }, "Nothing was computed here."));
    return svg;
  }
  const scale = (y) => (log ? Math.log(y / range[0]) / Math.log(range[1] / range[0]) : (y - range[0]) / (range[1] - range[0]));
  const y = (v) => bottom - inner.height * Math.min(Math.max(log && v <= 0 ? 0 : scale(v), 0), 1);
  for (const t of ticks(...range, log))
    svg.append(element("path", { class: "tick", d: `M${box.left},${y(t)}h${inner.width}` }),
      element("text", { x: box.left - 6, y: y(t) + 4, "text-anchor": "end" }, name(t)));
  places.forEach((place, k) => svg.append(element("text", { x: x(k), y: bottom + 16, "text-anchor": "middle" }, name(place))));
  svg.append(element("path", { class: "axis", d: `M${box.left},${box.top}V${bottom}h${inner.width}` }));
  if (at !== undefined) svg.append(element("path", { class: "here", d: `M${x(at)},${box.top}V${bottom}` }));
  const labels = [];
  const lost = series.filter((s) => s.lost?.length);
  for (const s of [...series].sort((a, b) => Number(Boolean(a.strong)) - Number(Boolean(b.strong)))) {
    const known = s.points.map((p, k) => p && { k, p }).filter(Boolean);
    const style = `stroke: var(--${s.colour}); stroke-width: ${s.strong ? 2.6 : 1.3}`;
    const joined = known.filter(({ k }) => k !== s.apart);
    if (s.strong || s.shade)
      svg.append(element("polygon", { style: `fill: var(--${s.colour}); fill-opacity: .15`,
        points: [...joined.map(({ k, p }) => `${x(k)},${y(p[2])}`), ...joined.toReversed().map(({ k, p }) => `${x(k)},${y(p[1])}`)].join(" ") }));
    const path = s.points.map((p, k) => (p && k !== s.apart ? `${k && s.points[k - 1] ? "L" : "M"}${x(k)},${y(p[0])}` : "")).join("");
    svg.append(element("path", { d: path, fill: "none", style, "stroke-dasharray": s.dash ?? "none" }));
    for (const { k, p } of s.plain ? [] : known) {
      if (!s.bare) svg.append(element("line", { x1: x(k), x2: x(k), y1: y(p[1]), y2: y(p[2]), style }));
      const dot = element("circle", { cx: x(k), cy: y(p[0]), r: s.strong ? 4 : 2.6, style: `fill: var(--${k === s.apart ? "paper" : s.colour}); ${style}` });
      dot.append(element("title", {}, `${s.name}, ${name(places[k])}: ${shown(p)}`));
      svg.append(dot);
    }
    for (const k of s.lost ?? []) svg.append(
      element("text", { x: x(k) + 9 * (lost.indexOf(s) - (lost.length - 1) / 2), y: box.top + 8, "text-anchor": "middle",
        style: `fill: var(--${s.colour}); font-weight: 700` }, "×"));
    const last = known.at(-1);
    if (last) labels.push({ text: s.name, colour: s.colour, strong: s.strong, y: y(last.p[0]) + 4 });
  }
  labels.sort((a, b) => a.y - b.y);
  labels.forEach((label, k) => { if (k) label.y = Math.max(label.y, labels[k - 1].y + 12); });
  const over = Math.max(0, (labels.at(-1)?.y ?? 0) - bottom);
  for (const label of labels)
    svg.append(element("text", { x: box.width - box.right + 10, y: label.y - over, style: `fill: var(--${label.colour}); font-weight: ${label.strong ? 700 : 400}` }, label.text));
  return svg;
}

const words = (title, places, series) => `${title}. ` + series.filter((s) => s.strong).map((s) =>
  `${s.name}: ${places.map((place, k) => `${name(place)}: ${shown(s.points[k]) ?? "none"}`).join("; ")}.`).join(" ");

function numbers(places, across, series) {
  const head = element("tr", {}, element("th", { scope: "col" }, across), ...series.map((s) => element("th", { scope: "col" }, s.name)));
  const rows = places.map((place, k) => element("tr", {}, element("th", { scope: "row" }, name(place)),
    ...series.map((s) => element("td", {}, shown(s.points[k]) ?? (s.lost?.includes(k) ? "diverged" : "–")))));
  return element("details", {}, element("summary", {}, "the numbers"),
    element("div", { class: "wide", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
}

function figure(about) {
  return element("figure", {}, element("figcaption", {}, about.title), drawing(about),
    ...(about.command ? [command(about.command, about.title)] : []), numbers(about.places, about.across, about.series));
}

// A line for every rule along an axis of the grid, the chosen one in the foreground.
function byRule(key, number) {
  const dashes = ["none", "6 3", "2 3"];
  const places = axes.find((axis) => axis.key === key).values;
  return grid.rules.map((name, rule) => {
    const at = places.map((_, k) => ({ ...chosen, rule, [key]: k }));
    const lost = at.flatMap((c, k) => (marked(number)(c) ? [k] : []));
    return { name, colour: `rule${rule}`, dash: dashes[rule], strong: rule === chosen.rule, lost,
      points: at.map((c) => { const known = number(c); return Array.isArray(known) ? known : null; }) };
  });
}

function byDepth() {
  const widths = axes[0].values;
  const lines = grid.depths.map((L, depth) => {
    const at = widths.map((_, width) => ({ ...chosen, depth, width }));
    return { name: `L = ${L}`, colour: `depth${depth}`, strong: depth === chosen.depth, bare: depth !== chosen.depth, apart: grid.widths.length,
      lost: at.flatMap((c, k) => (marked(low)(c) ? [k] : [])), points: at.map(low) };
  });
  const fit = grid.widths.map((_, width) => lawAt({ ...chosen, width }));
  return fit[0] ? [...lines, { name: "the law", colour: "ink", dash: "5 3", plain: true, shade: true, points: [...fit, null] }] : lines;
}

function charts() {
  const size = `width ${name(value("width"))}`;
  const sized = limited() ? null : true;
  const none = limited() ? [] : [
    { title: `Inner update against depth, ${size}`, places: grid.depths, across: "depth L", up: "RMS change of inner outputs", log: true,
      series: byRule("depth", update(2)), at: chosen.depth, command: sweep({ depth: grid.depths, rule: grid.rules }) },
    { title: `Function update against depth, ${size}`, places: grid.depths, across: "depth L", up: "RMS change of the outputs", log: true,
      series: byRule("depth", update(3)), at: chosen.depth, command: sweep({ depth: grid.depths, rule: grid.rules }) },
    { title: `Best rate against depth, ${size}`, places: grid.depths, across: "depth L", up: "best eta_c", log: true,
      series: byRule("depth", best), at: chosen.depth, command: transferred() },
  ];
  return [
    { title: `Loss against the rate, ${size}, depth ${value("depth")}`, places: grid.rates, across: "rate eta_c", up: "loss (nats)",
      series: byRule("rate", low), at: chosen.rate, command: sized && sweep({ rate: grid.rates, rule: grid.rules }) },
    { title: `Loss against width, rule ${value("rule")}, rate ${value("rate")}`, places: axes[0].values, across: "width n", up: "loss (nats)",
      series: byDepth(), at: chosen.width, command: law(chosen) ? fitted() : sweep({ width: grid.widths, depth: grid.depths }) },
    ...none.filter((about) => about.series.some((s) => s.points.some(Boolean))),
  ];
}

// ---- the page

function facts() {
  const known = cell({ ...chosen, width: Math.min(chosen.width, grid.widths.length - 1) });
  const rate = limited() ? null : best(chosen);
  const beyond = { lower: `below ${grid.rates[0]}`, higher: `above ${grid.rates.at(-1)}` }[rate];
  const lost = limited() ? null : known[0] && `${known[0]} of ${grid.seeds} diverged`;
  const unmeasured = limited() ? "of finite networks alone" : `measured to width ${Math.max(...grid.measured)}`;
  return [
    ["loss", limited() ? shown(limit(chosen)) ?? "diverged" : lost || shown(known[1])],
    ["loss at infinite width", shown(limit(chosen)) ?? "diverged"],
    ["inner update", limited() ? unmeasured : lost || shown(known[2]) || unmeasured],
    ["function update", limited() ? unmeasured : lost || shown(known[3]) || unmeasured],
    ["best rate", limited() ? unmeasured : beyond ?? shown(rate) ?? "nothing is learnt"],
    ["loss without end in width and depth", shown(law(chosen)?.floor) ?? "no law holds"],
  ];
}

function show() {
  for (const { key, values } of axes) {
    const control = document.getElementById(key), text = String(values[chosen[key]]).replace("Infinity", "∞");
    control.value = chosen[key];
    control.setAttribute("aria-valuetext", text === "∞" ? "infinite" : text);
    if (key !== "rule") document.getElementById(`${key}-value`).textContent = text;
  }
  const all = facts();
  document.getElementById("place").textContent = `Width ${name(value("width"))}, depth ${value("depth")}, T = ${value("horizon")}, ` +
    `eta_c = ${value("rate")}, ${value("rule")}: loss ${all[0][1]}.`;
  document.getElementById("numbers").replaceChildren(...all.map(([title, text]) =>
    element("div", {}, element("dt", {}, title), element("dd", {}, text))));
  document.getElementById("commands").replaceChildren(
    ...(limited() ? [] : [command(sweep({}), "these networks", "These networks, their loss and their updates:")]),
    command(predicted(), "their limit", "Their limit of infinite width (loss of the last step):"));
  document.getElementById("charts").replaceChildren(...charts().map(figure));
}

function control({ key, title, values }) {
  const label = element("label", { for: key }, `${title} `);
  if (key === "rule")
    return element("div", {}, label, element("select", { id: key }, ...values.map((text, k) => element("option", { value: k }, text))));
  label.append(element("output", { id: `${key}-value`, for: key }));
  return element("div", {}, label, element("input", { id: key, type: "range", min: 0, max: values.length - 1, step: 1 }));
}

const form = document.getElementById("controls");
form.append(...axes.map(control));
form.addEventListener("input", (event) => { 
  chosen[event.target.id] = Number(event.target.value);
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
  show();
});
form.addEventListener("submit", (event) => event.preventDefault());
function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const { key, values } of axes) if (Number(given.get(key)) in values && given.has(key)) chosen[key] = Number(given.get(key));
  show();
}
addEventListener("hashchange", fromAddress);
fromAddress();
