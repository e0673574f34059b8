// The page's logic: the row being edited, its prediction, the row pinned beside it, the ranking.
// All numbers come from the server; the address holds the state, so that a link restores it.
import { showPredictions } from "./answer.js";
import { byId, decimal, make, percent, ranked, shown, whole } from "./drawing.js";
import { formField, LIMIT, ofType } from "./fields.js";
import { ask, hasToken } from "./server.js";

const PAUSE = 120; // milliseconds without typing before the server is asked
const MANY = 12; // fields from which on there is a search box for fields

let model = null; // the model in GET /schema
let specs = []; // ... and of its columns
let fields = new Map(); // column -> field of the form
let state = { row: {}, pinned: null, over: "", target: "" };
let answer = null; // the last answer to POST /predict
let explains = true; // until the server says that this model cannot be explained
let unfolded = false;

const say = (text) => { byId("said").textContent = text; };

/** Runs `work` at once or after a pause; a later call cancels earlier ones. */
function latest(work) {
  let timer = 0, running = null;
  return (pause = 0) => {
    clearTimeout(timer);
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    const go = () => work(signal).catch((error) => { if (!signal.aborted) throw error; });
    if (pause) timer = setTimeout(go, pause);
    else go();
  };
}

// The state and the address ----------------------------------------------------------------------

const isPlain = (value) => value === null || ["string", "number", "boolean"].includes(typeof value);

/** A row from untrusted text: every column, each with a possible value. */
function rowOf(text) {
  let found = null;
  try {
    found = JSON.parse(text);
  } catch { /* not a row */ }
  if (found === null || typeof found !== "object" || Array.isArray(found)) return null;
  return Object.fromEntries(specs.map(({ column, usual, kind }) => {
    const value = Object.hasOwn(found, column) ? found[column] : usual;
    const fits = isPlain(value) || (kind === "list" && Array.isArray(value) && value.every(isPlain));
    return [column, fits ? value : usual];
  }));
}

const usualRow = () => rowOf("{}");

/** An entry of GET /schema, with the usual value as the form takes it. */
function specOf(entry) {
  const spec = { ...entry, column: entry.column ?? entry.name };
  const usual = ofType(entry, entry.usual ?? null);
  return { ...spec, usual: entry.kind === "list" && isPlain(usual) && usual !== null ? [usual] : usual };
}

function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1));
  const over = said.get("over") ?? "";
  state = {
    row: rowOf(said.get("row") ?? "") ?? usualRow(),
    pinned: rowOf(said.get("pinned") ?? ""),
    over: specs.some(({ name, kind }) => name === over && kind === "category") ? over : "",
    target: model.targets.includes(said.get("target")) ? said.get("target") : model.targets[0],
  };
}

function writeAddress() {
  const said = new URLSearchParams({ row: JSON.stringify(state.row) });
  if (state.pinned) said.set("pinned", JSON.stringify(state.pinned));
  if (state.over) said.set("over", state.over);
  if (model.targets.length > 1) said.set("target", state.target);
  try {
    history.replaceState(null, "", `#${said}`);
  } catch { /* some browsers allow this a hundred times in half a minute; a later call will do it */ }
}

// The form ---------------------------------------------------------------------------------------

async function find(name, query) {
  const found = await ask(`categories?${new URLSearchParams({ field: name, q: query, limit: LIMIT })}`);
  return found.categories;
}

function buildForm() {
  fields = new Map(specs.map((spec, k) => [spec.column, formField(spec, k, {
    find: (query) => find(spec.name, query),
    change(value, soon) { setValue(spec.column, value, soon); },
  })]));
  byId("fields").replaceChildren(...[...fields.values()].map((field) => field.box));
  byId("narrowing").hidden = specs.length <= MANY;
  const options = specs.filter(({ kind }) => kind === "category").map(({ name }) => make("option", { value: name }, name));
  byId("over").replaceChildren(make("option", { value: "" }, "choose a field"), ...options);
  byId("rank").hidden = !options.length;
}

function showForm() {
  for (const [column, field] of fields) field.show(state.row[column]);
  byId("over").value = state.over;
  byId("target").value = state.target;
  for (const id of ["swap", "unpin"]) byId(id).hidden = !state.pinned;
  byId("pin").textContent = state.pinned ? "Pin this row as B instead" : "Pin this row as B";
  showDifferences();
}

/** Columns in which the row and B differ. */
const differing = () => (state.pinned
  ? specs.map((spec) => spec.column).filter((c) => JSON.stringify(state.row[c]) !== JSON.stringify(state.pinned[c])) : []);

function showDifferences() {
  const columns = differing();
  for (const [column, field] of fields) field.beside(columns.includes(column) ? state.pinned[column] : undefined);
  const box = byId("differ");
  box.hidden = !state.pinned;
  const names = columns.slice(0, 8).flatMap((c, k) => [k ? ", " : "", make("bdi", {}, c)]);
  if (columns.length > 8) names.push(` and ${columns.length - 8} more`);
  box.replaceChildren(...(columns.length ? ["A and B differ in ", ...names, "."] : ["A and B are the same; change A and see."]));
}

function setValue(column, value, soon = false) {
  state.row[column] = value;
  fields.get(column).complain("");
  showDifferences();
  update(soon ? PAUSE : 0);
}

/** The column that a field of the model reads; a time has several fields. */
function columnOf(name) {
  return specs.find((spec) => spec.column === name || spec.name === name || spec.fields?.includes(name))?.column;
}

function jump(name) {
  const field = fields.get(columnOf(name));
  if (!field) return;
  narrow("");
  field.focus();
}

function narrow(text) {
  byId("narrow").value = text;
  const wanted = text.trim().toLowerCase();
  for (const [column, field] of fields) field.box.hidden = !column.toLowerCase().includes(wanted);
}

// The prediction ---------------------------------------------------------------------------------

function update(pause = 0) {
  byId("answer").setAttribute("aria-busy", "true");
  predict(pause);
  rank(pause || 1);
  writeAddress();
}

const predict = latest(async (signal) => {
  const rows = state.pinned ? [state.row, state.pinned] : [state.row];
  try {
    const found = await explained(rows, signal);
    if (found.model !== model.id) await reload();
    if (signal.aborted) return;
    answer = found;
    complain(null);
    showAnswer();
  } catch (error) {
    if (signal.aborted) return;
    complain(error);
  }
  byId("answer").setAttribute("aria-busy", "false");
  document.documentElement.dataset.drawn = "yes";
});

/** The prediction with contributions, or without them if the server says that there are none. */
async function explained(rows, signal) {
  let refusal = null;
  if (explains) {
    try {
      return await ask("predict?explain=true", { rows }, signal);
    } catch (error) {
      if (![400, 422].includes(error.status) || columnIn(error)) throw error;
      refusal = error;
    }
  }
  const plain = await ask("predict?explain=false", { rows }, signal);
  explains = false;
  if (refusal) byId("why-words").textContent = refusal.message;
  return plain;
}

/** The column that an error names, if any. */
function columnIn(error) {
  if (/^row 2\b/.test(error.message)) return undefined; // of B, which is not in the form
  const names = specs.map((spec) => spec.column).sort((a, b) => b.length - a.length);
  return names.find((name) => error.message.includes(`'${name}'`) || error.message.includes(`"${name}"`));
}

function complain(error) {
  for (const field of fields.values()) field.complain("");
  const column = error && columnIn(error);
  const box = byId("trouble");
  box.hidden = !error;
  box.firstElementChild.textContent = error && (column ? `See ${column}, below.` : error.message);
  byId("again").hidden = Boolean(column);
  if (column) fields.get(column).complain(error.message);
}

function showAnswer() {
  const changed = new Set(differing());
  showPredictions(answer.predictions.map((found) => (found.targets ? found.targets[state.target] : found)), {
    model, target: state.target, unfolded, jump, fold, differs: (field) => changed.has(columnOf(field)),
  });
}

function fold() {
  unfolded = !unfolded;
  showAnswer();
  document.querySelector(".fold")?.focus();
}

// The ranking ------------------------------------------------------------------------------------

let rankedOf = ""; // the request that the table on the page answers
let ranking = [];

const rank = latest(async (signal) => {
  const spec = specs.find(({ name }) => name === state.over);
  if (!spec) return clearRanking("");
  const context = Object.fromEntries(Object.entries(state.row).filter(([column]) => column !== spec.column));
  const body = { context, over: spec.name, k: LIMIT };
  const asked = JSON.stringify([model.id, body]);
  try {
    if (asked !== rankedOf) {
      ranking = (await ask("rank", body, signal)).ranking;
      rankedOf = asked;
    }
    showRanking(spec);
  } catch (error) {
    if (signal.aborted) return undefined;
    clearRanking(error.message);
  }
  return undefined;
});

function clearRanking(words) {
  rankedOf = "";
  byId("ranking").hidden = true;
  byId("rank-words").textContent = words;
}

/** The output to rank by, and how to show its numbers: the last class of the last target. */
function rankedBy() {
  if (model.targets.length > 1) return [model.targets.at(-1), decimal];
  if (!["classes", "share"].includes(model.task)) return [model.target, decimal];
  return [model.classes?.length > 2 ? `chance of ${model.classes.at(-1)}` : "chance", percent];
}

function showRanking(spec) {
  const now = shown(state.row[spec.column]);
  const choose = (category) => {
    const value = ofType(spec, category);
    fields.get(spec.column).show(value);
    setValue(spec.column, value);
  };
  const [what, text] = rankedBy();
  byId("ranked-by").textContent = what;
  const isNow = (category) => shown(category) === now;
  byId("ranking").tBodies[0].replaceChildren(...ranked(ranking, text, isNow, choose));
  byId("ranking").hidden = false;
  byId("rank-words").textContent = ranking.length >= LIMIT && spec.n_categories > LIMIT
    ? `The best ${ranking.length}; the field has ${whole(spec.n_categories)} categories.` : "";
}

// Copies -----------------------------------------------------------------------------------------

const quoted = (text) => `'${text.replaceAll("'", `'"'"'`)}'`;

const copies = {
  json: () => JSON.stringify({ rows: state.pinned ? [state.row, state.pinned] : [state.row] }, null, 2),
  link: () => location.href,
  curl() {
    const url = new URL("predict?explain=true", location.href.split("#")[0]).href;
    const pass = hasToken() ? ` -H "authorization: Bearer $FIELDWISE_TOKEN"` : "";
    return `curl ${quoted(url)}${pass} -H 'content-type: application/json' -d ${quoted(JSON.stringify(JSON.parse(copies.json())))}`;
  },
};

async function copy(kind) {
  const text = copies[kind]();
  const byHand = byId("by-hand");
  try {
    await navigator.clipboard.writeText(text);
    byHand.hidden = true;
    say("Copied.");
  } catch { // no clipboard outside https and localhost
    byHand.value = text;
    byHand.hidden = false;
    byHand.select();
    say("The browser lets no page copy here; the text is below, selected.");
  }
}

// Start ------------------------------------------------------------------------------------------

/** Loads the schema that is served now; rebuilds the form if its columns changed. */
async function load() {
  const found = await ask("schema");
  const before = JSON.stringify(specs.map(({ column, kind, dtype }) => [column, kind, dtype]));
  specs = found.fields.map(specOf);
  model = { ...found.model, targets: found.model.targets ?? [found.model.target] };
  explains = true;
  const title = model.targets.join(", ") || "A model";
  byId("targets").hidden = model.targets.length < 2;
  byId("target").replaceChildren(...model.targets.map((name) => make("option", { value: name }, name)));
  if (!model.targets.includes(state.target)) [state.target] = model.targets;
  byId("target").value = state.target;
  byId("title").textContent = title;
  byId("rest").hidden = false;
  document.title = `${title}: fieldwise`;
  const rows = model.rows ? `, learned from ${whole(model.rows)} rows` : "";
  byId("about").textContent = `${whole(specs.length)} columns${rows}; model ${model.id}`;
  const changed = before !== JSON.stringify(specs.map(({ column, kind, dtype }) => [column, kind, dtype]));
  if (changed) buildForm();
  else specs = specs.map((spec) => Object.assign(fields.get(spec.column).spec, spec));
  return changed;
}

/** After an answer by another model than the one the page was built for. */
async function reload() {
  const changed = await load();
  say("The server has a new version of the model.");
  if (!changed) {
    showDifferences(); // and hints; what is being typed stays
    rank();
    return;
  }
  state.row = rowOf(JSON.stringify(state.row));
  state.pinned = state.pinned && rowOf(JSON.stringify(state.pinned));
  showForm();
  update(1);
}

async function start() {
  try {
    await load();
  } catch (error) {
    complain(error);
    document.documentElement.dataset.drawn = "yes";
    return;
  }
  readAddress();
  showForm();
  update();
}

byId("form").addEventListener("submit", (event) => event.preventDefault());
byId("form").addEventListener("reset", (event) => {
  event.preventDefault();
  state.row = usualRow();
  showForm();
  update();
});
byId("narrow").addEventListener("input", () => narrow(byId("narrow").value));
byId("pin").addEventListener("click", () => {
  state.pinned = structuredClone(state.row);
  showForm();
  update();
});
byId("swap").addEventListener("click", () => {
  [state.row, state.pinned] = [state.pinned, state.row];
  showForm();
  update();
});
byId("unpin").addEventListener("click", () => {
  state.pinned = null;
  showForm();
  update();
});
byId("over").addEventListener("change", () => {
  state.over = byId("over").value;
  writeAddress();
  rank();
});
byId("target").addEventListener("change", () => {
  state.target = byId("target").value;
  writeAddress();
  showAnswer();
});
byId("again").addEventListener("click", () => (model ? update() : start()));
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", () => copy(button.dataset.copy));
}
window.addEventListener("hashchange", () => {
  if (!model) return;
  readAddress();
  showForm();
  update();
});
start();
