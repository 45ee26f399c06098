// Everything that the page shows goes through textContent and attributes, never through markup.
const state = {};
const byId = (id) => document.getElementById(id);

async function ask(name, values = {}) {
  let answer;
  try {
    answer = await fetch(location.pathname + name + "?" + new URLSearchParams(values));
  } catch {
    throw new Error("The server of this page has ended; start 'idensenet explore' again and open its new address.");
  }
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

const show = (value, digits = 4) => {
  if (value === null) return "not finite";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
};
const count = (value) => value.toLocaleString("en");

function section(title, words = "") {
  const fault = el("p", { class: "fault", role: "alert" });
  const body = el("div", {}, fault);
  byId("sections").append(
    el("section", {}, el("h2", {}, title), ...(words ? [el("p", { class: "note" }, words)] : []), body));
  return { body, fault };
}

// One question at a time: while it is being answered, only the newest of the others is kept.
function steady(part, run) {
  let busy = false, next = null;
  return async function go(...values) {
    if (busy) { next = values; return; }
    busy = true;
    part.waiting = (part.waiting || 0) + 1;
    part.body.classList.add("busy");
    try {
      await run(...values);
      part.fault.textContent = "";
    } catch (error) {
      part.fault.textContent = error.message;
    }
    busy = false;
    part.waiting -= 1;
    if (!part.waiting) part.body.classList.remove("busy");
    if (next !== null) { const waiting = next; next = null; go(...waiting); }
  };
}

function slider(words, { low, high, step, value, digits = 4 }, act) {
  const output = el("output", {}, show(value, digits));
  const input = el("input", { type: "range", min: low, max: high, step, value, "aria-label": words });
  input.addEventListener("input", () => { output.textContent = show(Number(input.value), digits); act(Number(input.value)); });
  const label = el("label", { class: "wide" }, words, input, output);
  label.put = (next) => { input.value = next; output.textContent = show(Number(next), digits); };
  return label;
}

function checkbox(words, on, act) {
  const input = el("input", { type: "checkbox", checked: on });
  input.addEventListener("change", () => act(input.checked));
  return el("label", {}, input, words);
}

function choice(words, names, chosen, act) {
  const options = names.map((name, i) => el("option", { value: i, selected: i === chosen }, name));
  const input = el("select", { "aria-label": words }, ...options);
  input.addEventListener("change", () => act(Number(input.value)));
  const label = el("label", {}, words, input);
  label.put = (next) => { input.value = next; };
  return label;
}

const button = (words, act) => el("button", { type: "button", onclick: act }, words);
const controls = (...parts) => el("div", { class: "controls" }, ...parts);
const note = (words) => el("p", { class: "note" }, words);
const keys = (both) => el("p", { class: "note" },
  ...(both ? [el("span", { class: "key data" }, el("span", {}, "held-out data"))] : []),
  el("span", { class: "key samples" }, el("span", {}, "samples of the model")));

function scrolled(table, words) {
  const hint = el("p", { class: "note" }, "Scroll sideways for more columns \u2192");
  const box = el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": words }, table);
  new ResizeObserver(() => { hint.hidden = box.scrollWidth <= box.clientWidth; }).observe(box);
  return el("div", {}, hint, box);
}
