// Which lines stand in which plot: metric and loss over a choice of axes, errors beside their bounds, bytes as bars.

import {Plot} from "./plot.js";
import {clock, number} from "./scale.js";

export const AXES = {epoch: "epoch", bytes: "MB", round: "round", seconds: "time"};
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const STYLES = {measured: "", expected: "5 3", bound: "1.5 3"};

/** How the nth run is drawn: nine colours, then the same with dashes. */
export function style(n, colours) {
  return {colour: colours[n % colours.length], dash: DASHES[Math.floor(n / colours.length) % DASHES.length]};
}

function button(text, title, pressed, act) {
  const made = document.createElement("button");
  Object.assign(made, {textContent: text, title, onclick: act});
  made.setAttribute("aria-pressed", pressed);
  return made;
}

let count = 0;

/** A figure with a title, a choice of axis, logarithms and zoom around a plot. */
export class Figure {
  /** `curvesOf(run, axis, span)` promises the curves of a run; `linesOf(curves, run, n)` chooses the lines. */
  constructor(grid, {axis, choose = true, log = false, logX = false, none}, curvesOf, linesOf) {
    Object.assign(this, {axis, curvesOf, linesOf, none, logX, logY: log, span: null, runs: [], ident: ++count, turn: 0});
    this.box = document.createElement("figure");
    const caption = document.createElement("figcaption"), host = document.createElement("div"), tools = document.createElement("span");
    this.title = document.createElement("span");
    host.className = "host";
    tools.className = "switches";
    caption.append(this.title);
    if (choose) {
      this.choice = document.createElement("select");
      this.choice.setAttribute("aria-label", "Axis");
      for (const [value, text] of Object.entries(AXES)) this.choice.append(new Option(`by ${text}`, value, false, value === axis));
      this.choice.onchange = () => { this.axis = this.choice.value; this.span = null; this.show(this.runs); };
      caption.append(this.choice);
    }
    this.whole = button("whole", "Show the whole axis again (Esc)", false, () => this.zoom(null));
    this.whole.hidden = true;
    this.switches = {logX: this.toggle("log x", "logX"), logY: this.toggle("log y", "logY")};
    tools.append(this.whole, ...Object.values(this.switches));
    caption.append(tools);
    this.box.append(caption, host);
    grid.append(this.box);
    this.plot = new Plot(host, span => this.zoom(span));
  }

  toggle(text, key) {
    const made = button(text, `${text[4]} axis logarithmic`, this[key], () => {
      this[key] = !this[key];
      this.settled = true;
      this.show(this.runs);
    });
    return made;
  }

  /** As in reports: bytes of runs that lie far apart are drawn to a logarithmic scale, unless the reader has said. */
  settle(lines) {
    const ends = lines.map(line => line.x[line.x.length - 1]).filter(end => end > 0);
    if (!this.settled) this.logX = this.axis === "bytes" && Math.max(...ends) > 5 * Math.min(...ends);
    for (const [key, made] of Object.entries(this.switches)) made.setAttribute("aria-pressed", this[key]);
  }

  zoom(span) {
    this.span = span;
    this.whole.hidden = span === null;
    this.show(this.runs);
  }

  /** Show these runs: [{name, label, colour, dash}]. What comes too late, after another call, is dropped. */
  async show(runs) {
    this.runs = runs;
    const turn = ++this.turn, span = this.span;
    const found = await Promise.all(runs.map(run => this.curvesOf(run, this.axis, span)));
    if (turn !== this.turn) return;
    const lines = found.flatMap((curves, n) => curves ? this.linesOf(curves, runs[n], runs.length) : []);
    this.title.textContent = this.title.title = this.name();
    this.settle(lines);
    this.plot.draw({
      title: `${this.name()} by ${AXES[this.axis]}`, span, none: this.none, ident: this.ident, lines,
      logX: this.logX, logY: this.logY,
      labelX: AXES[this.axis], formX: this.axis === "seconds" ? clock : number,
    });
  }

  name() { return ""; }
}

/** Loss on the batches, with the range of each window where rounds are averaged. */
export function lossLines(curves, run, runs) {
  const {x, y, low, high} = curves.loss;
  return [{...run, x, y, ...(runs <= 3 ? {low, high} : {})}];
}

/** All bytes so far. */
export function sentLines(curves, run) {
  return [{...run, ...curves.sent}];
}

/** Error, its expectation and its bound of one role. */
export function errorLines(role) {
  return (curves, run, runs) => Object.entries(curves.errors[role] ?? {}).flatMap(([part, line]) => {
    if (!line.y.some(value => value > 0)) return [];
    const label = runs > 1 ? `${run.label}, ${part}` : part;
    return [{...run, ...line, label, dash: STYLES[part], aside: part !== "measured" && runs > 1}];
  });
}

/** Bars of bytes by party, stacked by purpose; all runs to one scale. */
export function bars(grid, runs, about) {
  const total = found => Object.keys(about.parts).reduce((sum, part) => sum + (found[part] ?? 0), 0);
  const widest = Math.max(1, ...runs.flatMap(run => Object.values(run.parties).map(total)));
  grid.replaceChildren(...runs.map(run => {
    const box = document.createElement("figure"), caption = document.createElement("figcaption");
    const list = document.createElement("div"), told = document.createElement("small");
    caption.textContent = runs.length > 1 ? run.label : "By party";
    list.className = "bars";
    for (const [party, found] of Object.entries(run.parties)) {
      const name = document.createElement("span"), bar = document.createElement("div"), sum = document.createElement("span");
      name.textContent = name.title = party;
      sum.textContent = `${number(total(found) / 1e6, 3)} MB`;
      for (const [part, [colour, alpha]] of Object.entries(about.parts)) {
        const piece = document.createElement("i");
        piece.title = `${about.purposes[part]}: ${number((found[part] ?? 0) / 1e6, 3)} MB`;
        Object.assign(piece.style, {width: `${100 * (found[part] ?? 0) / widest}%`, background: colour, opacity: alpha});
        bar.append(piece);
      }
      bar.className = "bar";
      bar.setAttribute("role", "img");
      bar.setAttribute("aria-label", [...bar.children].map(piece => piece.title).join(", "));
      list.append(name, bar, sum);
    }
    told.textContent = run.told;
    box.append(caption, list, told);
    return box;
  }));
}
