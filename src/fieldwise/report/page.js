"use strict";
// The page's logic: tabs, charts, the search over all categories, cards, rows.
// Names are only ever set as text. All numbers come from the page's data; here they are laid out.
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("page-data").textContent);
  const MOST = 50; // hits shown
  document.documentElement.classList.add("js");

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [key, value] of Object.entries(attributes)) {
      if (key === "click") element.addEventListener("click", value);
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  const whole = (n) => (n == null ? "–" : Math.round(n).toLocaleString("en"));
  const signs = (text) => text.replace("-", "−");
  const decimal = (x) => {
    if (x == null || Number.isNaN(x)) return "–";
    return signs(x && Math.abs(x) < 0.001 ? x.toExponential(1) : x.toFixed(Math.abs(x) < 100 ? 3 : 1));
  };
  const signed = (x) => (x > 0 ? "+" : "") + decimal(x);
  const percent = (x) => (x > 0.999 && x < 1 ? "> 99.9 %" : `${Number((100 * x).toPrecision(3))} %`);

  // Tabs -----------------------------------------------------------------------------------------

  const tabs = [...document.querySelectorAll("[role=tab]")];

  function openTab(tab, focus = false) {
    for (const other of tabs) {
      const on = other === tab;
      other.setAttribute("aria-selected", on);
      other.tabIndex = on ? 0 : -1;
      byId(other.getAttribute("aria-controls")).classList.toggle("off", !on);
    }
    if (focus) tab.focus();
    tab.scrollIntoView({ block: "nearest", inline: "nearest" });
    const name = tab.getAttribute("aria-controls");
    // Inside a notebook's frame the page has no address to change.
    if (location.protocol !== "about:") history.replaceState(null, "", `#${name}`);
    if (name === "categories") categories().then(search);
  }

  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => openTab(tab));
    tab.addEventListener("keydown", (event) => {
      const to = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      openTab(tabs[(to + tabs.length) % tabs.length], true);
    });
  });

  // Charts ---------------------------------------------------------------------------------------

  const drawn = new Map();

  async function draw(box, rows) {
    const spec = { ...data.charts[box.dataset.chart] };
    if (rows) Object.assign(spec, { datasets: { rows }, height: spec.height * rows.length });
    drawn.get(box)?.finalize();
    const result = await vegaEmbed(box, spec, {
      mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false,
      config: data.config, tooltip: { disableDefaultStyle: true },
    });
    drawn.set(box, result);
  }

  async function drawAll() {
    for (const box of document.querySelectorAll(".chart")) {
      if (box.dataset.chart !== "waterfall") await draw(box);
    }
    if (data.rows.length) await showRow();
    document.documentElement.dataset.drawn = "yes";
  }

  // The index of categories ----------------------------------------------------------------------

  async function unpack(id) {
    const text = atob(byId(id).textContent);
    const bytes = Uint8Array.from({ length: text.length }, (_, k) => text.charCodeAt(k));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  const unpackJSON = async (id) => JSON.parse(new TextDecoder().decode(await unpack(id)));

  let index = null;
  let loading = null;
  const categories = () => (loading ??= load());

  async function load() {
    byId("found").textContent = `Reading ${whole(data.n)} categories …`;
    const [names, bytes, cards] = await Promise.all([
      unpackJSON("names"), unpack("columns"), unpackJSON("cards"),
    ]);
    const n = names.length;
    const column = (k) => {
      const out = new Uint32Array(n);
      for (let plane = 0; plane < 4; plane++) {
        const from = (4 * k + plane) * n;
        for (let i = 0; i < n; i++) out[i] |= bytes[from + i] << (8 * plane);
      }
      return out;
    };
    const scaled = (k) => {
      const [low, step] = data.scales[k];
      return Float64Array.from(column(k + 2), (q) => (q === 65535 ? NaN : low + step * q));
    };
    const count = Float64Array.from(column(1));
    for (let i = n - 2; i >= 0; i--) count[i] += count[i + 1];
    index = {
      names, count, field: column(0), bias: scaled(0), main: scaled(1), distance: scaled(2),
      lower: names.map((name) => name.toLowerCase()),
      cards: new Map(cards.map((card) => [`${card.count}\n${card.field}\n${card.category}`, card])),
    };
    const within = byId("within");
    data.fields.forEach((name, k) => within.append(make("option", { value: k }, name)));
  }

  /** Hits in order: equal names, names that begin with the query, names that contain it; each by falling count. */
  function find(query, field) {
    const equal = [], begin = [], hold = [];
    let total = 0;
    for (let i = 0; i < index.lower.length; i++) {
      if (field >= 0 && index.field[i] !== field) continue;
      const at = index.lower[i].indexOf(query);
      if (at < 0) continue;
      total++;
      if (at > 0) { if (hold.length < MOST) hold.push(i); }
      else if (index.lower[i].length === query.length) equal.push(i);
      else if (begin.length < MOST) begin.push(i);
    }
    return { total, hits: [...equal, ...begin, ...hold].slice(0, MOST) };
  }

  let hits = [];
  let active = -1;

  function search() {
    const within = byId("within").value;
    const query = byId("query").value.trim().toLowerCase();
    const started = performance.now();
    const found = find(query, within === "" ? -1 : Number(within));
    hits = found.hits;
    byId("hits").replaceChildren(...hits.map((i, k) => make(
      "li", { role: "option", id: `hit-${k}`, "aria-selected": "false", click: () => open(i) },
      make("span", { class: "name" }, index.names[i], make("small", {}, data.fields[index.field[i]])),
      make("span", {}, whole(index.count[i])),
      make("span", {}, decimal(index.bias[i])),
      make("span", {}, decimal(index.distance[i])),
    )));
    activate(-1);
    const shown = found.total > hits.length ? `, the first ${hits.length} shown` : "";
    byId("found").textContent = found.total === 1 ? "1 category" : `${whole(found.total)} categories${shown}`;
    document.documentElement.dataset.searchMs = (performance.now() - started).toFixed(1);
    document.documentElement.dataset.searched = query;
  }

  function activate(k) {
    const list = byId("hits").children;
    if (active >= 0 && list[active]) {
      list[active].classList.remove("at");
      list[active].setAttribute("aria-selected", "false");
    }
    active = k;
    const query = byId("query");
    if (k < 0) { query.removeAttribute("aria-activedescendant"); return; }
    list[k].classList.add("at");
    list[k].setAttribute("aria-selected", "true");
    list[k].scrollIntoView({ block: "nearest" });
    query.setAttribute("aria-activedescendant", `hit-${k}`);
  }

  let waiting = 0;
  byId("query").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => categories().then(search), 120);
  });
  byId("within").addEventListener("change", () => categories().then(search));
  byId("query").addEventListener("keydown", (event) => {
    const last = hits.length - 1;
    if (event.key === "ArrowDown" && last >= 0) activate(Math.min(active + 1, last));
    else if (event.key === "ArrowUp" && last >= 0) activate(Math.max(active - 1, 0));
    else if (event.key === "Enter" && last >= 0) open(hits[Math.max(active, 0)], true);
    else return;
    event.preventDefault();
  });

  // Cards ----------------------------------------------------------------------------------------

  const quoted = (word) =>
    /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;

  function command(field, category) {
    const dashes = [data.model, field, category].some((word) => word.startsWith("-")) ? ["--"] : [];
    return [data.command, ...dashes, ...[data.model, field, category].map(quoted)].join(" ");
  }

  const facts = (pairs) => make("dl", { class: "facts" }, ...pairs.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value))));

  /** A button that opens another category's card. */
  function link(field, name) {
    return make("button", { type: "button", class: "link", title: name, click: () => {
      const k = data.fields.indexOf(field);
      const i = index.names.findIndex((other, at) => other === name && index.field[at] === k);
      if (i >= 0) open(i, true);
    } }, name);
  }

  const everyPartner = (partner) => [...partner.for, ...partner.against];
  const strongest = (partner) => Math.max(0, ...everyPartner(partner).map((item) => Math.abs(item[1])));

  function partnerList(partner, most) {
    const items = everyPartner(partner).sort((a, b) => b[1] - a[1]);
    const head = make("li", { class: "head" }, make("h4", {}, partner.field), make("span"),
      make("span", {}, "weight"), make("span", {}, "effect"), make("span", { class: "rows" }, "rows"));
    return make("section", { class: "partner" }, make("ol", {}, head,
      ...items.map(([name, weight, effect, count]) => {
        const bar = make("i", { class: weight > 0 ? "up" : "down" });
        bar.style.width = `${(50 * Math.abs(weight)) / most}%`;
        return make("li", {}, link(partner.field, name),
          make("span", { class: "bar", "aria-hidden": "true" }, bar),
          make("span", {}, signed(weight)), make("span", {}, signed(effect)),
          make("span", { class: "rows" }, whole(count)));
      })));
  }

  /** Partners by field, the strongest first; fields after the fifth are folded. */
  function partnerParts(card) {
    const partners = [...card.partners].sort((a, b) => strongest(b) - strongest(a));
    if (!partners.length) return [];
    const most = Math.max(1e-12, strongest(partners[0]));
    const lists = partners.map((partner) => partnerList(partner, most));
    const words = `Weights of its own model, ${data.unit}: how much more or less it says where the other `
      + "category is. The effect is what the two say together beyond what each says alone, by both models.";
    const parts = [make("p", {}, words), ...lists.slice(0, 5)];
    if (lists.length > 5) {
      const more = make("summary", {}, `${lists.length - 5} more fields`);
      parts.push(make("details", {}, more, ...lists.slice(5)));
    }
    return parts;
  }

  function cardParts(card) {
    const effect = signed(card.main) + (card.error == null ? "" : ` ± ${decimal(card.error)}`);
    const list = [
      ["rows", whole(card.count)], ["of all rows", percent(card.share)],
      [`effect by itself, ${data.unit}`, effect],
    ];
    if (card.confidence != null) list.push([card.main > 0 ? "sure to raise" : "sure to lower", percent(card.confidence)]);
    list.push(["bias", signed(card.bias)],
      ["distance (typical)", `${decimal(card.distance)} (${decimal(card.typical)})`],
      ["oddest of its field", card.size ? `no. ${whole(card.oddity)} of ${whole(card.size)}` : `no. ${whole(card.oddity)}`]);
    const parts = [facts(list)];
    if (card.note) parts.push(make("p", { class: "note" }, card.note));
    parts.push(...partnerParts(card));
    if (card.nearest.length) {
      parts.push(make("h4", {}, "most alike"), make("ul", { class: "near" }, ...card.nearest.map(([name, distance]) =>
        make("li", {}, link(card.field, name), make("span", {}, decimal(distance))))));
    }
    return parts;
  }

  function open(i, focus = false) {
    const field = data.fields[index.field[i]], name = index.names[i];
    const card = index.cards.get(`${index.count[i]}\n${field}\n${name}`);
    const parts = card ? cardParts(card) : [
      facts([["rows", whole(index.count[i])], [`effect by itself, ${data.unit}`, signed(index.main[i])],
        ["bias", signed(index.bias[i])], ["distance", decimal(index.distance[i])]]),
      make("p", {}, "The rest of its card is not on this page. This shows it:"),
      make("pre", {}, make("code", {}, command(field, name))),
    ];
    const box = byId("card");
    box.replaceChildren(make("p", { class: "of" }, field), make("h3", {}, name), ...parts);
    if (focus) box.focus({ preventScroll: true });
    if (focus || matchMedia("(max-width: 46rem)").matches) box.scrollIntoView({ block: "nearest" });
  }

  // Rows -----------------------------------------------------------------------------------------

  const words = (text) => make("td", /\S{25}/.test(text) ? { class: "long" } : {}, text);

  async function showRow() {
    const row = data.rows[Number(byId("row").value)];
    const body = row.fields.map(([field, value, effect]) => make("tr", {},
      words(field), words(value), make("td", { class: "n" }, signed(effect))));
    byId("row-values").replaceChildren(make("table", {},
      make("thead", {}, make("tr", {}, make("th", {}, "field"), make("th", {}, "value"),
        make("th", { class: "n" }, `effect, ${data.unit}`))),
      make("tbody", {}, ...body)));
    await draw(document.querySelector("[data-chart=waterfall]"), row.steps);
  }

  if (data.rows.length) {
    const step = (by) => {
      const n = data.rows.length;
      byId("row").value = (Number(byId("row").value) + by + n) % n;
      showRow();
    };
    byId("row").addEventListener("change", showRow);
    byId("previous").addEventListener("click", () => step(-1));
    byId("next").addEventListener("click", () => step(1));
  }

  const wanted = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash);
  if (wanted) openTab(wanted);
  drawAll();
})();
