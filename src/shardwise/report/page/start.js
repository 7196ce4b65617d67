// The head of the page, the search, and everything drawn.

const MOST_RESULTS = 100;

function drawHead() {
  const { name, mesh, cluster, training, calls, cost } = plan;
  const devices = mesh.reduce((product, [, size]) => product * size, 1);
  byId("name").textContent = name;
  byId("about").textContent = `${training ? "Training" : "Inference"} on ${countText(devices, "device")} of ${cluster}: ` +
    `${timeText(cost.seconds)} a step, ${bytesText(cost.peak)} at the peak of memory, ${countText(calls, "call")}.`;
  byId("axes").append(...mesh.map(([axis, size], number) =>
    el("li", {}, el("span", { class: "swatch", style: `--colour: ${axisColour(number)}` }), `${axis} = ${size}`)));
  byId("notes").append(...plan.notes.map((text) => el("p", { class: "warn" }, text)));
}

function textOf(found) {
  if (found.input !== undefined) {
    const given = plan.inputs[found.input];
    return `${given.target} ${given.role.replace("_", " ")} ${layoutOf(given.value).text}`;
  }
  const entry = plan.entries[found.entry];
  const where = modulePaths[entry.module];
  return entry.op ? `${where} ${opText(entry.op)} %${entry.name} ${entry.phase}`
    : `${where} ${moveText(entry)} ${entry.moved[0]}`;
}

function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const results = byId("results");
  results.replaceChildren();
  results.hidden = wanted.length === 0;
  byId("found").textContent = "";
  if (results.hidden) return;
  const hits = paths.filter((found) => {
    found.text ??= textOf(found).toLowerCase();
    return wanted.every((word) => found.text.includes(word));
  });
  results.hidden = hits.length === 0;
  results.append(...hits.slice(0, MOST_RESULTS).map((found) =>
    el("li", {}, el("button", { type: "button", onclick: () => goTo(found) }, textOf(found)))));
  const more = hits.length > MOST_RESULTS ? `, the first ${MOST_RESULTS} shown` : "";
  byId("found").textContent = `${hits.length.toLocaleString("en")} found${more}`;
}

byId("search").addEventListener("input", (event) => search(event.target.value));
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") {
    byId("results").querySelector("button")?.focus();
    event.preventDefault();
  }
});
byId("results").addEventListener("keydown", (event) => {
  const line = event.target.closest("li");
  const next = { ArrowDown: line?.nextElementSibling, ArrowUp: line?.previousElementSibling }[event.key];
  if (next) {
    next.firstChild.focus();
    event.preventDefault();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.closest("input")) {
    byId("search").focus();
    event.preventDefault();
  }
});

drawHead();
drawStep(byId("step"));
drawMemory(byId("memory"));
drawTimeline(byId("timeline"));
drawTree(byId("tree"));
drawDearest(byId("dearest"));
