// Step time compared with the baselines, memory over the step, and the most expensive calls.

const PARTS = ["compute", "optimizer", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute", "transfer"];
const partColour = (part) => `var(--part-${PARTS.includes(part) ? part : "other"})`;

function drawStep(place) {
  const own = { name: "this plan", seconds: plan.cost.seconds, peak: plan.cost.peak, parts: plan.cost.parts };
  const lines = [own, ...plan.against.filter((line) => line.seconds !== null)];
  const longest = Math.max(...lines.map((line) => line.seconds));
  const used = PARTS.filter((part) => lines.some((line) => line.parts?.[part] > 0));
  const bars = el("div", { class: "bars" });
  for (const line of lines) {
    const parts = line.parts ?? { whole: line.seconds };
    const spans = Object.entries(parts).filter(([, seconds]) => seconds > 0).map(([part, seconds]) =>
      el("span", {
        style: `--colour: ${partColour(part)}; width: ${(100 * seconds) / longest}%`,
        title: `${kindText(part)} ${timeText(seconds)}`,
      }));
    const fits = !plan.limit || line.peak <= plan.limit;
    bars.append(
      el("span", { class: line === own ? "own" : "" }, line.name),
      el("div", { class: "bar", "aria-hidden": "true" }, ...spans),
      el("span", { class: line === own ? "own value" : "value" }, timeText(line.seconds),
        fits ? null : el("span", { class: "warn" }, " does not fit")));
  }
  const legend = el("ul", { class: "legend" }, ...used.map((part) =>
    el("li", {}, el("span", { class: "swatch", style: `--colour: ${partColour(part)}` }), kindText(part))));
  place.append(bars, legend, ...bound(), numbers(lines, used));
}

function bound() {
  if (plan.bound === null || plan.bound === undefined) return [];
  const left = Math.max(0, 1 - plan.bound / plan.cost.seconds);
  return [el("p", { class: "soft" },
    `No plan with these choices takes less than ${timeText(plan.bound)}: at most ${(100 * left).toFixed(2)}% faster.`)];
}

function numbers(lines, used) {
  const sent = Object.entries(plan.cost.bytes).map(([axis, bytes]) => `${bytesText(bytes)} over ${axis}`).join(", ");
  return el("details", { class: "numbers" }, el("summary", {}, "In numbers"),
    table(["", ">step", ...used.map((part) => `>${kindText(part)}`), ">memory"], lines.map((line) => ({
      cells: [line.name, timeText(line.seconds), ...used.map((part) => (line.parts ? timeText(line.parts[part] ?? 0) : "")),
        bytesText(line.peak)],
    }))),
    sent ? el("p", { class: "soft" }, `A device sends in a step: ${sent}.`) : null);
}

function drawMemory(place) {
  const { points, until } = plan.held;
  const { peak, lasting } = plan.cost;
  const limit = plan.limit;
  const near = limit && limit < 4 * peak;
  const top = 1.12 * Math.max(peak, near ? limit : 0);
  const [width, height] = [560, 190];
  const x = (seconds) => (until ? (width * seconds) / until : 0);
  const y = (bytes) => height - (height * bytes) / top;
  const most = points.reduce((best, point) => (point[1] > best[1] ? point : best), points[0] ?? [0, peak, 0]);
  let curve = `M0 ${height}`;
  points.forEach(([seconds, bytes], i) => {
    curve += `L${x(seconds).toFixed(1)} ${y(bytes).toFixed(1)}H${x(points[i + 1]?.[0] ?? until).toFixed(1)}`;
  });
  const picture = svg("svg", {
    viewBox: `-2 -14 ${width + 4} ${height + 36}`, role: "img",
    "aria-label": `Memory: ${bytesText(peak)} at its peak, ${bytesText(lasting)} held throughout`,
  },
    svg("path", { class: "held", d: `${curve}V${height}Z` }),
    svg("rect", { class: "lasting", y: y(lasting), width, height: height - y(lasting) }),
    svg("line", { class: "rule", x2: width, y1: height, y2: height }));
  if (near)
    picture.append(svg("line", { class: "limit", x2: width, y1: y(limit), y2: y(limit) }),
      svg("text", { class: "limit-text", x: width, y: y(limit) - 5, "text-anchor": "end" }, `limit ${bytesText(limit)}`));
  const left = x(most[0]) < width / 2;
  picture.append(svg("circle", { class: "peak", cx: x(most[0]), cy: y(most[1]), r: 3 }),
    svg("text", { x: x(most[0]) + (left ? 6 : -6), y: y(most[1]) - 6, "text-anchor": left ? "start" : "end" },
      `peak ${bytesText(peak)}`),
    svg("text", { x: 6, y: Math.min(height - 6, y(lasting) + 16) }, `held throughout ${bytesText(lasting)}`),
    svg("text", { x: 0, y: height + 16 }, "0"),
    svg("text", { x: width, y: height + 16, "text-anchor": "end" }, timeText(until)));
  place.append(picture);
  if (limit && !near)
    place.append(el("p", { class: "soft" },
      `The limit, ${bytesText(limit)}, is ${Math.floor(limit / peak).toLocaleString("en")} times the peak, and not shown.`));
  const told = el("p", { class: "soft" });
  const tell = (point) => {
    const entry = plan.entries[point[2]];
    const where = entry.op ? `%${entry.name}, ${opText(entry.op)}` : moveText(entry);
    told.replaceChildren(`${bytesText(point[1])} at ${timeText(point[0])}: `,
      el("button", { class: "link", type: "button", onclick: () => reveal(point[2]) }, where));
  };
  if (points.length) {
    tell(most);
    picture.addEventListener("mousemove", (event) => {
      const box = picture.getBoundingClientRect();
      const seconds = (until * (event.clientX - box.left)) / box.width;
      let at = points.findIndex(([begun]) => begun > seconds);
      at = at < 0 ? points.length - 1 : Math.max(0, at - 1);
      tell(points[at]);
    });
  }
  place.append(told);
}

// A lane for calls, in which time that they wait is marked, and one for the collectives of each link.
function drawTimeline(place) {
  if (!plan.timeline) return;
  byId("timeline-section").hidden = false;
  const { seconds, lanes, hidden } = plan.timeline;
  const [width, high, apart, side] = [1160, 26, 10, 90];
  const x = (at) => (seconds ? side + (width * at) / seconds : side);
  const height = lanes.length * (high + apart);
  const told = Object.entries(hidden).map(([link, share]) => `${Math.round(100 * share)}% of those over ${link}`).join(", ");
  const picture = svg("svg", {
    viewBox: `0 0 ${width + side + 4} ${height + 18}`, role: "img",
    "aria-label": `A step of ${timeText(seconds)}; beside calls run ${told}`,
  });
  lanes.forEach(({ name, spans }, number) => {
    const y = number * (high + apart);
    picture.append(svg("text", { x: 0, y: y + high / 2 + 5 }, name),
      svg("rect", { class: "lane", x: side, y, width, height: high }),
      ...spans.map(([start, end, kind]) =>
        svg("rect", {
          x: x(start).toFixed(2), y, width: Math.max(0.4, x(end) - x(start)).toFixed(2), height: high,
          fill: kind === "waiting" ? "var(--warn)" : partColour(kind),
        }, svg("title", {}, `${kindText(kind)} ${timeText(end - start)} at ${timeText(start)}`))));
  });
  picture.append(svg("text", { x: side, y: height + 14 }, "0"),
    svg("text", { x: side + width, y: height + 14, "text-anchor": "end" }, timeText(seconds)));
  const kinds = [...new Set(lanes.flatMap(({ spans }) => spans.map(([, , kind]) => kind)))];
  const legend = el("ul", { class: "legend" }, ...kinds.map((kind) => {
    const colour = kind === "waiting" ? "var(--warn)" : partColour(kind);
    return el("li", {}, el("span", { class: "swatch", style: `--colour: ${colour}` }),
      kind === "waiting" ? "calls wait for a collective" : kindText(kind));
  }));
  place.append(picture, legend, told ? el("p", { class: "soft" }, `Of all collectives, beside calls run ${told}.`) : "");
}

// Entries that differ only in their layer number, added up.
function drawDearest(place) {
  const calls = new Map(), moves = new Map();
  plan.entries.forEach((entry, number) => {
    if (!entry.seconds) return;
    const where = modulePattern(entry);
    const text = entry.op ? opText(entry.op) : moveText(entry);
    const back = entry.phase === "backward" ? " (backward)" : "";
    const key = `${text} ${where}${back}`;
    const kind = entry.op ? calls : moves;
    const sum = kind.get(key) ?? { text, where: (where || "the model") + back, seconds: 0, bytes: 0, count: 0, first: number };
    sum.seconds += entry.seconds;
    sum.bytes += entry.op ? 0 : moveBytes(entry);
    sum.count += 1;
    kind.set(key, sum);
  });
  const column = (title, kind, withBytes, none) => {
    const rows = [...kind.values()].sort((a, b) => b.seconds - a.seconds).slice(0, 8).map((sum) => ({
      cells: [
        el("span", { class: "path" },
          el("button", { class: "link", type: "button", onclick: () => reveal(sum.first) }, sum.text),
          el("span", { class: "soft" }, ` in ${sum.where}`), sum.count > 1 ? ` ×${sum.count}` : ""),
        ...(withBytes ? [bytesText(sum.bytes)] : []),
        timeText(sum.seconds)],
    }));
    const heads = ["", ...(withBytes ? [">bytes"] : []), ">time"];
    return el("div", {}, el("h3", {}, title), rows.length ? table(heads, rows) : el("p", { class: "soft" }, none));
  };
  place.append(el("div", { class: "columns" },
    column("Most expensive calls", calls, false, "No call takes time."),
    column("Most expensive redistributions", moves, true, "There is no communication.")));
}

const modulePattern = (entry) => modulePaths[entry.module].replace(/\d+/g, "*");
const moveBytes = (entry) => entry.steps.reduce((sum, [, , bytes]) => sum + bytes, 0);
const moveText = (entry) =>
  entry.steps.map(([kind, axes]) => (axes.length && kind !== "slice" && kind !== "to_partial"
    ? `${kindText(kind)} over ${axes.join("+")}` : kindText(kind))).join(", ") || "no change";
