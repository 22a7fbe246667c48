// The page: news from the server go to the list, and what is chosen there to cards, figures and tables.

import {make, swatch} from "./dom.js";
import {Figure, bars, errorKey, errorLines, lossLines, sample, sentLines, style} from "./figures.js";
import {List} from "./list.js";

const about = JSON.parse(document.body.dataset.about);
const $ = name => document.getElementById(name);
const MOST = 36, PACE = 1000;
const ERRORS = {axis: "round", log: true, choose: false};
/** Where the HTML of an answer goes, by its part. */
const PLACES = {
  cards: "cards", parties: "parties", table: "table", times: "timed", seen: "seen", results: "compared",
  settings: "settings",
};
/** Sections that are there only if they have something to show. */
const SECTIONS = {parties: "attendance", times: "timing", seen: "watched", results: "compare"};
const list = new List(choose);
let chosen = new URLSearchParams(location.search).getAll("run");
let shown = [], partsOf = {}, kept = new Map(), marks = "";
let wanted = {metric: null, part: null};
const roles = new Map();

/** An answer of the server; null if it has none, or is away, which the stream of news says. */
async function ask(path, query) {
  try {
    const answer = await fetch(`${path}?${query}`);
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

/** The curves of a run, asked for once as long as its lines do not change. */
function curvesOf(run, axis, span) {
  const mark = list.rows.get(run.name)?.mark, key = JSON.stringify([run.name, axis, span, mark]);
  if (!kept.has(key)) {
    const query = new URLSearchParams({run: run.name, axis, ...(span ? {from: span[0], to: span[1]} : {})});
    if (kept.size > 200) kept.clear();
    kept.set(key, ask("/api/curves", query));
  }
  return kept.get(key);
}

const metricLines = (curves, run) => {
  const line = curves.metrics[wanted.part]?.[wanted.metric];
  return line ? [{...run, ...line}] : [];
};
const nameOf = metric => about.metrics[metric] ?? (metric ?? "metric").replaceAll("_", " ");
const partName = {test: "Test", validation: "Validation", train: "Training"};
const none = "not evaluated yet";
const learning = [
  new Figure($("plots"), {axis: "epoch", none}, curvesOf, metricLines),
  new Figure($("plots"), {axis: "bytes", none}, curvesOf, metricLines),
  new Figure($("plots"), {axis: "epoch"}, curvesOf, lossLines),
  new Figure($("plots"), {axis: "epoch"}, curvesOf, sentLines),
];
learning[0].name = learning[1].name = () => `${partName[wanted.part]} ${nameOf(wanted.metric)}`;
learning[2].name = () => "Loss on the batch";
learning[3].name = () => "MB sent in all";

/** Another choice of runs: into the address, the list and the figures. */
function choose(names) {
  chosen = names.slice(0, MOST);
  const query = new URLSearchParams(chosen.map(name => ["run", name]));
  history.replaceState(null, "", chosen.length ? `?${query}` : location.pathname);
  list.show(chosen, n => style(n, about.colours).colour);
  marks = "";
  show();
}

/** Put HTML that the server has escaped in place, unless it is there already; what was open stays open. */
function put(place, text) {
  if (place.given === text) return;
  const open = new Set([...place.querySelectorAll("details[open] > summary")].map(one => one.textContent));
  const known = place.querySelector("details") !== null;
  place.given = text;
  place.innerHTML = text;
  if (known) for (const one of place.querySelectorAll("details")) one.open = open.has(one.firstChild.textContent);
}

function heading(view) {
  const one = view.runs.length === 1 ? view.runs[0] : null, row = one && list.rows.get(one.name);
  $("title").textContent = one ? one.name : `${view.runs.length} runs compared`;
  $("says").textContent = one ? one.says : "";
  $("says").className = one ? `state ${one.state}` : "";
  $("progress").hidden = !row || row.share === null;
  if (row && row.share !== null) $("progress").value = row.share;
  document.title = `${one ? `${one.says} · ${one.label}` : `${view.runs.length} runs`} · cvfl board`;
  const without = run => () => choose(chosen.filter(name => name !== run.name));
  $("legend").replaceChildren(...(one ? [] : shown.map(run => make(
    "li", {title: `${run.name}: ${run.says}`}, swatch(run.colour), run.label,
    make("button", {title: `Take ${run.name} out`, "aria-label": `Take ${run.name} out`, onclick: without(run)}, "×"),
  ))));
}

/** What people should look at, by run where there are several: alarms, and files that cannot be read. */
function notices(runs) {
  const of = run => runs.length > 1 ? `${run.label}: ` : "";
  const item = (run, className) => text => make("li", {className}, of(run) + text);
  const told = runs.flatMap(run => [...run.alarms.map(item(run, "alarm")), ...run.damage.map(item(run, "damage"))]);
  $("notices").replaceChildren(...told);
  $("notices").hidden = !told.length;
}

/** The metrics and kinds of rows that there are; what was chosen stays, as far as it is there. */
function choices(found, usual) {
  const has = part => [...new Set(found.flatMap(curves => Object.keys(curves?.metrics[part] ?? {})))];
  const parts = Object.keys(partName).filter(part => has(part).length);
  const part = parts.includes(wanted.part) ? wanted.part : parts[0] ?? "test", names = has(part);
  const metric = [wanted.metric, usual, names[0]].find(name => names.includes(name)) ?? usual;
  for (const option of $("part").options) option.disabled = !parts.includes(option.value);
  $("part").value = part;
  if ([...$("metric").options].map(option => option.value).join() !== names.join()) {
    $("metric").replaceChildren(...names.map(name => new Option(nameOf(name), name)));
  }
  $("metric").value = metric;
  wanted = {metric, part};
}

/** Names of lines beside a sample of each. */
function key(place, lines) {
  place.replaceChildren(...lines.map(line => make("li", {}, sample(line), line.label)));
}

/** The names of runs above the figures, where any of these has no room for them. */
function naming() {
  $("names").hidden = !learning.some(figure => figure.plot.silent);
}
new ResizeObserver(naming).observe($("plots"));

function errorFigures(found) {
  const lossy = ([, lines]) => lines.bound.y.some(value => value > 0);
  const rolesOf = curves => Object.entries(curves?.errors ?? {}).filter(lossy).map(([role]) => role);
  const names = [...new Set(found.flatMap(rolesOf))];
  $("compression").hidden = !names.length;
  for (const [role, figure] of roles) if (!names.includes(role)) { figure.box.remove(); roles.delete(role); }
  const measured = shown.filter((_, n) => rolesOf(found[n]).length);
  key($("kinds"), [...errorKey(shown), ...(shown.length > 1 ? measured : []).map(run => ({...run, dash: ""}))]);
  for (const role of names) {
    if (!roles.has(role)) roles.set(role, new Figure($("roles"), ERRORS, curvesOf, errorLines(role)));
    roles.get(role).name = () => role;
    roles.get(role).show(shown);
  }
}

let busy = false, again = false;

/** Show what is chosen as it is now; while one answer is awaited, the newest question waits. */
async function show() {
  if (busy) { again = true; return; }
  busy = true;
  try { await now(); } finally { busy = false; }
  if (again) { again = false; show(); }
}

async function now() {
  const names = chosen.filter(name => list.rows.has(name));
  $("empty").hidden = list.rows.size > 0;
  $("filled").hidden = !names.length;
  if (!names.length) return;
  const view = await ask("/api/view", new URLSearchParams(names.map(name => ["run", name])));
  if (!view) return;
  shown = view.runs.map((run, n) => ({...run, ...style(n, about.colours)}));
  heading(view);
  notices(view.runs);
  $("bare").hidden = !view.bare;
  $("bare").lastElementChild.textContent = view.bare;
  for (const [part, place] of Object.entries(PLACES)) put($(place), view[part]);
  for (const [part, section] of Object.entries(SECTIONS)) $(section).hidden = !view[part].trim();
  bars($("bars"), view.bytes, about);
  const found = view.bytes.flatMap(one => Object.values(one.parties));
  purposes(Object.entries(about.parts).filter(([part]) => found.some(sent => sent[part])));
  const drawn = await Promise.all(shown.map(run => curvesOf(run, "epoch", null)));
  const begun = drawn.some(curves => curves?.rounds);
  for (const section of document.querySelectorAll("section.rounds")) section.hidden = !begun;
  $("estimates").hidden = !view.runs.some(run => run.randomised);
  choices(drawn, view.metric);
  key($("names"), shown);
  Promise.all(learning.map(figure => figure.show(shown))).then(naming);
  errorFigures(drawn);
}

for (const key of ["metric", "part"]) {
  $(key).onchange = () => {
    wanted[key] = $(key).value;
    show();
  };
}
function purposes(parts) {
  const item = ([part, [colour, alpha]]) => make("li", {}, swatch(colour, alpha), about.purposes[part]);
  $("purposes").replaceChildren(...parts.map(item));
}
$("unfold").onclick = () => {
  const open = document.body.classList.toggle("unfolded");
  $("unfold").setAttribute("aria-expanded", open);
};

let timer = 0, last = -PACE;

/** News of rows: figures follow when a run that is shown has changed, at most once a second. */
function news(rows, gone) {
  list.take(rows, gone);
  if (!chosen.some(name => list.rows.has(name))) chosen = list.first();
  list.show(chosen, n => style(n, about.colours).colour);
  const told = chosen.map(name => list.rows.get(name)).map(row => row && [row.mark, row.says, row.state]);
  if (JSON.stringify(told) === marks) return;
  marks = JSON.stringify(told);
  if (timer) return;
  timer = setTimeout(() => {
    timer = 0;
    last = performance.now();
    show();
  }, Math.max(0, PACE - (performance.now() - last)));
}

const stream = new EventSource("/api/follow");
stream.addEventListener("all", event => {
  const state = JSON.parse(event.data), names = new Set(state.rows.map(row => row.name));
  $("link").textContent = "live";
  $("link").className = "live";
  $("folder").textContent = $("where").textContent = state.folder;
  list.more = state.more;
  news(state.rows, [...list.rows.keys()].filter(name => !names.has(name)));
});
stream.addEventListener("some", event => { const {rows, gone} = JSON.parse(event.data); news(rows, gone); });
stream.onerror = () => { $("link").textContent = "lost"; $("link").className = "lost"; };
