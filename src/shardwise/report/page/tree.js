// The tree: lines are built when their module is unfolded. One line can be reached by Tab; arrows move between lines.

const paths = []; // for every entry and input, the modules that lead to it
const modulePaths = plan.modules;

function item(kind, value, depth) {
  const node = el("div", { role: "treeitem", tabindex: "-1", "aria-level": depth + 1 });
  const line = el("div", { class: "line", style: `--depth: ${depth}` });
  node.append(line);
  node.item = { [kind]: value, depth };
  if (kind === "module") {
    node.setAttribute("aria-expanded", "false");
    moduleLine(line, value);
  } else if (kind === "input") inputLine(line, plan.inputs[value]);
  else if (plan.entries[value].op) callLine(line, plan.entries[value]);
  else moveLine(line, plan.entries[value]);
  return node;
}

const tag = (text) => el("span", { class: "tag" }, text);
const value = (text) => el("span", { class: "value" }, text);

function moduleLine(line, module) {
  const share = plan.cost.seconds ? (100 * module.seconds) / plan.cost.seconds : 0;
  line.append(el("span", { class: "fold", "aria-hidden": "true" }, "▸"),
    el("span", { class: "what" }, el("b", {}, module.name), module.alike ? tag(`${module.alike} equal`) : null,
      el("span", { class: "soft" }, ` ${countText(module.calls, "call")}`)),
    el("span", { class: "soft value" }, module.moving ? `moving ${timeText(module.moving)}` : ""),
    value(`${timeText(module.seconds)} · ${share.toFixed(share < 10 ? 1 : 0)}%`));
}

function inputLine(line, given) {
  const kind = { user_input: "input", tangent: "given gradient" }[given.role] ?? given.role;
  line.append(el("span"), el("span", { class: "what" }, el("b", {}, given.target.split(".").pop()), tag(kind),
    el("span", { class: "soft" }, ` ${shapeText(given.value)}`)), grid(given.value, 32, 20), value(""));
}

function callLine(line, entry) {
  const first = entry.outputs[0];
  line.append(el("span"), el("span", { class: "what" }, el("b", {}, opText(entry.op)),
    entry.phase === "backward" ? tag("backward") : null, entry.from === "replicated" ? tag("no rows known") : null,
    el("span", { class: "soft" }, ` %${entry.name}${first ? ` ${shapeText(first)}` : ""}`)),
    first ? grid(first, 32, 20) : el("span"), value(timeText(entry.seconds)));
}

function moveLine(line, entry) {
  line.classList.add("move");
  const target = [entry.moved[0], entry.moved[1], entry.to];
  line.append(el("span", { class: "fold", "aria-hidden": "true" }, "⇄"),
    el("span", { class: "what" }, el("b", {}, moveText(entry)), ` ${entry.moved[0]} `,
      el("span", { class: "whole" }, bytesText(moveBytes(entry)))),
    el("span", { class: "tensor" }, grid(entry.moved, 32, 20), "→", grid(target, 32, 20)), value(timeText(entry.seconds)));
}

function unfold(node) {
  const { module, depth } = node.item;
  if (!node.inside) {
    node.inside = el("div", { role: "group" });
    node.inside.append(...module.inputs.map((number) => item("input", number, depth + 1)),
      ...module.items.map((part) => (typeof part === "number" ? item("entry", part, depth + 1) : item("module", part, depth + 1))));
    node.append(node.inside);
  }
  node.inside.hidden = false;
  node.setAttribute("aria-expanded", "true");
}

function foldUp(node) {
  if (node.inside) node.inside.hidden = true;
  node.setAttribute("aria-expanded", "false");
}

const isOpen = (node) => node.getAttribute("aria-expanded") === "true";

let current = null, selected = null;

function focusOn(node) {
  if (current) current.tabIndex = -1;
  current = node;
  node.tabIndex = 0;
  node.focus({ preventScroll: true });
  node.firstChild.scrollIntoView({ block: "nearest" });
}

function select(node) {
  if (selected) {
    selected.removeAttribute("aria-selected");
    selected.firstChild.classList.remove("selected");
  }
  selected = node;
  node.setAttribute("aria-selected", "true");
  node.firstChild.classList.add("selected");
  showDetail(node.item);
}

const shown = () => [...byId("tree").querySelectorAll("[role=treeitem]")].filter((node) => !node.closest("[hidden]"));

function onKey(event) {
  const node = event.target.closest("[role=treeitem]");
  if (!node) return;
  const all = shown(), at = all.indexOf(node);
  const above = node.parentElement.closest("[role=treeitem]");
  const step = {
    ArrowDown: () => focusOn(all[Math.min(at + 1, all.length - 1)]),
    ArrowUp: () => focusOn(all[Math.max(at - 1, 0)]),
    Home: () => focusOn(all[0]),
    End: () => focusOn(all[all.length - 1]),
    ArrowRight: () => node.item.module && (isOpen(node) ? focusOn(all[at + 1] ?? node) : unfold(node)),
    ArrowLeft: () => (node.item.module && isOpen(node) ? foldUp(node) : above && focusOn(above)),
    Enter: () => select(node),
    " ": () => (node.item.module ? (isOpen(node) ? foldUp(node) : unfold(node)) : select(node)),
  }[event.key];
  if (step) {
    event.preventDefault();
    step();
  }
}

function onClick(event) {
  const line = event.target.closest(".line");
  if (!line) return;
  const node = line.parentElement;
  if (node.item.module) isOpen(node) ? foldUp(node) : unfold(node);
  focusOn(node);
  select(node);
}

// The way to each entry and input, noted once.
function note(module, way) {
  const here = [...way, module];
  module.inputs.forEach((number) => paths.push({ input: number, way: here }));
  for (const part of module.items)
    if (typeof part === "number") paths.push({ entry: part, way: here });
    else note(part, here);
}

function goTo(found) {
  let node = byId("tree").firstChild;
  for (const module of found.way.slice(1)) {
    unfold(node);
    node = [...node.inside.children].find((child) => child.item.module === module);
  }
  unfold(node);
  const [kind, number] = found.entry === undefined ? ["input", found.input] : ["entry", found.entry];
  const line = [...node.inside.children].find((child) => child.item[kind] === number);
  focusOn(line);
  select(line);
}

function reveal(entry) {
  goTo(paths.find((found) => found.entry === entry));
}

function drawTree(place) {
  note(plan.tree, []);
  const root = item("module", plan.tree, 0);
  place.append(root);
  unfold(root);
  // Modules that hold nothing but one other are unfolded too.
  let node = root;
  for (;;) {
    const inside = [...node.inside.children].filter((child) => child.item.module);
    if (inside.length === 0 || inside.length > 3) break;
    node = inside.reduce((best, child) => (child.item.module.calls > best.item.module.calls ? child : best));
    if (node.item.module.alike) break;
    unfold(node);
  }
  current = root;
  root.tabIndex = 0;
  place.addEventListener("keydown", onKey);
  place.addEventListener("click", onClick);
  select(root);
}
