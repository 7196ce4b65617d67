"use strict";

// Elements and texts: every word on the page is set as text, never as markup.

const plan = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function scaled(amount, units, least) {
  for (const [unit, scale] of units) if (amount >= scale) return `${(amount / scale).toFixed(2)} ${unit}`;
  return least(amount);
}

// As the terminal writes them.
const timeText = (seconds) =>
  scaled(seconds, [["s", 1], ["ms", 1e-3], ["us", 1e-6]], (s) => (s ? `${Math.round(s / 1e-9)} ns` : "0"));
const bytesText = (bytes) =>
  scaled(bytes, [["GB", 1e9], ["MB", 1e6], ["KB", 1e3]], (b) => `${Math.round(b)} B`);

const countText = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;
const opText = (op) => op.replace(/^aten\./, "").replace(/\.default$/, "");
const kindText = (kind) => kind.replaceAll("_", "-");

function table(heads, rows) {
  const cell = (tag) => (value, column) => {
    const attributes = heads[column].startsWith(">") ? { class: "number" } : {};
    return el(tag, attributes, value);
  };
  const head = el("tr", {}, ...heads.map((text, column) => cell("th")(text.replace(/^>/, ""), column)));
  const body = rows.map(({ cells, ...attributes }) => el("tr", attributes, ...cells.map(cell("td"))));
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)));
}
