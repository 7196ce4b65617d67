// A tensor's sharding drawn: cut lines in the colours of the axes that cut, one device's piece filled, partials hatched.

const AXIS_COLOURS = 6;
const MOST_CUTS = 8; // drawn along one side
const axisColour = (axis) => `var(--axis-${axis % AXIS_COLOURS})`;
const layoutOf = (value) => plan.layouts[value[2]];

function shapeText(value) {
  const [dtype, shape] = plan.tensors[value[1]];
  return `${dtype}[${shape.join(", ")}]`;
}

function grid(value, width = 44, height = 28) {
  const { cuts, partial, text } = layoutOf(value);
  const sharded = Object.keys(cuts).map(Number).sort((a, b) => a - b);
  // Two sharded dims are drawn down and across; one alone goes across if it is the last of several.
  const rank = plan.tensors[value[1]][1].length;
  let [down, across] = sharded;
  if (sharded.length === 1 && down === rank - 1 && rank > 1) [down, across] = [undefined, down];
  const picture = svg("svg", {
    class: "grid", width, height, viewBox: `-1 -1 ${width + 2} ${height + 2}`, role: "img",
    "aria-label": plan.mesh.map(([name], axis) => `${name}: ${placed(text, axis)}`).join(", "),
  });
  const sides = { down: cutsOf(cuts, down), across: cutsOf(cuts, across) };
  picture.append(svg("rect", { class: "whole", width, height }));
  const piece = [width / sides.across.count, height / sides.down.count];
  const axes = [...sides.down.axes, ...sides.across.axes];
  axes.forEach((axis, position) => {
    const share = piece[0] / axes.length;
    picture.append(svg("rect", {
      x: position * share, width: share, height: piece[1], fill: axisColour(axis), "fill-opacity": .55,
    }));
  });
  for (const [axis, reduction] of partial) picture.append(...hatch(axis, reduction, width, height));
  for (const { at, axis } of sides.down.lines)
    picture.append(svg("line", { class: "cut", x2: width, y1: at * height, y2: at * height, stroke: axisColour(axis) }));
  for (const { at, axis } of sides.across.lines)
    picture.append(svg("line", { class: "cut", y2: height, x1: at * width, x2: at * width, stroke: axisColour(axis) }));
  return picture;
}

// How often a dim is cut and by which axes, the outermost cut first, no more than can be seen.
function cutsOf(cuts, dim) {
  const axes = dim === undefined ? [] : cuts[dim];
  let count = 1;
  const lines = new Map();
  for (const axis of axes) {
    const pieces = Math.min(plan.mesh[axis][1], Math.max(1, Math.floor(MOST_CUTS / count)));
    count *= pieces;
    for (let i = 1; i < count; i++) if (!lines.has(i / count)) lines.set(i / count, axis);
  }
  return { axes, count, lines: [...lines].map(([at, axis]) => ({ at, axis })) };
}

function hatch(axis, reduction, width, height) {
  const lines = [];
  for (let x = -height + 4 * axis; x < width; x += 8) {
    const from = Math.max(0, -x), to = Math.min(height, width - x);
    lines.push(svg("line", {
      x1: x + from, y1: from, x2: x + to, y2: to, stroke: axisColour(axis), "stroke-opacity": .8, "stroke-width": 1.4,
    }));
  }
  return lines;
}

const placed = (layout, axis) => layout.split(/,(?![^(]*\))/)[axis].trim();

function chips(layout) {
  return el("span", { class: "chips" }, ...plan.mesh.map(([name], axis) => {
    const text = placed(layout.text, axis);
    const colour = text === "R" ? "var(--line)" : axisColour(axis);
    return el("span", {}, el("span", { class: "swatch", style: `--colour: ${colour}` }), `${name} ${text}`);
  }));
}

// The picture with its words, as the detail shows it.
function tensor(value) {
  return el("span", { class: "tensor" }, grid(value),
    el("span", {}, el("code", {}, `${value[0]} ${shapeText(value)}`), el("br"), chips(layoutOf(value))));
}
