/* Two calculators: KV memory, and the roofline of one decode or prefill step on one device. The
   arithmetic is that of minivllm/kvcache/spec.py and minivllm/bench/roofline.py; tests compare. */
"use strict";

const KNOWN = window.CALCULATORS;

function kvBytesPerToken(model, bits) {
  return 2 * model.layers * model.kvHeads * model.headDim * bits / 8;
}

function weightBytes(model, bits) {
  const head = model.headParams + model.embeddingParams;
  const body = model.sharedParams + model.experts * model.expertParams;
  return (body * bits + head * Math.max(KNOWN.headBits, bits)) / 8;
}

/* Blocks that fit beside the weights into 0.9 of the memory, and who lives in them. */
function kvMemory(model, machine, weightBits, kvBits, blockSize, context) {
  const perToken = kvBytesPerToken(model, kvBits);
  const room = machine.memoryBytes * 0.9 - weightBytes(model, weightBits);
  const blocks = Math.max(0, Math.floor(room / (perToken * blockSize)));
  const perRequest = Math.ceil(context / blockSize);
  return {perToken, weights: weightBytes(model, weightBits), room, blocks,
          requests: Math.floor(Math.max(0, blocks - 1) / perRequest), // block 0 is the null block
          perRequest: perRequest * blockSize * perToken};
}

/* One step: `requests` of them compute `tokens` each, the last of `context`. */
function step(model, machine, weightBits, kvBits, requests, tokens, context) {
  const newTokens = requests * tokens, start = context - tokens;
  const attended = requests * (tokens * start + tokens * (tokens + 1) / 2);
  const active = model.sharedParams + model.expertsPerToken * model.expertParams;
  const flops = 2 * active * newTokens
    + 4 * model.layers * model.heads * model.headDim * attended
    + 2 * model.headParams * requests;
  const awake = model.experts * (1 - Math.pow(1 - model.expertsPerToken / model.experts, newTokens));
  const weights = ((model.sharedParams + awake * model.expertParams) * weightBits
    + model.headParams * Math.max(KNOWN.headBits, weightBits)) / 8;
  const bytes = weights + (requests * context + newTokens) * kvBytesPerToken(model, kvBits);
  const compute = flops / (machine.flopsPerSecond * KNOWN.computeEfficiency);
  const memory = bytes / (machine.bytesPerSecond * KNOWN.memoryEfficiency);
  const fixed = KNOWN.secondsPerStep + KNOWN.secondsPerRequest * requests;
  return {flops, bytes, compute, memory, seconds: Math.max(compute, memory) + fixed,
          intensity: flops / bytes, ridge: machine.flopsPerSecond / machine.bytesPerSecond};
}

const number = (value, digits = 3) => value.toLocaleString("en", {maximumSignificantDigits: digits});
const binary = value => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = value > 0 ? Math.min(4, Math.max(0, Math.floor(Math.log2(value) / 10))) : 0;
  return `${number(value / 2 ** (10 * power), 4)} ${units[power]}`;
};
const time = s => s < 1e-3 ? `${number(s * 1e6)} µs` : s < 1 ? `${number(s * 1e3)} ms` : `${number(s)} s`;

function table(rows) {
  return `<table class="plain"><tbody>${rows.map(([name, value]) =>
    `<tr><th scope="row">${name}</th><td>${value}</td></tr>`).join("")}</tbody></table>`;
}

function showKv(f) {
  const model = KNOWN.models[f.model], machine = KNOWN.machines[f.machine];
  const r = kvMemory(model, machine, f.weightBits, f.kvBits, f.blockSize, f.context);
  const headline = r.room <= 0
    ? `<b>The weights alone do not fit</b>`
    : `<b>${number(r.requests, 6)} requests</b> of ${number(f.context, 9)} tokens at once`;
  return headline + table([
    ["one token", binary(r.perToken)], ["one request", binary(r.perRequest)],
    ["weights", binary(r.weights)], ["room for KV", binary(Math.max(0, r.room))],
    ["blocks", number(r.blocks, 9)]]);
}

function showRoof(f) {
  const model = KNOWN.models[f.model], machine = KNOWN.machines[f.machine];
  const tokens = f.phase === "prefill" ? f.context : 1;
  const r = step(model, machine, f.weightBits, f.kvBits, f.requests, tokens, f.context);
  const bound = r.compute > r.memory ? "arithmetic" : "memory";
  return `<b>${time(r.seconds)}</b> a step, bounded by ${bound} (modelled)` + roof(r, f.phase) + table([
    ["arithmetic", `${number(r.flops)} FLOP, ${time(r.compute)}`],
    ["memory traffic", `${binary(r.bytes)}, ${time(r.memory)}`],
    ["FLOP per byte", `${number(r.intensity)}; the roof bends at ${number(r.ridge)}`],
    [f.phase === "prefill" ? "prompt tokens a second" : "tokens a second",
     number(f.requests * tokens / r.seconds, 4)]]);
}

/* The roof: work per byte against work a second that the machine can do, both logarithmic. */
function roof(r, phase) {
  const x = value => 24 + 62 * Math.log10(Math.min(Math.max(value, 0.1), 1e4) / 0.1);
  const y = value => 112 - 30 * Math.log10(Math.min(1, value / r.ridge) / 1e-3);
  const place = r.intensity, bend = x(r.ridge);
  const colour = `var(--tt-${phase})`;
  return `<svg viewBox="0 0 340 136" width="340" role="img" aria-label="Roofline: ${number(place)} FLOP
    per byte, the roof bends at ${number(r.ridge)}" style="max-width:100%;height:auto;display:block">
    <path d="M${x(0.1)},${y(0.1)} L${bend},${y(r.ridge)} L334,${y(r.ridge)}" fill="none"
      style="stroke:var(--tt-muted);stroke-width:2"/>
    <path d="M24,14 V122 H334" fill="none" style="stroke:var(--tt-line)"/>
    <line x1="${x(place)}" x2="${x(place)}" y1="122" y2="${y(place)}" style="stroke:${colour}"
      stroke-dasharray="3 3"/>
    <circle cx="${x(place)}" cy="${y(place)}" r="6" style="fill:${colour}"/>
    <g style="fill:var(--tt-muted);font:11px var(--tt-sans)"><text x="24" y="10">FLOP a second</text>
    <text x="334" y="134" text-anchor="end">FLOP per byte</text></g></svg>`;
}

function connect(calculator) {
  const form = calculator.querySelector("form"), output = calculator.querySelector("output");
  for (const select of form.querySelectorAll("select[data-from]")) {
    for (const [key, one] of Object.entries(KNOWN[select.dataset.from]))
      select.add(new Option(one.name, key, false, key === select.dataset.first));
  }
  const show = () => {
    const fields = {};
    for (const field of form.elements)
      fields[field.name] = field.type === "number" ? field.valueAsNumber : isNaN(field.value) ? field.value
        : Number(field.value);
    const wrong = [...form.elements].find(field => !field.checkValidity());
    output.innerHTML = wrong ? `${wrong.labels[0].textContent.trim()}: ${wrong.validationMessage}`
      : calculator.dataset.kind === "kv" ? showKv(fields) : showRoof(fields);
  };
  form.addEventListener("input", show);
  form.addEventListener("submit", event => event.preventDefault());
  show();
}

window.calculators = {kvMemory, step};
document.querySelectorAll(".calc").forEach(connect);
