// Sliders over stored numbers: what is chosen, what is known there, its charts in SVG, and the command of each.

const { axes: lists, settings } = table;
const INFINITE = lists.width.length; // the place of infinite width, after those of the widths
const axes = [
  { key: "width", title: "width n", start: 128 },
  { key: "depth", title: "depth L", start: 8 },
  { key: "horizon", title: "horizon T", start: 1 },
  { key: "rate", title: "rate eta_c", start: 0.5 },
  { key: "rule", title: "rule", start: "depth-mup" },
];
const chosen = {};

// ---- numbers: [value, low, high] or null, by places in the lists of the axes

const byPlace = (rows, length) => new Map(rows.map((row) => [row.slice(0, length).join(), row.slice(length)]));
const cells = byPlace(table.cells, 5);
const limits = byPlace(table.limits?.rows ?? [], 4);
const bests = byPlace(table.best, 4);
const laws = byPlace(table.laws, 3);

const cell = (c) => cells.get([c.horizon, c.rule, c.rate, c.depth, c.width].join());
const limit = (c) => limits.get([c.horizon, c.rule, c.rate, c.depth].join());
const best = (c) => bests.get([c.horizon, c.rule, c.depth, c.width].join())?.[0];
const law = (c) => laws.get([c.horizon, c.rule, c.rate].join());
const lawAt = (c) => law(c)?.[1].find(([depth, width]) => depth === c.depth && width === c.width)?.[2] ?? null;
const isInfinite = (c) => c.width === INFINITE;
const isKnown = (c) => Boolean(isInfinite(c) ? limit(c) : cell(c));
const isLost = (c) => (isInfinite(c) ? limit(c)?.[0] === null : cell(c)?.[1] > 0);
const loss = (c) => (isInfinite(c) ? limit(c)?.[0] : cell(c)?.[2]) ?? null;
const inner = (c) => cell(c)?.[3] ?? null;
const outer = (c) => cell(c)?.[4] ?? null;
const bestInside = (c) => (Array.isArray(best(c)) ? best(c) : null);
const TOP = 4; // nats: losses above are marked like those of networks that diverged

const name = (x) => (x === Infinity ? "∞" : typeof x === "string" ? x : Number(x.toPrecision(x < 1 ? 2 : 4)).toString());
const digits = (x) => (Math.abs(x) >= 100 && Math.abs(x) < 1e5 ? Math.round(x).toString() : x.toPrecision(3));
const ends = ([, low, high]) => `[${digits(low)}, ${digits(high)}]`;
const shown = (number) => (number ? `${digits(number[0])} ${ends(number)}` : null);
const valuesOf = (key, c = chosen) => (key === "rate" ? lists.rate[lists.rule[c.rule]]
  : key === "width" && limits.size ? [...lists.width, Infinity] : lists[key]);
const value = (key, c = chosen) => valuesOf(key, c)[c[key]];

// ---- places

const along = (key, c = chosen) => valuesOf(key, c).map((_, k) => ({ ...c, [key]: k }));

// The same place under another rule; null where that rule was not trained at this rate.
function under(rule, c = chosen) {
  const rate = lists.rate[lists.rule[rule]].indexOf(value("rate", c));
  return rate < 0 ? null : { ...c, rule, rate };
}

// The trained place that is nearest to the chosen one and keeps what was just moved; rule and rate move last.
function nearest(moved) {
  if (isKnown(chosen)) return chosen;
  const weights = { width: 1, depth: 1, horizon: 10, rate: 100, rule: 1000 };
  const finite = [...cells.keys()].map((key) => key.split(",").map(Number));
  const infinite = [...limits.keys()].map((key) => [...key.split(",").map(Number), INFINITE]);
  const places = [...finite, ...infinite].map(([horizon, rule, rate, depth, width]) => ({ horizon, rule, rate, depth, width }));
  const distance = (c) => Object.keys(weights).reduce((sum, key) => sum + weights[key] * Math.abs(c[key] - chosen[key]), 0);
  return places.filter((c) => c[moved] === chosen[moved]).reduce((a, b) => (distance(b) < distance(a) ? b : a));
}

// ---- commands

const unique = (key, places) => [...new Set(places.map((c) => value(key, c)))];
const listed = (texts) => Object.entries(texts).map(([key, values]) => `${key}=${values.join(",")}`).join(" ");

function settingsOf(places) {
  return { width: unique("width", places), depth: unique("depth", places), horizon: unique("horizon", places),
    eta_c: unique("rate", places), rule: unique("rule", places) };
}

// The runs of these places: those of a directory, or sweeps that train them, one for the widths with the same depths.
function runs(places, { measured = false, out = "" } = {}) {
  const finite = places.filter((c) => c && !isInfinite(c) && cell(c));
  if (table.store) return `nfd runs ${table.store} --where ${[...table.where, listed(settingsOf(finite))].join(" ")}${out && ` --out ${out}`}`;
  const groups = Map.groupBy(unique("width", finite), (n) => unique("depth", finite.filter((c) => value("width", c) === n)).join());
  const trained = { ...settings, seed: Array.from({ length: cell(finite[0])[0] }, (_, k) => k) };
  const lines = [...groups.values()].map((widths) => `nfd sweep ${listed(settingsOf(finite.filter((c) => widths.includes(value("width", c)))))} ` +
    listed(Object.fromEntries(Object.entries(trained).map(([key, own]) => [key, [own].flat()]))) + (measured ? " meter=updates" : "") +
    (out && ` --out ${out}-sweep`));
  return [...lines, ...(out ? [`nfd runs ${out}-sweep --out ${out}`] : [])].join(" && ");
}

const training = () => Object.entries(settings).map(([key, own]) => `--${key.replaceAll("_", "-")} ${own}`).join(" ");

// The limit at the chosen place, or at every value of what varies.
function predicted(varying = {}) {
  const of = (key) => (varying[key] ? `$${key}` : value(key));
  const line = `nfd predict --depth ${of("depth")} --horizon ${value("horizon")} --rule ${of("rule")} --eta-c ${of("rate")} ${training()} ` +
    `--width ${table.limits.width} --replicates ${table.limits.replicates}`;
  return Object.entries(varying).reduce((text, [key, values]) => `for ${key} in ${values.join(" ")}; do ${text}; done`, line);
}

// The best rates of the places: from the runs of a directory, or trained, one line for the rules with the same rates.
function transferred(places) {
  const trained = places.filter((c) => best(c) !== undefined);
  const rated = trained.flatMap((c) => along("rate", c));
  if (table.store) return `${runs(rated, { out: "out/rates" })} && nfd transfer --from out/rates/runs.csv --columns loss=train_loss lr=eta_c`;
  const groups = Map.groupBy(unique("rule", trained), (rule) => lists.rate[rule].join(" "));
  return [...groups].map(([rates, rules], k) => `nfd transfer --widths ${unique("width", trained).join(" ")} --depths ${unique("depth", trained).join(" ")} ` +
    `--rules ${rules.join(" ")} --eta-c ${rates} --horizon ${value("horizon")} ${training()} --seeds ${cell(rated.find(cell))[0]} --out out/transfer-${k + 1}`).join(" && ");
}

const fitted = (places) => `${runs(places, { out: "out/law" })} && nfd capacity --from out/law/runs.csv --columns loss=train_loss`;

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
  const line = element("pre", { tabindex: "0", role: "group", "aria-label": `the command of ${about}` }, ...text.split(" ").flatMap((word) => [element("span", {}, word), " "]).slice(0, -1));
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

const box = { width: 416, height: 260, left: 50, right: 132, top: 14, bottom: 38 };
const plot = { width: box.width - box.left - box.right, height: box.height - box.top - box.bottom };

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

const WIDE = { nats: 1, factor: 10 }; // an interval within it says something in every chart

// Which numbers of the series a chart can draw. A wide interval that covers all that the others show is not resolved.
function settled(series, { log = false, top = Infinity } = {}) {
  const isWide = ([, low, high]) => (log ? low <= 0 || high > WIDE.factor * low : high - low > WIDE.nats);
  const sharp = series.flatMap((s) => s.points).filter((p) => p && p[0] < top && !isWide(p));
  const least = Math.min(...sharp.map((p) => p[1])), most = Math.max(...sharp.map((p) => p[2]));
  const isOpen = (p) => isWide(p) && p[1] <= least && p[2] >= most;
  return series.map((s) => {
    const at = (test) => s.points.flatMap((p, k) => (p && test(p) ? [k] : []));
    const open = at(isOpen), above = at((p) => !isOpen(p) && p[0] >= top);
    return { ...s, open, numbers: s.points, diverged: s.lost ?? [], lost: [...(s.lost ?? []), ...above],
      points: s.points.map((p, k) => (open.includes(k) || above.includes(k) ? null : p)) };
  });
}

// One number of settled series in words; null where nothing was computed.
function told(s, k) {
  if (s.diverged.includes(k)) return "diverged";
  return s.open.includes(k) ? `not resolved: ${ends(s.numbers[k])}` : shown(s.numbers[k]);
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
  const x = (k) => box.left + plot.width * (places.length > 1 ? k / (places.length - 1) : 0.5);
  const svg = element("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "img", "aria-label": words(title, places, series) });
  const range = span(series, log);
  const bottom = box.top + plot.height;
  svg.append(element("text", { x: box.left + plot.width / 2, y: bottom + 33, "text-anchor": "middle" }, across),
    element("text", { x: 4, y: 9 }, `${up}, 95 % interval`));
  if (!range) {
    svg.append(element("text", { x: box.left, y: bottom / 2 }, "Nothing was computed here."));
    return svg;
  }
  const scale = (y) => (log ? Math.log(y / range[0]) / Math.log(range[1] / range[0]) : (y - range[0]) / (range[1] - range[0]));
  const y = (v) => bottom - plot.height * Math.min(Math.max(log && v <= 0 ? 0 : scale(v), 0), 1);
  for (const t of ticks(...range, log))
    svg.append(element("path", { class: "tick", d: `M${box.left},${y(t)}h${plot.width}` }),
      element("text", { x: box.left - 6, y: y(t) + 4, "text-anchor": "end" }, name(t)));
  places.forEach((place, k) => svg.append(element("text", { x: x(k), y: bottom + 16, "text-anchor": "middle" }, name(place))));
  svg.append(element("path", { class: "axis", d: `M${box.left},${box.top}V${bottom}h${plot.width}` }));
  if (at !== undefined) svg.append(element("path", { class: "here", d: `M${x(at)},${box.top}V${bottom}` }));
  const labels = [];
  const [lost, open] = ["lost", "open"].map((marks) => series.filter((s) => s[marks].length));
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
    for (const [sign, marked, at] of [["×", lost, s.lost], ["?", open, s.open]])
      for (const k of at) svg.append(
        element("text", { x: x(k) + 9 * (marked.indexOf(s) - (marked.length - 1) / 2), y: box.top + (sign === "×" ? 8 : 20),
          "text-anchor": "middle", style: `fill: var(--${s.colour}); font-weight: 700` }, sign));
    const last = known.at(-1);
    if (last) labels.push({ text: s.name, style, dash: s.dash, strong: s.strong, x: x(last.k) + 8, y: y(last.p[0]) + 4 });
  }
  for (const beside of Map.groupBy(labels, (label) => label.x).values()) { // one below the other
    beside.sort((a, b) => a.y - b.y);
    beside.forEach((label, k) => { if (k) label.y = Math.max(label.y, beside[k - 1].y + 12); });
    const over = Math.max(0, beside.at(-1).y - bottom);
    for (const label of beside)
      svg.append(
        element("line", { x1: label.x, x2: label.x + 12, y1: label.y - over - 4, y2: label.y - over - 4, style: label.style, "stroke-dasharray": label.dash ?? "none" }),
        element("text", { class: "name", x: label.x + 16, y: label.y - over, style: `font-weight: ${label.strong ? 700 : 400}` }, label.text));
  }
  return svg;
}

const words = (title, places, series) => `${title}. ` + series.filter((s) => s.strong).map((s) =>
  `${s.name}: ${places.map((place, k) => `${name(place)}: ${told(s, k) ?? "none"}`).join("; ")}.`).join(" ");

function numbers(places, across, series) {
  const head = element("tr", {}, element("th", { scope: "col" }, across), ...series.map((s) => element("th", { scope: "col" }, s.name)));
  const rows = places.map((place, k) => element("tr", {}, element("th", { scope: "row" }, name(place)),
    ...series.map((s) => element("td", {}, told(s, k) ?? "–"))));
  return element("details", {}, element("summary", {}, "the numbers"),
    element("div", { class: "wide", tabindex: "0" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows))));
}

function figure(about) {
  const open = about.series.flatMap((s) => s.open.map((k) => `${s.name} at ${about.across} = ${name(about.places[k])}: ${ends(s.numbers[k])}`));
  const unresolved = open.length ? [element("p", { class: "note" }, `? Not resolved, the interval covers the whole chart: ${open.join("; ")}.`)] : [];
  return element("figure", {}, element("figcaption", {}, about.title), drawing(about), ...unresolved,
    ...about.commands.map((line) => command(line, about.title)), numbers(about.places, about.across, about.series));
}

// A line for every rule along an axis, the chosen rule in the foreground.
function byRule(key, number, place) {
  const dashes = ["none", "6 3", "2 3", "9 3 2 3", "1 2"];
  const places = valuesOf(key);
  return lists.rule.map((text, rule) => {
    const at = places.map((_, k) => place(rule, { ...chosen, [key]: k }));
    const lost = number === bestInside ? [] : at.flatMap((c, k) => (c && isLost(c) ? [k] : []));
    return { name: text, colour: `rule${rule}`, dash: dashes[rule % dashes.length], strong: rule === chosen.rule, lost, at,
      points: at.map((c) => (c ? number(c) : null)) };
  });
}

function byDepth() {
  const lines = lists.depth.map((L, depth) => {
    const at = along("width", { ...chosen, depth });
    return { name: `L = ${L}`, colour: `depth${depth}`, strong: depth === chosen.depth, bare: depth !== chosen.depth, apart: INFINITE,
      lost: at.flatMap((c, k) => (isLost(c) ? [k] : [])), at, points: at.map(loss) };
  });
  const fit = along("width").map((c) => lawAt(c));
  return fit.some(Boolean) ? [...lines, { name: "the law", colour: "ink", dash: "5 3", plain: true, shade: true, at: [], points: fit }] : lines;
}

const placesOf = (series) => series.flatMap((s) => s.at).filter(Boolean);
const anyRate = (rule, c) => ({ ...c, rule, rate: 0 });

function charts() {
  const n = name(value("width")), L = value("depth"), eta = value("rate");
  const rates = byRule("rate", loss, under), sizes = byDepth();
  const inners = byRule("depth", inner, under), outers = byRule("depth", outer, under);
  const ofDepths = byRule("depth", bestInside, anyRate), ofWidths = byRule("width", bestInside, anyRate);
  const limited = placesOf(sizes).filter((c) => isInfinite(c) && limit(c));
  const losses = [
    { title: `Loss against the rate, width ${n}, depth ${L}`, key: "rate", up: "loss (nats)", top: TOP, series: rates,
      commands: [isInfinite(chosen) ? predicted({ rate: valuesOf("rate"), rule: unique("rule", placesOf(rates).filter(limit)) }) : runs(placesOf(rates))] },
    { title: `Loss against width, rule ${value("rule")}, rate ${eta}`, key: "width", up: "loss (nats)", top: TOP, series: sizes,
      commands: [law(chosen) ? fitted(placesOf(sizes)) : runs(placesOf(sizes)),
        ...(limited.length ? [predicted({ depth: unique("depth", limited) })] : [])] },
  ];
  const measured = { measured: true };
  const updates = [
    { title: `Inner update against depth, width ${n}, rate ${eta}`, key: "depth", up: "RMS change of inner outputs", log: true, series: inners,
      commands: () => [runs(placesOf(inners).filter(inner), measured)] },
    { title: `Function update against depth, width ${n}, rate ${eta}`, key: "depth", up: "RMS change of the outputs", log: true, series: outers,
      commands: () => [runs(placesOf(outers).filter(outer), measured)] },
    { title: `Best rate against depth, width ${n}`, key: "depth", up: "best eta_c", log: true, series: ofDepths,
      commands: () => [transferred(placesOf(ofDepths))] },
    { title: `Best rate against width, depth ${L}`, key: "width", up: "best eta_c", log: true, series: ofWidths,
      commands: () => [transferred(placesOf(ofWidths))] },
  ].filter(({ series }) => series.some((s) => s.points.some(Boolean)));
  return [...losses, ...updates.map((about) => ({ ...about, commands: about.commands() }))].map((about) => ({
    ...about, series: settled(about.series, about), places: valuesOf(about.key), across: axes.find(({ key }) => key === about.key).title, at: chosen[about.key] }));
}

// ---- the page

function facts() {
  const infinite = isInfinite(chosen), [seeds, diverged] = cell(chosen) ?? [];
  const rate = best(chosen), floor = law(chosen)?.[0];
  const beyond = { lower: `below ${valuesOf("rate")[0]}`, higher: `above ${valuesOf("rate").at(-1)}` }[rate];
  const lost = diverged ? `${diverged} of ${seeds} diverged` : null;
  const here = (series, k, options) => told(settled(series, options).find((s) => s.strong), k); // as the chart says it
  const losses = (k) => here(byDepth(), k, { top: TOP });
  const update = (number) => lost ?? here(byRule("depth", number, under), chosen.depth, { log: true });
  const unmeasured = infinite ? "of finite networks alone" : "not measured at this size";
  const limited = limit(chosen) ? losses(INFINITE) : "not computed";
  return [
    ["loss", infinite ? limited : lost ?? losses(chosen.width)],
    ...(limits.size ? [["loss at infinite width", limited]] : []),
    ["inner update", update(inner) ?? unmeasured],
    ["function update", update(outer) ?? unmeasured],
    ["best rate", infinite ? unmeasured : beyond ?? shown(rate) ?? (valuesOf("rate").length < 3 ? "unknown: fewer than three rates ran" : "nothing is learnt")],
    ["loss at infinite width and depth", shown(floor) ?? "no law fits these sizes"],
  ];
}

function show(moved = []) {
  for (const { key } of axes) {
    const control = document.getElementById(key), text = String(value(key)).replace("Infinity", "∞");
    if (key !== "rule") control.max = valuesOf(key).length - 1;
    control.value = chosen[key];
    control.setAttribute("aria-valuetext", text === "∞" ? "infinite" : text);
    if (key !== "rule") document.getElementById(`${key}-value`).textContent = text;
  }
  const all = facts();
  document.getElementById("place").textContent = `Width ${name(value("width"))}, depth ${value("depth")}, T = ${value("horizon")}, ` +
    `eta_c = ${value("rate")}, ${value("rule")}. Loss: ${all[0][1]}.` +
    (moved.length ? ` The ${moved.join(" and the ")} moved too: nothing was trained at the other place.` : "");
  document.getElementById("numbers").replaceChildren(...all.map(([title, text]) =>
    element("div", {}, element("dt", {}, title), element("dd", {}, text))));
  document.getElementById("commands").replaceChildren(
    ...(isInfinite(chosen) ? [] : [command(runs([chosen], { measured: Boolean(inner(chosen)) }), "these networks", "These networks, their loss and their updates:")]),
    ...(limit(chosen) ? [command(predicted(), "their limit", "Their limit of infinite width (loss of the last step):")] : []));
  document.getElementById("charts").replaceChildren(...charts().map(figure));
}

// Move one control; the others follow where nothing was trained at the place.
function move(key, k) {
  chosen[key] = k;
  chosen.rate = Math.min(chosen.rate, valuesOf("rate").length - 1);
  const place = nearest(key), moved = axes.filter((axis) => place[axis.key] !== chosen[axis.key]).map((axis) => axis.key);
  Object.assign(chosen, place);
  show(moved);
}

function control({ key, title }) {
  const label = element("label", { for: key }, `${title} `);
  if (key === "rule")
    return element("div", {}, label, element("select", { id: key }, ...lists.rule.map((text, k) => element("option", { value: k }, text))));
  label.append(element("output", { id: `${key}-value`, for: key }));
  return element("div", {}, label, element("input", { id: key, type: "range", min: 0, step: 1 }));
}

const form = document.getElementById("controls");
form.append(...axes.map(control));
form.addEventListener("input", (event) => {
  move(event.target.id, Number(event.target.value));
  history.replaceState(null, "", `#${new URLSearchParams(chosen)}`);
});
form.addEventListener("submit", (event) => event.preventDefault());
function fromAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const { key, start } of [...axes].reverse()) { // the rule first, as it decides the rates
    const wanted = Number(given.get(key) ?? NaN), usual = valuesOf(key).indexOf(start);
    chosen[key] = wanted in valuesOf(key) ? wanted : chosen[key] ?? (usual < 0 ? Math.floor(valuesOf(key).length / 2) : usual);
  }
  move("rule", chosen.rule);
}
addEventListener("hashchange", fromAddress);
fromAddress();
