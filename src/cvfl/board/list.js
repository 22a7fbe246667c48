// The list of runs: filtered, sorted, and chosen from by pointer or keys.

import {make} from "./dom.js";

const UNDER_WAY = ["preparing", "waiting", "training"];
const LOW = ["loss", "RMSE", "MAE"];
const ORDERS = {
  changed: (one, other) => other.changed - one.changed,
  name: (one, other) => one.name.localeCompare(other.name, "en", {numeric: true}),
  bytes: (one, other) => (one.bytes ?? Infinity) - (other.bytes ?? Infinity),
  score: (one, other) => rank(other) - rank(one),
};

function rank(row) {
  if (row.value === null) return -Infinity;
  return LOW.includes(row.metric) ? -row.value : row.value;
}

/** Of whom an alarm is and since when: what stands before its first colon. */
const brief = alarms => [...new Set(alarms.map(text => text.split(": ")[0]))].join(" · ");

const megabytes = row => row.bytes === null ? "" : `${row.mb} MB`;

export class List {
  /** `chosen` is a list of names in the order of their colours; `choose(names)` hears of another choice. */
  constructor(choose) {
    this.choose = choose;
    this.rows = new Map();
    this.items = new Map();
    this.chosen = [];
    this.box = document.getElementById("runs");
    this.filter = document.getElementById("filter");
    this.sort = document.getElementById("sort");
    this.filter.oninput = this.sort.onchange = () => this.order();
  }

  /** Rows that are new or changed, and names that are gone. */
  take(rows, gone = []) {
    for (const name of gone) { this.rows.delete(name); this.items.get(name)?.remove(); this.items.delete(name); }
    for (const row of rows) {
      this.rows.set(row.name, row);
      const item = this.item(row);
      this.items.get(row.name)?.replaceWith(item);
      this.items.set(row.name, item);
    }
    this.order();
  }

  item(row) {
    const {name, says, state, share, alarms} = row, others = () => this.chosen.filter(one => one !== name);
    const onchange = event => this.choose(event.target.checked ? [...this.chosen, name] : others());
    const item = make(
      "li", {},
      make("input", {type: "checkbox", "aria-label": `Compare ${name}`, onchange}),
      make(
        "button", {className: "only", title: [`${name}: ${says}`, ...alarms].join("\n"), onclick: () => this.choose([name])},
        make("b", {dir: "auto"}, name), make("span", {className: "note"}, row.note),
        ...(state === "finished" ? [] : [make("span", {className: `state ${state}`}, says)]),
        ...(alarms.length ? [make("span", {className: "state alarm"}, `alarm: ${brief(alarms)}`)] : []),
        ...(share === null ? [] : [make("progress", {max: 1, value: share, "aria-label": "Rounds that are over"})]),
      ),
      make(
        "span", {className: "figures"}, make("b", {title: row.metric}, row.score),
        ...(row.estimate ? [make("span", {title: "from randomised labels"}, "estimate")] : []),
        make("span", {}, megabytes(row)),
      ),
    );
    item.dataset.name = name;
    this.mark(item, name);
    return item;
  }

  mark(item, name) {
    const at = this.chosen.indexOf(name), box = item.firstChild;
    box.checked = at >= 0;
    item.classList.toggle("chosen", at >= 0);
    box.style.setProperty("--own", at >= 0 ? this.colourOf(at) : "");
  }

  /** Mark these runs as chosen, in colours by their place. */
  show(chosen, colourOf) {
    this.chosen = chosen;
    this.colourOf = colourOf;
    for (const [name, item] of this.items) this.mark(item, name);
  }

  /** Put the rows in order: those under way first. Only what has moved is moved, so that focus stays where it is. */
  order() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(word => word);
    const said = row => `${row.name} ${row.note} ${row.state} ${row.alarms.length ? "alarm" : ""}`.toLowerCase();
    const fits = row => words.every(word => said(row).includes(word));
    const going = row => UNDER_WAY.includes(row.state) ? 0 : 1, order = ORDERS[this.sort.value];
    const shown = [...this.rows.values()].filter(fits)
      .sort((one, other) => going(one) - going(other) || order(one, other) || ORDERS.name(one, other));
    const wanted = shown.map(row => this.items.get(row.name)), keep = new Set(wanted);
    for (const item of [...this.box.children]) if (!keep.has(item)) item.remove();
    if (!this.box.firstChild) this.box.append(...wanted);
    else wanted.forEach((item, n) => {
      if (this.box.children[n] !== item) this.box.insertBefore(item, this.box.children[n] ?? null);
    });
    const all = this.rows.size, live = [...this.rows.values()].filter(row => going(row) === 0).length;
    const count = value => value.toLocaleString("en");
    document.getElementById("count").textContent = [
      shown.length === all ? "" : `${count(shown.length)} of `, `${count(all)} run${all === 1 ? "" : "s"}`,
      live ? `, ${live} under way` : "", this.more ? "; more are not listed" : "",
    ].join("");
  }

  /** The runs to begin with: those that are under way, or the newest one. */
  first() {
    const rows = [...this.rows.values()].sort(ORDERS.changed);
    const going = rows.filter(row => UNDER_WAY.includes(row.state));
    return (going.length ? going.slice(0, 1) : rows.slice(0, 1)).map(row => row.name);
  }
}
