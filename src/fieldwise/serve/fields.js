// A field of the form: a label, an input of the right kind, an error message.
// A value is kept unchanged; an input is read back only after somebody typed in it.
import { make, shown, whole, word } from "./drawing.js";

export const LIMIT = 20; // categories per request
const PAUSE = 120; // milliseconds without typing

/** Text as the column's own type if that loses nothing; else unchanged, for the server to read. */
export function parsed(spec, text) {
  if (text === "") return null;
  if (spec.dtype === "boolean" && /^(true|false)$/.test(text)) return text === "true";
  const isWhole = spec.dtype === "integer" && String(Number(text)) === text && Number.isSafeInteger(Number(text));
  return isWhole ? Number(text) : text;
}

/** A category, which comes as text, in the column's own type; "" is a category too. */
export const ofType = (spec, value) => (typeof value === "string" && value !== "" ? parsed(spec, value) : value);

const same = (a, b) => a !== null && b !== null && String(a) === String(b);

/** A field of the form.
 *
 * spec is an entry of GET /schema; hooks: change(value, soon), find(query) -> [{value, count}].
 * Returns {box, show(value), complain(text), beside(value), focus()}.
 */
export function formField(spec, number, hooks) {
  const id = `field-${number}`;
  const input = make("input", { id, spellcheck: "false", autocapitalize: "off", dir: "auto", "aria-describedby": `${id}-hint ${id}-wrong` });
  const clear = make("button", { type: "button", class: "clear", tabindex: "-1", "aria-label": `${spec.column}: set to missing`,
    title: "set to missing" }, "×");
  const entry = make("div", { class: "entry" }, input, clear);
  const hint = make("span", { class: "hint", id: `${id}-hint` });
  const wrong = make("p", { class: "wrong", id: `${id}-wrong`, role: "alert" });
  const box = make("div", { class: `field${spec.kind === "list" ? " wide" : ""}` },
    make("label", { for: id }, make("span", { title: spec.column, dir: "auto" }, spec.column)), entry, hint, wrong);
  const field = { spec, box, input, entry };
  let note = "", other; // undefined: the same in B, or there is no B

  function tell() {
    const parts = [note || rangeOf(spec), ...(other === undefined ? [] : [word(other)])];
    if (other !== undefined) parts.splice(1, 0, parts[0] ? "; B has " : "B has ");
    hint.replaceChildren(...parts);
    box.classList.toggle("differs", other !== undefined);
  }
  field.hint = (text) => { note = text; tell(); };
  field.complain = (text) => {
    wrong.textContent = text || "";
    input.setAttribute("aria-invalid", String(Boolean(text)));
  };
  field.beside = (value) => { other = value; tell(); };
  field.focus = () => { box.scrollIntoView({ block: "nearest" }); input.focus(); };
  ({ number: numberField, time: timeField, list: listField }[spec.kind] ?? categoryField)(field, hooks);
  clear.addEventListener("click", () => { field.show(null); field.hint(""); hooks.change(null); input.focus(); });
  field.hint("");
  field.complain("");
  return field;
}

function rangeOf(spec) {
  if (spec.kind !== "number" || spec.least == null || spec.most == null) return "";
  const text = (x) => x.toLocaleString("en", { maximumFractionDigits: 3 }).replace("-", "−");
  return `${text(spec.least)} to ${text(spec.most)}`;
}

function showText(field, value) {
  field.input.value = value == null ? "" : Array.isArray(value) ? value.join(", ") : String(value);
  field.input.title = value == null ? "" : shown(value);
  field.input.placeholder = value === "" ? "(empty text)" : "missing";
  field.box.classList.toggle("missing", value == null);
}

// Numbers and times ------------------------------------------------------------------------------

function numberField(field, { change }) {
  const { input } = field;
  Object.assign(input, { type: "number", step: "any", inputMode: "decimal" });
  field.show = (value) => { showText(field, value); field.complain(""); };
  input.addEventListener("input", () => {
    if (input.validity.badInput) return field.complain("This is not a number.");
    field.complain("");
    const value = input.value === "" ? null : Number(input.value);
    field.box.classList.toggle("missing", value === null);
    return change(value, true);
  });
}

function timeField(field, { change }) {
  field.show = (value) => showText(field, value);
  field.input.addEventListener("change", () => {
    const value = field.input.value.trim() || null;
    field.show(value);
    change(value);
  });
}

// Categories: the combobox pattern of ARIA -------------------------------------------------------

/** The list under an input. hooks: find(query), choose(value), leave(text) if text was typed and no
 * option chosen, restore() on Escape. */
function combobox(field, hooks) {
  const { input, entry, spec } = field;
  const list = make("ul", { role: "listbox", id: `${input.id}-list`, "aria-label": `categories of ${spec.column}` });
  const words = make("p", { role: "status" });
  const popup = make("div", { class: "popup", hidden: "" }, list, words);
  entry.append(popup);
  for (const [key, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false",
    "aria-controls": list.id, autocomplete: "off" })) input.setAttribute(key, value);
  let options = [], active = -1, turn = 0, timer = 0, typed = false;

  function activate(k) {
    list.children[active]?.setAttribute("aria-selected", "false");
    active = k;
    if (k < 0) return input.removeAttribute("aria-activedescendant");
    list.children[k].setAttribute("aria-selected", "true");
    list.children[k].scrollIntoView({ block: "nearest" });
    return input.setAttribute("aria-activedescendant", list.children[k].id);
  }

  function close() {
    turn++;
    clearTimeout(timer);
    popup.hidden = true;
    input.setAttribute("aria-expanded", "false");
    activate(-1);
  }

  function choose(value) {
    typed = false;
    close();
    hooks.choose(value);
  }

  function render(query, found, text) {
    activate(-1);
    popup.dataset.query = query;
    options = found;
    list.replaceChildren(...found.map(({ value, count }, k) => {
      const item = make("li", { role: "option", id: `${list.id}-${k}`, "aria-selected": "false" },
        word(value), ...(count == null ? [] : [make("small", {}, whole(count))]));
      item.addEventListener("pointerdown", (event) => event.preventDefault()); // the input keeps the focus
      item.addEventListener("click", () => choose(value));
      return item;
    }));
    list.scrollTop = 0;
    words.textContent = text;
    words.hidden = !text;
    popup.hidden = false;
    const room = document.documentElement.clientWidth - entry.getBoundingClientRect().left;
    popup.classList.toggle("end", popup.offsetWidth > room - 8);
    input.setAttribute("aria-expanded", "true");
  }

  async function open(query) {
    const mine = ++turn;
    clearTimeout(timer);
    const missing = "missing".startsWith(query.toLowerCase()) ? [{ value: null }] : [];
    const top = (spec.top ?? []).slice(0, LIMIT).filter(({ value }) => value !== null);
    if (query === "" && top.length) {
      const more = spec.n_categories > LIMIT ? `The most frequent of ${whole(spec.n_categories)}; type to find others.` : "";
      return render(query, [...missing, ...top], more);
    }
    try {
      const found = (await hooks.find(query)).filter(({ value }) => value !== null);
      if (mine !== turn) return undefined;
      const text = found.length >= LIMIT ? `The first ${LIMIT}; type more to narrow them.`
        : found.length ? "" : "No category holds this text. Enter keeps it all the same.";
      return render(query, [...missing, ...found], text);
    } catch (error) {
      return mine === turn ? render(query, [], error.message) : undefined;
    }
  }

  function leave() {
    if (typed) hooks.leave(input.value);
    typed = false;
  }

  /** Move by one option; if the list does not match the text yet, open it. */
  function move(by) {
    const query = typed ? input.value : "";
    if (popup.hidden || popup.dataset.query !== query) return open(query);
    return activate(Math.max(0, Math.min(active + by, options.length - 1)));
  }

  const keys = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => {
      if (!popup.hidden && active >= 0) return choose(options[active].value);
      close();
      return leave();
    },
    Escape: () => {
      close();
      typed = false;
      hooks.restore();
    },
  };
  input.addEventListener("keydown", (event) => {
    if (event.isComposing || !keys[event.key]) return;
    if (event.key === "Escape" && popup.hidden && !typed) return;
    event.preventDefault();
    keys[event.key]();
  });
  input.addEventListener("input", () => {
    typed = true;
    activate(-1);
    clearTimeout(timer);
    timer = setTimeout(() => open(input.value), PAUSE);
  });
  input.addEventListener("click", () => {
    if (!popup.hidden) return;
    if (!typed) input.select(); // typing replaces it
    open(typed ? input.value : "");
  });
  input.addEventListener("blur", () => { close(); leave(); });
}

/** After typed text was accepted: replace it by the category it spells in other case; if it is
 * surely none of the model's categories, the field says so. */
async function settle(field, value, find, replace) {
  const found = await find(String(value)).catch(() => null);
  if (!found || !field.holds(value) || found.some((item) => same(item.value, value))) return;
  const lower = String(value).toLowerCase();
  const spelt = found.find((item) => item.value !== null && String(item.value).toLowerCase() === lower);
  if (spelt) replace(spelt.value);
  else if (found.length < LIMIT) field.hint("never seen in training");
}

function categoryField(field, { change, find }) {
  let now = null;
  field.show = (value) => { now = value; showText(field, value); };
  field.holds = (value) => now === value;
  const set = (value, soon) => { field.show(value); field.hint(""); change(value, soon); };
  combobox(field, {
    find,
    choose: (value) => set(ofType(field.spec, value)),
    restore: () => field.show(now),
    leave(text) {
      const value = parsed(field.spec, text);
      set(value, true);
      if (value !== null) settle(field, value, find, set);
    },
  });
}

// Lists: a chip for each value, the input adds one -----------------------------------------------

function listField(field, { change, find }) {
  const { input, entry, spec } = field;
  let items = [];

  function draw() {
    for (const chip of entry.querySelectorAll(".chip")) chip.remove();
    input.before(...items.map((item, k) => make("span", { class: "chip" }, word(item), make("button",
      { type: "button", "aria-label": `remove ${shown(item)}`, click: () => set(items.filter((_, i) => i !== k)) }, "×"))));
    input.value = "";
    input.placeholder = items.length ? "add another" : "missing";
    field.box.classList.toggle("missing", !items.length);
  }
  function set(wanted, soon) {
    items = wanted;
    draw();
    field.hint("");
    change(items.length ? items : null, soon);
  }
  field.show = (value) => {
    items = value == null ? [] : [].concat(value);
    draw();
  };
  field.holds = (value) => items.includes(value);
  combobox(field, {
    find,
    choose: (value) => set(value === null ? [] : [...items, ofType(spec, value)]),
    restore: () => { input.value = ""; },
    leave(text) {
      const value = parsed(spec, text.trim());
      if (value === null) return draw();
      set([...items, value], true);
      return settle(field, value, find, (spelt) => set(items.map((item) => (item === value ? spelt : item))));
    },
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Backspace" && input.value === "" && items.length) set(items.slice(0, -1));
  });
}
