// Which lines stand in which plot: metric and loss over a choice of axes, errors beside their bounds, bytes as bars.

import {make} from "./dom.js";
import {Plot, element} from "./plot.js";
import {clock, number} from "./scale.js";

export const AXES = {epoch: "epoch", bytes: "MB", round: "round", seconds: "time"};
const DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const STYLES = {measured: "", expected: "5 3", bound: "1.5 3"};

/** How the nth run is drawn: nine colours, then the same with dashes. */
export function style(n, colours) {
  return {colour: colours[n % colours.length], dash: DASHES[Math.floor(n / colours.length) % DASHES.length]};
}

/** What tells a line apart, to stand before its name. */
export function sample({colour, dash}) {
  const drawn = {x1: 0, x2: 24, y1: 4, y2: 4, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash};
  return element("svg", {class: "sample", viewBox: "0 0 24 8", "aria-hidden": "true"}, element("line", drawn));
}

/** What the lines of a figure of errors are, in the colour of the only run. */
export const errorKey = runs => Object.entries(STYLES).map(([label, dash]) => (
  {label, dash, colour: runs.length > 1 ? "currentColor" : runs[0].colour}
));

let count = 0;

/** A figure with a title, a choice of axis, logarithms and zoom around a plot. */
export class Figure {
  /** `curvesOf(run, axis, span)` promises the curves of a run; `linesOf(curves, run, n)` chooses the lines. */
  constructor(grid, {axis, choose = true, log = false, logX = false, none}, curvesOf, linesOf) {
    Object.assign(this, {axis, curvesOf, linesOf, none, logX, logY: log, span: null, runs: []});
    Object.assign(this, {ident: ++count, turn: 0, title: make("span")});
    const caption = make("figcaption", {}, this.title), host = make("div", {className: "host"});
    if (choose) {
      const options = Object.entries(AXES).map(([value, text]) => new Option(`by ${text}`, value));
      this.choice = make("select", {"aria-label": "Axis"}, ...options);
      this.choice.value = axis;
      this.choice.onchange = () => { this.axis = this.choice.value; this.span = null; this.show(this.runs); };
      caption.append(this.choice);
    }
    const all = {title: "Show the whole axis again (Esc)", hidden: true, onclick: () => this.zoom(null)};
    this.whole = make("button", all, "whole");
    this.switches = {logX: this.toggle("log x", "logX"), logY: this.toggle("log y", "logY")};
    caption.append(make("span", {className: "switches"}, this.whole, ...Object.values(this.switches)));
    this.box = make("figure", {}, caption, host);
    grid.append(this.box);
    this.plot = new Plot(host, span => this.zoom(span));
  }

  toggle(text, key) {
    const onclick = () => {
      this[key] = !this[key];
      this.settled = true;
      this.show(this.runs);
    };
    return make("button", {title: `${text[4]} axis logarithmic`, "aria-pressed": this[key], onclick}, text);
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
    const direct = runs > 1 ? run.label : part, aside = part !== "measured" && runs > 1;
    return [{...run, ...line, label, direct, dash: STYLES[part], aside}];
  });
}

/** Bars of bytes by party, stacked by purpose; all runs to one scale. */
export function bars(grid, runs, about) {
  const total = found => Object.keys(about.parts).reduce((sum, part) => sum + (found[part] ?? 0), 0);
  const widest = Math.max(1, ...runs.flatMap(run => Object.values(run.parties).map(total)));
  const mb = value => `${number((value ?? 0) / 1e6, 3)} MB`;
  const piece = found => ([part, [background, opacity]]) => make("i", {
    title: `${about.purposes[part]}: ${mb(found[part])}`,
    style: {background, opacity, width: `${100 * (found[part] ?? 0) / widest}%`},
  });
  const bar = ([party, found]) => {
    const pieces = Object.entries(about.parts).map(piece(found)), says = pieces.map(one => one.title).join(", ");
    return [
      make("span", {title: party}, party),
      make("div", {className: "bar", role: "img", "aria-label": says}, ...pieces),
      make("span", {}, mb(total(found))),
    ];
  };
  grid.replaceChildren(...runs.map(run => make(
    "figure", {},
    make("figcaption", {}, make("span", {}, runs.length > 1 ? run.label : "By party")),
    make("div", {className: "bars"}, ...Object.entries(run.parties).flatMap(bar)),
    make("small", {}, run.told),
  )));
}
