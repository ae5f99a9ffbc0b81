// The page: head, controls, table, and what a chosen point shows.

const view = { ...data.view, value: data.view.y };
let selected = ranked.length ? ranked[0].number : null;

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  byId("theme").textContent = name === "dark" ? "☀" : "☾";
}

function count(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

function writeHead() {
  document.title = data.title;
  byId("when").textContent = `kvpool sweep · ${data.started}`;
  const [job, ...rest] = data.title.split(" · ");
  byId("title").append(job, " ", element("span", rest.join(" · ")));
  const lede = byId("lede");
  lede.append(`${count(data.points.length, "point")} over `);
  data.keys.forEach((key, index) => lede.append(index ? ", " : "", element("b", key.name), ` (${key.values.length})`));
  const failed = data.points.filter((point) => point.status === "failed").length;
  const unwell = data.points.filter((point) => point.status === "unwell").length;
  if (failed) lede.append("; ", element("span", `${failed} failed`, { class: "bad" }));
  if (unwell) lede.append("; ", element("span", `${unwell} not well`, { class: "bad" }));
  lede.append(".");
  const fixed = Object.entries(data.fixed).filter(([key]) => key !== "job" && key !== "model").map(([key, value]) => `${key}=${value}`);
  if (fixed.length) lede.append(` All with ${fixed.join(" ")}.`);
}

function card(heading, big, text) {
  const made = element("div", undefined, { class: "card" });
  made.append(element("h3", heading));
  if (big) made.append(element("div", big, { class: "big" }));
  if (text) made.append(element("p", text));
  byId("cards").append(made);
  return made;
}

function writeCards() {
  if (!objective || !ranked.length || score(ranked[0]) === -Infinity) return;
  const best = ranked[0], worst = ranked.filter((point) => score(point) > -Infinity).pop();
  if (score(best) === score(worst))
    return void card(capital(titleOf(objective)), written(objective, best.figures[objective]), ranked.length > 1 ? "The same at every point" : settingsOf(best).join(" "));
  card(`${sign > 0 ? "Highest" : "Lowest"} ${titleOf(objective)}`, written(objective, best.figures[objective]), settingsOf(best).join(" "));
  card(`${sign > 0 ? "Lowest" : "Highest"} ${titleOf(objective)}`, written(objective, worst.figures[objective]), settingsOf(worst).join(" "));
  const effects = data.keys.filter((key) => key.values.length > 1).map((key) => [key.name, effect(key, objective)]).sort((one, two) => two[1] - one[1]);
  if (effects.length < 2 || !effects[0][1]) return;
  const bars = element("div", undefined, { class: "bars" });
  for (const [name, size] of effects.slice(0, 4)) {
    const bar = element("div", undefined, { class: "bar" });
    const amount = data.figures[objective].kind === "share" ? `${(100 * size).toFixed(1)} pp` : written(objective, size);
    bar.append(element("span", name), element("span", amount), element("i", undefined, { style: `--part: ${(100 * size) / effects[0][1]}%` }));
    bars.append(bar);
  }
  const made = card(`What moves ${titleOf(objective)}`);
  made.title = "Between the values of a setting, the others averaged";
  made.append(bars);
}

function copyButton(text) {
  const button = element("button", "copy", { type: "button", title: text });
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {  // a browser may keep the clipboard from files
      window.prompt("The command", text);
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  return button;
}

function commandBox(box, text) {
  box.replaceChildren(element("code", text), copyButton(text));
}

function fill(select, names, chosen, label = titleOf) {
  select.replaceChildren(...names.map((name) => element("option", label(name), { value: name })));
  select.value = chosen;
  select.closest("label").hidden = names.length < 2;
}

function control(id, names, label) {
  const select = byId(id);
  fill(select, names, view[id], label);
  select.addEventListener("change", () => { view[id] = select.value; drawAll(); });
}

function writeControls() {
  const several = data.keys.filter((key) => key.values.length > 1).map((key) => key.name);
  const figures = [...new Set([view.y, view.x, ...data.varying].filter((name) => name && !isKey(name)))];
  control("x", [...several, ...figures]);
  control("y", figures);
  control("color", several.length ? ["", ...several] : [""], (name) => name || "none");
  control("rows", several);
  control("columns", several);
  control("value", figures);
  if (view.color === null) byId("color").value = "";
  const known = Object.keys(data.occupancy).map(Number).sort((one, two) => one - two);
  fill(byId("point"), known, selected, (number) => `${number}  ${settingsOf(byNumber.get(number)).join(" ")}`);
  byId("point").addEventListener("change", () => choose(Number(byId("point").value)));
}

function choose(number) {
  selected = number;
  if (data.occupancy[number]) byId("point").value = number;
  drawAll();
  for (const row of byId("points").querySelectorAll("tbody tr")) row.setAttribute("aria-selected", row.dataset.number === String(number));
}

function writeChosen() {
  const point = byNumber.get(selected), box = byId("chosen");
  if (!point) return;
  const which = element("div", undefined, { class: "which" });
  which.append(element("b", point === ranked[0] ? `Best: point ${point.number}` : `Point ${point.number}`));
  for (const name of [view.y, view.x]) if (name && !isKey(name) && point.figures[name] !== undefined) which.append(element("span", `${titleOf(name)} ${written(name, point.figures[name])}`));
  for (const setting of settingsOf(point)) which.append(element("span", setting));
  const command = element("div", undefined, { class: "command" });
  commandBox(command, point.command);
  box.replaceChildren(which, command);
}

// --- the table -----------------------------------------------------------------------------------

const sorting = { name: view.y, down: view.y !== objective || sign > 0 };

function columnsShown() {
  const figures = byId("more").checked ? [...new Set([...data.columns, ...data.varying])] : data.columns;
  const first = figures.slice(0, 1);  // what the sweep is judged by
  return ["point", ...first, ...data.keys.map((key) => key.name), ...figures.slice(1), "seconds taken"];
}

function cellOf(point, name) {
  if (name === "point") return point.number;
  if (name === "seconds taken") return point.seconds;
  return valueOf(point, name);
}

// Numbers by size, settings in the order of their key; what is missing comes last.
function ordered(points) {
  const rank = (point) => {
    const value = cellOf(point, sorting.name);
    if (value === undefined) return null;
    return isKey(sorting.name) ? keys.get(sorting.name).values.indexOf(value) : value;
  };
  return [...points].sort((one, two) => {
    const [left, right] = [rank(one), rank(two)];
    if (left === null || right === null) return (left === null) - (right === null) || one.number - two.number;
    return (sorting.down ? right - left : left - right) || one.number - two.number;
  });
}

function writeTable() {
  const table = byId("points").querySelector("table"), names = columnsShown();
  const isNumber = (name) => name === "point" || name === "seconds taken" || !isKey(name) || keys.get(name).numeric;
  const header = element("tr");
  for (const name of names) {
    const heading = element("th", undefined, isNumber(name) ? { class: "number", scope: "col" } : { scope: "col" });
    if (sorting.name === name) heading.setAttribute("aria-sort", sorting.down ? "descending" : "ascending");
    const button = element("button", name in data.figures ? titleOf(name) : name === "seconds taken" ? "took" : name, { type: "button" });
    button.addEventListener("click", () => {
      sorting.down = sorting.name === name ? !sorting.down : name === objective && sign > 0;
      sorting.name = name;
      writeTable();
    });
    heading.append(button);
    header.append(heading);
  }
  header.append(element("th", undefined, { class: "last", "aria-label": "command" }));
  table.tHead.replaceChildren(header);
  table.tBodies[0].replaceChildren(...ordered(data.points).map((point) => rowOf(point, names, isNumber)));
}

function rowOf(point, names, isNumber) {
  const row = element("tr", undefined, { "data-number": point.number, "aria-selected": point.number === selected });
  const shown = point.status === "failed" ? names.filter((name) => name === "point" || isKey(name)) : names;
  for (const name of shown) {
    const text = name === "point" ? point.number : name === "seconds taken" ? `${digits(Number(point.seconds.toPrecision(3)))} s` : written(name, valueOf(point, name));
    row.append(element("td", text, { class: `${isNumber(name) ? "number" : ""} ${name === objective ? "lead" : ""}`.trim() }));
  }
  if (point.status === "failed") {
    const hasLead = names[1] in data.figures;
    if (hasLead) row.firstChild.after(element("td", "failed", { class: "number bad" }));
    row.append(element("td", point.error, { class: "error", colspan: names.length - shown.length - hasLead }));
  }
  const last = element("td", undefined, { class: "last" });
  last.append(copyButton(point.command));
  row.append(last);
  row.addEventListener("click", () => choose(point.number));
  return row;
}

// --- all of it -----------------------------------------------------------------------------------

function drawAll() {
  if (view.x && view.y) drawScatter(view, selected);
  if (view.rows && view.columns && view.y) drawHeat(view);
  if (selected !== null) drawOccupancy(selected);
  writeChosen();
}

function listen() {
  for (const id of ["scatter-plot", "heat-plot"]) {
    const plot = byId(id);
    if (plot.on) plot.on("plotly_click", (event) => {
      const number = event.points.map((one) => one.customdata).find((each) => each !== undefined && each !== null);
      if (number !== undefined) choose(number);
    });
  }
  byId("theme").addEventListener("click", () => { setTheme(theme() === "dark" ? "light" : "dark"); drawAll(); });
  byId("more").addEventListener("change", writeTable);
  byId("more-label").hidden = data.varying.every((name) => data.columns.includes(name));
}

setTheme(window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
writeHead();
writeCards();
writeControls();
commandBox(byId("command"), data.command);
drawAll();
writeTable();
listen();
