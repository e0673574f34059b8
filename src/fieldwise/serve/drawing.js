// Elements, numbers as text, bars and the waterfall. Names are only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const MOST = 9; // steps of a waterfall, or classes, before the rest is folded

export const byId = (id) => document.getElementById(id);

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "click") element.addEventListener("click", value);
    else if (value !== false) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

export function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

// Numbers and values as text ---------------------------------------------------------------------

export const whole = (n) => Math.round(n).toLocaleString("en");

const signs = (text) => text.replace("-", "−");

export function decimal(x) {
  if (!Number.isFinite(x)) return "–";
  if (x && Math.abs(x) < 0.001) return signs(x.toExponential(1));
  return signs(Math.abs(x) < 100 ? x.toFixed(3) : x.toLocaleString("en", { maximumFractionDigits: 1 }));
}

export const signed = (x) => (x > 0 ? "+" : "") + decimal(x);

export function percent(x) {
  if (!Number.isFinite(x)) return "–";
  if (x > 0.999 && x < 1) return "> 99.9 %";
  if (x > 0 && x < 1e-6) return "< 0.0001 %";
  return `${Number((100 * x).toPrecision(3))} %`;
}

/** How far one number is from another, in words. */
export function apart(gap, isChance) {
  const size = Math.abs(isChance ? 100 * gap : gap);
  if (size < 1e-9) return "the same";
  return `${Number(size.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 })}${isChance ? " points" : ""} ${gap > 0 ? "higher" : "lower"}`;
}

/** A raw value as text to show. */
export function shown(value) {
  if (value == null) return "missing";
  if (Array.isArray(value)) return value.length ? value.map(shown).join(", ") : "missing";
  return value === "" ? "(empty text)" : String(value);
}

/** A value within other text; it keeps its own writing direction. */
export const word = (value) => make("bdi", value == null || value === "" ? { class: "none" } : {}, shown(value));

// Bars -------------------------------------------------------------------------------------------

/** A bar from one position to another, in per cent of the width. */
function bar(from, to, kind) {
  const left = Math.min(from, to);
  const width = Math.max(Math.abs(to - from), 0.4);
  return shape("svg", { class: "bar", "aria-hidden": "true" },
    shape("rect", { class: kind, x: `${left}%`, y: "20%", width: `${width}%`, height: "60%" }));
}

/** A step of a waterfall: its bar, tied to the steps above and below it. */
function stepBar(step, scale, last) {
  const [from, to] = [scale(step.start), scale(step.end)];
  const kind = step.amount > 0 ? "up" : "down";
  const picture = step.whole ? shape("svg", { class: "bar", "aria-hidden": "true" }) : bar(from, to, kind);
  const tie = (x, y1, y2) => picture.append(shape("line", { x1: `${x}%`, x2: `${x}%`, y1, y2 }));
  if (!step.first) tie(from, "0", "20%");
  if (!last) tie(to, "80%", "100%");
  if (step.whole) {
    tie(to, step.first ? "50%" : "20%", step.first ? "80%" : "50%");
    picture.append(shape("circle", { cx: `${to}%`, cy: "50%", r: 4 }));
  }
  return picture;
}

/** A function from positions to per cent of the width, with a little room at both sides. */
function scaleOf(positions) {
  const low = Math.min(...positions), high = Math.max(...positions);
  const room = (high - low) * 0.03 || 1;
  return (x) => (100 * (x - low + room)) / (high - low + 2 * room);
}

// The waterfall ----------------------------------------------------------------------------------

/** Steps by falling size, each from the end of the one before; small ones merged unless unfolded. */
function laidOut(start, parts, unfolded) {
  const order = [...parts].sort((a, b) => Math.abs(b.amount) - Math.abs(a.amount));
  const few = unfolded || order.length <= MOST + 1;
  const steps = few ? order : order.slice(0, MOST);
  if (!few) {
    const rest = order.slice(MOST);
    const sum = (key) => rest.reduce((total, part) => total + part[key], 0);
    steps.push({ rest: rest.length, amount: sum("amount"), a: sum("a"), b: sum("b"),
      differs: rest.some((part) => part.differs) });
  }
  let at = start;
  return steps.map((step) => {
    const placed = { ...step, start: at, end: at + step.amount };
    at = placed.end;
    return placed;
  });
}

function stepLabel(step, hooks) {
  if (step.rest) {
    const words = `${step.rest} others`;
    return make("button", { type: "button", class: "jump fold", "aria-expanded": "false", click: hooks.fold }, words);
  }
  const values = step.differs ? [word(step.other), " → ", word(step.value)] : [word(step.value)];
  const title = `${step.field} = ${step.differs ? `${shown(step.other)} → ` : ""}${shown(step.value)}`;
  return make("button", { type: "button", class: "jump", title, click: () => hooks.jump(step.field) },
    make("bdi", { class: "of" }, step.field), " ", make("span", {}, ...values));
}

const cell = (text) => make("span", { class: "n" }, text);

/** The items of the list: a head, the start, a step for each field, the end.
 *
 * picture: {head: [texts], start, end: {label, at, cells}, parts: [{field, value, amount, ...}], pair}
 */
export function waterfall(picture, unfolded, hooks) {
  const { start, end, parts, pair } = picture;
  const steps = laidOut(start.at, parts, unfolded);
  const scale = scaleOf([start.at, end.at, ...steps.map((step) => step.end)]);
  const ends = (one, extra) => make("li", { class: "whole" }, make("span", {}, one.label),
    stepBar({ whole: true, start: one.at, end: one.at, ...extra }, scale, !extra.first), ...one.cells.map(cell));
  const head = make("li", { class: "top", "aria-hidden": "true" }, make("span"), make("span"), ...picture.head.map(cell));
  const items = steps.map((step) => {
    const cells = pair ? [signed(step.amount), signed(step.a), signed(step.b)] : [signed(step.amount)];
    return make("li", { class: pair ? (step.differs ? "differs" : "same") : false },
      stepLabel(step, hooks), stepBar(step, scale, false), ...cells.map(cell));
  });
  if (unfolded && parts.length > MOST + 1) {
    items.push(make("li", {}, make("button", { type: "button", class: "jump fold", "aria-expanded": "true", click: hooks.fold },
      "fewer")));
  }
  return [head, ends(start, { first: true }), ...items, ends(end, {})];
}

// Other pictures ---------------------------------------------------------------------------------

/** Probabilities of classes, the likeliest first. */
export function chances(probabilities, unfolded, fold) {
  const order = Object.entries(probabilities).sort((a, b) => b[1] - a[1]);
  const few = unfolded || order.length <= MOST + 1;
  const list = make("ol", { class: "steps" }, ...order.slice(0, few ? order.length : MOST).map(([name, chance]) =>
    make("li", {}, make("bdi", { title: name }, name), bar(0, 100 * chance, "even"), cell(percent(chance)))));
  if (!few) {
    list.append(make("li", {}, make("button", { type: "button", class: "jump fold", "aria-expanded": "false", click: fold },
      `${order.length - MOST} others`)));
  }
  return list;
}

/** Rows of the ranking: number, category, bar, prediction. */
export function ranked(ranking, text, isNow, choose) {
  const numbers = ranking.map((item) => item.prediction);
  const low = Math.min(0, ...numbers), high = Math.max(...numbers);
  return ranking.map(({ category, prediction }, k) => make("tr", isNow(category) ? { class: "now" } : {},
    make("td", { class: "n" }, String(k + 1)),
    make("td", {}, make("button", { type: "button", class: "jump", title: shown(category),
      "aria-pressed": String(isNow(category)), click: () => choose(category) }, word(category))),
    make("td", {}, bar(0, (100 * (prediction - low)) / (high - low || 1), "even")),
    make("td", { class: "n" }, text(prediction))));
}

/** The bar under the number: the probability of this row, of a typical row, and of B. */
export function gauge(box, chance, typical, other) {
  const [fill, tick, ring] = box.children;
  fill.style.width = `${100 * chance}%`;
  for (const [mark, at] of [[tick, typical], [ring, other]]) {
    mark.hidden = at == null;
    if (at != null) mark.style.left = `${100 * at}%`;
  }
}
