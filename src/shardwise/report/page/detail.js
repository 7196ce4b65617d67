// The choice for one line of the tree, its alternatives, and the evidence.

function showDetail(item) {
  const place = byId("detail");
  if (item.entry !== undefined) {
    const entry = plan.entries[item.entry];
    place.replaceChildren(...(entry.op ? callDetail(entry) : moveDetail(entry)));
  } else if (item.input !== undefined) place.replaceChildren(...inputDetail(plan.inputs[item.input]));
  else place.replaceChildren(...moduleDetail(item.module));
  place.scrollTop = 0;
}

const facts = (pairs) =>
  el("dl", {}, ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
const tensors = (values) => el("ul", { class: "given" }, ...values.map((value) => el("li", {}, tensor(value))));

function callDetail(entry) {
  const made = [
    el("h3", {}, `%${entry.name}: ${opText(entry.op)}`),
    facts([["module", modulePaths[entry.module] || "the model"], ["phase", entry.phase],
      ["time", timeText(entry.seconds)], ["work", entry.flops ? `${entry.flops.toLocaleString("en")} flops` : ""],
      ["from", entry.source]]),
    el("pre", {}, entry.text),
    el("h3", {}, "Chosen"),
    table(["axis", "row"], plan.mesh.map(([name], axis) => ({
      cells: [name, el("code", {}, plan.rows[entry.rows][axis])] }))),
  ];
  if (entry.local) made.push(el("p", {}, "Every rank runs its local form ", el("code", {}, entry.local), "."));
  if (entry.inputs.length) made.push(el("h3", {}, "Inputs"), tensors(entry.inputs));
  if (entry.outputs.length) made.push(el("h3", {}, "Outputs"), tensors(entry.outputs));
  return [...made, ...considered(entry), ...evidence(entry)];
}

function considered(entry) {
  if (entry.considered === null) return [];
  const { of, all, fit, shown } = plan.considered[entry.considered];
  const own = shown.find(([, , , chosen]) => chosen);
  const total = ([, compute, around]) => (compute === null || around === null ? null : compute + around);
  const rows = shown.map((choice) => {
    const more = total(choice) === null || total(own) === null ? null : total(choice) - total(own);
    const against = choice === own ? "chosen" : more === null ? "" : (more < 0 ? "−" : "+") + timeText(Math.abs(more));
    const text = (seconds) => (seconds === null ? "cannot" : timeText(seconds));
    return { class: choice === own ? "chosen" : "",
      cells: [el("span", {}, ...lines(choice[0])), text(choice[1]), text(choice[2]), bytesText(choice[4]), against] };
  });
  const like = of === entry.name ? "" : ` Computed for %${of}, an equal call.`;
  return [
    el("h3", {}, "Chosen and runners-up"),
    table(["rows", ">compute", ">redistribution", ">memory", ">difference"], rows),
    el("p", { class: "soft" },
      `${countText(all, "choice")}, ${fit} compatible with the neighbouring choices; each is priced with all other choices as planned.${like}`)];
}

const lines = (rows) => rows.split("; ").flatMap((row, i) => [i ? el("br") : null, el("code", {}, row)].filter(Boolean));

function evidence(entry) {
  const said = {
    book: "Its rows come from the rule book.",
    dtensor: "Its rows are those of PyTorch's DTensor, which the audit did not refute.",
    discovered: "Its rows were discovered on a scaled-down call.",
    replicated: "It has no known rows and is replicated.",
  }[entry.from];
  const made = [el("h3", {}, "Evidence"), el("p", {}, said)];
  const rule = plan.rules[entry.op];
  if (rule?.hand)
    made.push(el("p", {}, "The rule of this operator is hand-written and validated by experiment."));
  else if (rule) {
    const { calls, held_out: others, challenged, experiments } = rule.evidence;
    const known = [calls ? `derived from ${countText(calls, "call")}` : "", others ? `validated on ${others} held-out calls` : "",
      challenged ? `on ${challenged} refuting calls` : "",
      experiments ? countText(experiments, "experiment") : ""].filter(Boolean).join(", ");
    made.push(el("p", {}, `The book's rule of ${opText(entry.op)}${known ? `: ${known}` : ""}.`),
      table(["clause", "reason"], rule.clauses.map(([clause, reason]) => ({ cells: [el("code", {}, clause), reason] }))));
  }
  return made;
}

function moveDetail(entry) {
  const target = [entry.moved[0], entry.moved[1], entry.to];
  const user = entry.for === undefined ? null : plan.entries[entry.for];
  return [
    el("h3", {}, moveText(entry)),
    facts([["of", entry.moved[0]], ["time", timeText(entry.seconds)], ["bytes", bytesText(moveBytes(entry))],
      ["for", user ? `%${user.name}, ${opText(user.op)}` : "an output of the model"]]),
    el("h3", {}, "From"), tensors([entry.moved]),
    el("h3", {}, "To"), tensors([target]),
    el("h3", {}, "Steps"),
    table(["step", "over", ">bytes", ">time"], entry.steps.map(([kind, axes, bytes, seconds]) => ({
      cells: [kindText(kind), axes.join(", "), bytesText(bytes), timeText(seconds)] }))),
  ];
}

function inputDetail(given) {
  const uses = plan.entries.filter((entry) => entry.op && entry.inputs.some(([name]) => name === given.target));
  const moves = plan.entries.filter((entry) => entry.moved && entry.moved[0] === given.target);
  const role = { user_input: "input", tangent: "gradient of an output" }[given.role] ?? given.role;
  return [
    el("h3", {}, given.target), facts([["role", role]]), tensors([given.value]),
    el("h3", {}, "Redistributed"),
    moves.length ? table(["how", ">bytes", ">time"], moves.map((move) => ({
      cells: [moveText(move), bytesText(moveBytes(move)), timeText(move.seconds)] }))) : el("p", { class: "soft" }, "Never."),
    el("h3", {}, "Used by"),
    uses.length ? table(["call", "in", ">time"], uses.slice(0, 50).map((entry) => ({
      cells: [`%${entry.name}, ${opText(entry.op)}`, modulePaths[entry.module] || "the model", timeText(entry.seconds)] })))
      : el("p", { class: "soft" }, "Nothing."),
  ];
}

function moduleDetail(module) {
  return [
    el("h3", {}, module.path || module.name),
    facts([["calls", module.calls.toLocaleString("en")], ["time", timeText(module.seconds)],
      ["redistribution", timeText(module.moving)],
      ["equal modules", module.alike ? `${module.alike} with the same calls, shapes and layouts` : ""]]),
    el("p", { class: "soft" }, "Select an operation, a parameter or a redistribution to see its choices."),
  ];
}
