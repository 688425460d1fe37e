"use strict";
// Draws the charts, and makes the buttons of the page work: series hidden and shown, axes, light and dark.

const config = {
  background: "transparent",
  font: "system-ui, sans-serif",
  axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelOverlap: "greedy" },
};

// The same chart on the other kind of y axis; a bar that reaches below a logarithmic axis is cut there.
function onAxis(spec, kind) {
  const drawn = structuredClone(spec);
  for (const layer of drawn.layer) {
    const y = layer.encoding.y;
    y.scale = spec.usermeta.scales[kind];
    if (y.field === "low" || y.field === "cut") y.field = kind === "log" ? "cut" : "low";
  }
  return drawn;
}

function start(figure) {
  const place = figure.querySelector(".chart");
  const spec = charts[figure.dataset.chart];
  const series = spec.usermeta.series.map((one) => one.name);
  const hidden = new Set();
  let kind = spec.layer[0].encoding.y.scale.type;
  let view = null;

  async function draw(drawn) {
    try {
      view?.finalize();
      view = (await vegaEmbed(place, drawn, { actions: false, renderer: "svg", config })).view;
      await show();
    } catch (error) {
      place.textContent = `This chart cannot be drawn: ${error.message}`;
      console.error(error);
    }
  }

  function show() {
    return view.signal("hidden", [...hidden]).runAsync();
  }

  const toggle = figure.querySelector(".scale");
  const name = () => (kind === "log" ? "linear" : "logarithmic");
  if (toggle) {
    toggle.textContent = `show on a ${name()} axis`;
    toggle.addEventListener("click", () => {
      kind = kind === "log" ? "linear" : "log";
      toggle.textContent = `show on a ${name()} axis`;
      draw(onAxis(spec, kind));
    });
  }
  for (const button of figure.querySelectorAll(".legend button"))
    button.addEventListener("click", () => {
      const one = series[Number(button.dataset.series)];
      if (!hidden.delete(one)) hidden.add(one);
      button.setAttribute("aria-pressed", String(!hidden.has(one)));
      show();
    });
  return draw(spec);
}

const scheme = document.getElementById("scheme");
const isDark = () => {
  const chosen = document.documentElement.dataset.scheme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const label = () => (scheme.textContent = isDark() ? "light page" : "dark page");
scheme.addEventListener("click", () => {
  document.documentElement.dataset.scheme = isDark() ? "light" : "dark";
  label();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", label);
label();

Promise.all([...document.querySelectorAll("figure.plot")].map(start)).then(() => {
  document.documentElement.dataset.drawn = document.querySelectorAll(".chart svg").length;
});
