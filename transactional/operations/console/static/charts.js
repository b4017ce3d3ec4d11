// Charts with a cursor and zoom, in place of the server's SVG, which stays for printing and for whoever runs no script.
"use strict";
(() => {
  if (typeof uPlot === "undefined") return;
  const HEIGHT = 180;
  const made = [];
  const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const two = number => String(number).padStart(2, "0");
  const moment = s => new Date(s * 1000).toISOString().replace("T", " ").slice(0, 19);
  const short = value => value == null ? "–" : Math.abs(value) >= 1e9 ? `${+(value / 1e9).toPrecision(3)}G`
    : Math.abs(value) >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : Math.abs(value) >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k`
    : String(+value.toPrecision(4));
  const tick = (s, step) => {
    const at = new Date(s * 1000), time = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
    return step >= 86400 ? `${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}` : step >= 60 ? time : `${time}:${two(at.getUTCSeconds())}`;
  };

  const options = (plot, raw, width) => {
    const axis = {stroke: color("muted"), font: "11px system-ui, sans-serif", grid: {stroke: color("line"), width: 1}, ticks: {show: false}};
    const series = raw.map(({name, values}, index) => ({
      label: name,
      stroke: color(name === "rate" ? "processing" : name),
      fill: color(name === "rate" ? "processing" : name) + (plot.stacked ? "" : "29"),
      width: plot.stacked ? 0 : 1.8,
      paths: plot.stacked ? uPlot.paths.bars({size: [0.85, 60], align: 1}) : undefined,
      points: {show: false},
      value: (_, __, ___, at) => at == null ? "–" : short(values[at]),
    }));
    return {
      width, height: HEIGHT, title: "",
      padding: [10, 28, 0, 0],  // half of a time below the axis is beyond its end
      cursor: {sync: {key: "charts"}, drag: {x: true, y: false}},
      scales: {x: {time: true}, y: {range: (_, __, most) => [0, Math.max(1, most * 1.05)]}},
      axes: [
        {...axis, size: 28, space: 70, values: (_, splits) => splits.map(s => tick(s, splits.length > 1 ? splits[1] - splits[0] : 1))},
        {...axis, size: 46, values: (_, splits) => splits.map(short)},
      ],
      series: [{label: "UTC", value: (_, s) => s == null ? "–" : moment(s)}, ...series],
      hooks: {
        setScale: [(u, key) => {
          if (key === "x") u.root.classList.toggle("zoomed", u.scales.x.min > u.data[0][0] || u.scales.x.max < u.data[0][u.data[0].length - 1]);
        }],
      },
    };
  };

  const draw = holder => {
    const plot = JSON.parse(holder.dataset.plot);
    const raw = Object.entries(plot.layers).map(([name, values]) => ({name, values}));
    // A slot has a width: the last one ends a slot after it begins.
    for (const each of raw) each.values = [...each.values, plot.stacked ? null : each.values[each.values.length - 1]];
    const at = raw[0].values.map((_, index) => (plot.start_ms + index * plot.step_ms) / 1000);
    let shown = raw.map(each => each.values);
    if (plot.stacked) {
      // The highest is drawn first, and what is below it over it.
      const sums = shown.reduce((all, values) => [...all, values.map((value, at) => value == null ? null : value + (all.length ? all[all.length - 1][at] : 0))], []);
      raw.reverse();
      shown = sums.reverse();
    }
    const old = holder.querySelector(".uplot");
    if (old) old.remove();
    const label = holder.querySelector("svg").getAttribute("aria-label");
    const chart = new uPlot(options(plot, raw, holder.clientWidth), [at, ...shown], holder);
    chart.root.setAttribute("role", "group");
    chart.root.setAttribute("aria-label", `${label}; drag over a part to zoom in, double-click to zoom out`);
    holder.classList.add("plotted");
    return chart;
  };

  const all = () => {
    for (const {chart} of made.splice(0)) chart.destroy();
    for (const holder of document.querySelectorAll("[data-plot]")) made.push({holder, chart: draw(holder)});
  };
  all();
  document.addEventListener("replaced", event => { if (event.detail === "charts") all(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  addEventListener("resize", () => { for (const {holder, chart} of made) chart.setSize({width: holder.clientWidth, height: HEIGHT}); });
})();
