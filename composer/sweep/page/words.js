"use strict";
// The data, and how numbers and settings are written.

const data = JSON.parse(document.getElementById("data").textContent);
const keys = new Map(data.keys.map((key) => [key.name, key]));
const measured = data.points.filter((point) => point.status !== "failed");
const byNumber = new Map(data.points.map((point) => [point.number, point]));
const objective = data.objective && data.objective.name;
const sign = data.objective ? data.objective.sign : 1;

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

const byId = (id) => document.getElementById(id);
const isKey = (name) => keys.has(name);
const titleOf = (name) => (isKey(name) ? name : data.figures[name].title);
const valueOf = (point, name) => (isKey(name) ? point.settings[name] : point.figures[name]);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// The power of 1024 in whose unit most of the numbers have few digits.
function byteUnit(numbers) {
  const most = Math.max(1, ...numbers.map(Math.abs));
  return Math.min(BYTES.length - 1, Math.floor(Math.log2(most) / 10));
}

function digits(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (Number.isInteger(number) || size >= 1000) return number.toLocaleString("en-US", { maximumFractionDigits: 0 });
  return String(Number(number.toPrecision(size < 1 ? 3 : 4)));
}

// A figure with its unit, or a setting as it was given.
function written(name, value) {
  if (value === undefined || value === null) return "–";
  if (isKey(name)) return String(value);
  const { kind, unit } = data.figures[name];
  if (kind === "bytes") {
    const power = byteUnit([value]);
    return `${Number((value / 1024 ** power).toPrecision(4))} ${BYTES[power]}`;
  }
  if (kind === "share") return `${(100 * value).toFixed(2)} %`;
  return `${digits(value)} ${unit}`.trim();
}

// What stands on an axis: a factor for its numbers, and a title with the unit.
function axisOf(name, numbers) {
  if (isKey(name)) return { factor: 1, title: name };
  const { kind, unit, title } = data.figures[name];
  if (kind === "bytes") {
    const power = byteUnit(numbers);
    return { factor: 1 / 1024 ** power, title: `${title} (${BYTES[power]})` };
  }
  if (kind === "share") return { factor: 100, title: `${title} (%)` };
  return { factor: 1, title: unit ? `${title} (${unit})` : title };
}

const settingsOf = (point) =>
  data.keys.filter((key) => point.settings[key.name] !== undefined).map((key) => `${key.name}=${point.settings[key.name]}`);

const score = (point) => {
  const value = objective && point.status !== "failed" ? point.figures[objective] : undefined;
  return value === undefined ? -Infinity : sign * value;
};
const ranked = data.best.map((number) => byNumber.get(number));

// What a pointer sees of a point.
function hover(point, names) {
  const lines = [...new Set(names)].filter((name) => name && !isKey(name))
    .map((name, index) => (index ? "" : "<b>") + `${escaped(titleOf(name))} ${escaped(written(name, point.figures[name]))}` + (index ? "" : "</b>"));
  return [...lines, ...settingsOf(point).map(escaped), `point ${point.number}`].join("<br>");
}

const mean = (numbers) => numbers.reduce((sum, one) => sum + one, 0) / numbers.length;

// How far a figure moves between the values of a key, other settings averaged.
function effect(key, name) {
  const means = key.values.map((value) => measured
    .filter((point) => point.settings[key.name] === value && point.figures[name] !== undefined)
    .map((point) => point.figures[name])).filter((group) => group.length).map(mean);
  return means.length > 1 ? Math.max(...means) - Math.min(...means) : 0;
}
