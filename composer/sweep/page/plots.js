// The three plots. Each hides its section where it has nothing to show.

const COLORS = {
  light: ["#2b62a8", "#d07a1f", "#2f8f68", "#b0476f", "#7659b8", "#8a7524", "#3b98ad", "#6d747d"],
  dark: ["#7fb0ee", "#eda65a", "#6ecb9f", "#e58bb0", "#b39df0", "#cdb763", "#74c9db", "#aab1ba"],
};
const RAMPS = {  // for values that have an order
  light: ["#e2a23c", "#d2633c", "#a33d6c", "#5d3b8f", "#1f2f70"],
  dark: ["#6b5cb8", "#a9529a", "#dd667c", "#f1995f", "#f7d274"],
};
const HEAT = { light: ["#eef3f9", "#a9c6e6", "#4f8ac6", "#1c4f8f"], dark: ["#20272f", "#2f4d70", "#4f86c0", "#a8cdf6"] };
const LEGEND = {  orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom" };
const DASHES = ["solid", "dot", "dash", "longdash"];

const theme = () => document.documentElement.dataset.theme;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const narrow = () => window.innerWidth < 640;

function mixed(one, two, part) {
  const channel = (color, at) => parseInt(color.slice(at, at + 2), 16);
  return "#" + [1, 3, 5].map((at) => Math.round(channel(one, at) * (1 - part) + channel(two, at) * part).toString(16).padStart(2, "0")).join("");
}

function colorsFor(key) {
  const palette = COLORS[theme()], ramp = RAMPS[theme()];
  if (!key.numeric || key.values.length < 3) return key.values.map((_, index) => palette[index % palette.length]);
  return key.values.map((_, index) => {
    const at = (index / (key.values.length - 1)) * (ramp.length - 1), low = Math.min(Math.floor(at), ramp.length - 2);
    return mixed(ramp[low], ramp[low + 1], at - low);
  });
}

function layoutOf(extra) {
  const axis = {
    gridcolor: css("--grid"), linecolor: css("--line"), zeroline: false, automargin: true, ticks: "",
    title: { standoff: 12, font: { size: 13, color: css("--soft") } }, tickfont: { size: 12, color: css("--soft") },
  };
  const made = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 8, t: 8, b: 8 },
    font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: css("--ink") },
    hoverlabel: { bgcolor: css("--card"), bordercolor: css("--line"), align: "left", font: { size: 13, color: css("--ink") } },
    hovermode: "closest", ...extra,
  };
  made.legend = { ...LEGEND, ...made.legend, font: { size: 12.5, color: css("--soft") } };
  for (const name of Object.keys(made).filter((each) => /^[xy]axis/.test(each)).concat("xaxis", "yaxis"))
    made[name] = { ...axis, ...made[name], title: { ...axis.title, ...(made[name] || {}).title } };
  return made;
}

const draw = (id, traces, layout) =>
  Plotly.react(id, traces, layoutOf(layout), { displayModeBar: false, responsive: true });

// One axis: numbers in their unit, on a logarithmic scale where they span much; or settings in order.
function axisFor(name, numbers) {
  const { factor, title } = axisOf(name, numbers);
  if (isKey(name)) return { factor, layout: { title: { text: title }, type: "category", categoryorder: "array", categoryarray: keys.get(name).values } };
  const least = Math.min(...numbers), most = Math.max(...numbers), layout = { title: { text: title } };
  const { kind } = data.figures[name];
  if (kind === "share") layout.rangemode = "tozero";
  else if (least > 0 && most / least >= (kind === "bytes" ? 8 : 30))
    Object.assign(layout, { type: "log", tickvals: ticks(least * factor, most * factor, kind === "bytes"), tickformat: ",~g" });
  return { factor, layout };
}

// Marks of a logarithmic axis: powers of two, or 1, 2, 5, 10 and so on; few of them.
function ticks(least, most, binary) {
  const found = [], steps = binary || most / least > 3000 ? [1] : [1, 2, 5], base = binary ? 2 : 10;
  for (let power = Math.floor(Math.log(least) / Math.log(base)); base ** power <= most * base; power++)
    found.push(...steps.map((step) => step * base ** power));
  const seen = found.filter((value) => value >= least / base && value <= most * base);
  const every = Math.ceil(seen.length / (narrow() ? 6 : 11));
  return seen.filter((_, index) => index % every === 0);
}

// Points that no other one beats in both: the least of x for the best of y.
function front(points, x, y) {
  const sorted = [...points].sort((one, two) => one.figures[x] - two.figures[x] || sign * (two.figures[y] - one.figures[y]));
  const kept = [];
  for (const point of sorted)
    if (!kept.length || sign * point.figures[y] > sign * kept[kept.length - 1].figures[y]) kept.push(point);
  return kept;
}

function drawScatter(view, selected) {
  const points = measured.filter((point) => valueOf(point, view.x) !== undefined && point.figures[view.y] !== undefined);
  byId("scatter").hidden = points.length < 2;
  if (points.length < 2) return;
  const x = axisFor(view.x, points.map((point) => valueOf(point, view.x)));
  const y = axisFor(view.y, points.map((point) => point.figures[view.y]));
  const at = (point) => [isKey(view.x) ? valueOf(point, view.x) : valueOf(point, view.x) * x.factor, point.figures[view.y] * y.factor];
  const traces = [], hasFront = view.y === objective && !isKey(view.x) && data.figures[view.x].kind === "bytes";
  const best = hasFront ? front(points, view.x, view.y) : [];
  const beaten = best.length > 1 && best.length < points.length;  // else the line says nothing new
  if (beaten) traces.push({
    x: best.map((point) => at(point)[0]), y: best.map((point) => at(point)[1]), name: "best for its memory", mode: "lines",
    line: { color: css("--faint"), width: 1.5, dash: "dot", shape: "hv" }, hoverinfo: "skip",
  });
  const color = isKey(view.color) ? keys.get(view.color) : { name: "", values: [undefined], numeric: false };
  const order = isKey(view.x) ? keys.get(view.x).values : null;
  colorsFor(color).forEach((shade, index) => {
    const value = color.values[index];
    const group = points.filter((point) => point.settings[color.name] === value);
    if (!group.length) return;
    group.sort((one, two) => (order ? order.indexOf(one.settings[view.x]) - order.indexOf(two.settings[view.x]) : one.figures[view.x] - two.figures[view.x]));
    const distinct = new Set(group.map((point) => valueOf(point, view.x))).size === group.length;
    traces.push({
      x: group.map((point) => at(point)[0]), y: group.map((point) => at(point)[1]), customdata: group.map((point) => point.number),
      name: color.name ? String(value) : "points", mode: distinct && group.length > 1 && (!order || keys.get(view.x).numeric) ? "lines+markers" : "markers",
      line: { color: shade, width: 1.75 }, opacity: 0.95,
      marker: { color: shade, size: 10, line: { color: css("--card"), width: 1.25 } },
      text: group.map((point) => hover(point, [view.y, view.x, objective])), hovertemplate: "%{text}<extra></extra>",
    });
  });
  const chosen = points.find((point) => point.number === selected);
  if (chosen) traces.push({
    x: [at(chosen)[0]], y: [at(chosen)[1]], mode: "markers", hoverinfo: "skip", showlegend: false,
    marker: { symbol: "circle-open", size: 18, color: css("--ink"), line: { width: 2 } },
  });
  byId("scatter").querySelector("h2").textContent = `${capital(titleOf(view.y))} against ${titleOf(view.x)}`;
  const failed = data.points.length - measured.length, notes = [];
  if (beaten) notes.push("The dotted line is the best that any point reaches with that much or less.");
  if (failed) notes.push(`${failed} failed ${failed > 1 ? "points are" : "point is"} in the table below.`);
  byId("scatter").querySelector(".note").textContent = notes.join(" ");
  draw("scatter-plot", traces, {
    xaxis: { ...x.layout, title: { text: x.layout.title.text } }, yaxis: y.layout,
    showlegend: Boolean(color.name) || beaten, legend: { ...LEGEND, title: { text: color.name, side: "top", font: { size: 12.5 } } },
  });
}

function drawHeat(view) {
  const rows = keys.get(view.rows), columns = keys.get(view.columns);
  byId("heat").hidden = !rows || !columns || rows === columns;
  if (byId("heat").hidden) return;
  const better = view.value === objective ? sign : 1;
  const cells = rows.values.map((row) => columns.values.map((column) => {
    const all = data.points.filter((point) => point.settings[rows.name] === row && point.settings[columns.name] === column);
    const some = all.filter((point) => point.status !== "failed" && point.figures[view.value] !== undefined);
    some.sort((one, two) => better * (two.figures[view.value] - one.figures[view.value]));
    return { all, best: some[0] };
  }));
  const numbers = cells.flat().filter((cell) => cell.best).map((cell) => cell.best.figures[view.value]);
  const { factor, title } = axisOf(view.value, numbers);
  const seen = cells.map((line) => line.map((cell) => (cell.best ? cell.best.figures[view.value] * factor : null)));
  const decimals = data.figures[view.value].kind === "share" ? 1 : null;
  const shown = cells.map((line, row) => line.map((cell, column) => {
    if (!cell.best) return cell.all.length ? "failed" : "";
    return decimals === null ? digits(Number(seen[row][column].toPrecision(3))) : seen[row][column].toFixed(decimals);
  }));
  const text = cells.map((line) => line.map((cell) => {
    if (cell.best) return hover(cell.best, [view.value, objective]) + (cell.all.length > 1 ? `<br>the best of ${cell.all.length}` : "");
    return cell.all.length ? escaped(cell.all[0].error).replace(/(.{60}\S*)\s/g, "$1<br>") : "not run";
  }));
  const others = data.keys.filter((key) => key !== rows && key !== columns && key.values.length > 1).map((key) => key.name);
  byId("heat").querySelector("h2").textContent = `${capital(titleOf(view.value))} over ${rows.name} and ${columns.name}`;
  byId("heat").querySelector(".note").textContent = others.length ? `Each cell is the best over ${others.join(" and ")}.` : "";
  const ramp = HEAT[theme()], flat = shown.flat(), small = columns.values.length > (narrow() ? 6 : 14);
  byId("heat-plot").style.height = `${Math.min(640, 110 + rows.values.length * (rows.values.length > 8 ? 34 : 52))}px`;
  const failed = cells.map((line) => line.map((cell) => (cell.all.length && !cell.best ? 0 : null)));
  const shared = { x: columns.values, y: rows.values, text, xgap: 3, ygap: 3, hovertemplate: "%{text}<extra></extra>" };
  draw("heat-plot", [
    { ...shared, type: "heatmap", z: failed, showscale: false, colorscale: [[0, css("--paper")], [1, css("--paper")]] },
    {
      ...shared, type: "heatmap", z: seen, hoverongaps: false, colorscale: ramp.map((shade, index) => [index / (ramp.length - 1), shade]),
      customdata: cells.map((line) => line.map((cell) => (cell.best ? cell.best.number : null))),
      colorbar: { title: { text: title, side: "right", font: { size: 12.5, color: css("--soft") } }, thickness: 10, outlinewidth: 0, tickfont: { size: 12, color: css("--soft") } },
      showscale: !narrow(),
    },
  ], {
    xaxis: { title: { text: columns.name }, type: "category", showgrid: false }, yaxis: { title: { text: rows.name }, type: "category", showgrid: false, autorange: "reversed" },
    annotations: small ? [] : flat.map((word, index) => labelOf(word, index, rows, columns, seen.flat(), numbers, factor)).filter((each) => each.text),
  });
}

// The figure in a cell, in a color that can be read on the cell's.
function labelOf(word, index, rows, columns, seen, numbers, factor) {
  const least = Math.min(...numbers) * factor, most = Math.max(...numbers) * factor;
  const part = most > least ? (seen[index] - least) / (most - least) : 1, isDark = theme() === "dark" ? part < 0.7 : part > 0.6;
  return {
    x: index % columns.values.length, y: Math.floor(index / columns.values.length), text: word, showarrow: false,  // places, not names
    font: { size: 12.5, color: word === "failed" ? css("--bad") : isDark ? "#ffffff" : "#1d2126" },
  };
}

function drawOccupancy(number) {
  const series = data.occupancy[number] || [];
  byId("occupancy").hidden = !Object.keys(data.occupancy).length;
  if (!series.length) return;
  const point = byNumber.get(number), limited = series.filter((one) => one.slots), free = series.filter((one) => !one.slots);
  const tiers = [...new Set(series.map((one) => one.tier))], palette = COLORS[theme()];
  const power = byteUnit(free.flatMap((one) => one.used));
  const trace = (one, index, unlimited) => ({
    x: one.request, y: one.used.map((used) => (unlimited ? used / 1024 ** power : (100 * used) / one.slots)), mode: "lines",
    name: one.space === "bytes" ? one.tier : `${one.tier} · ${one.space}`, yaxis: unlimited && limited.length ? "y2" : "y",
    line: { color: palette[tiers.indexOf(one.tier) % palette.length], width: 2, dash: DASHES[series.filter((other) => other.tier === one.tier).indexOf(one) % DASHES.length] },
    hovertemplate: (unlimited ? `%{y:.1f} ${BYTES[power]}` : `%{y:.1f} % of ${one.space === "bytes" ? "its size" : `${digits(one.slots)} slots`}`) + "<br>after %{x:,} requests",
  });
  const percent = { title: { text: "used (%)" }, range: [0, 104] }, bytes = { title: { text: `stored (${BYTES[power]})` }, rangemode: "tozero" };
  const layout = { xaxis: { title: { text: "requests served" }, rangemode: "tozero" }, yaxis: limited.length ? percent : bytes, showlegend: true };
  if (limited.length && free.length) layout.yaxis2 = { ...bytes, overlaying: "y", side: "right", showgrid: false };
  byId("occupancy").querySelector(".note").textContent = settingsOf(point).join("  ");
  draw("occupancy-plot", [...limited.map((one, index) => trace(one, index, false)), ...free.map((one, index) => trace(one, index, true))], layout);
}
