// One plot: lines over an axis as SVG, with a cursor for pointer, touch and keys, and a zoom along x.
//
//   drag               zoom                    arrow keys         move the cursor
//   double click, Esc  the whole again         + and -, 0         zoom at the cursor, the whole again
//
// Colours come as CSS colours, so that the plot follows the page into dark mode. Nothing here knows what a run is.

import {make, swatch} from "./dom.js";
import {exact, extent, number, scale} from "./scale.js";

const SVG = "http://www.w3.org/2000/svg";
const ROOM = {top: 8, right: 14, bottom: 34, left: 52};
const LABEL = 6.3;  // about how wide a character of a direct label is
const WIDEST = 17;  // characters of a direct label
const LEAST = 6;    // pixels that count as a drag
const NEAR = 9;     // pixels beyond the end of a line at which it is still read

/** An element of an SVG. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The index of the value that is nearest; values ascend. */
function nearest(values, wanted) {
  let low = 0, high = values.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low > 0 && wanted - values[low - 1] < values[low] - wanted ? low - 1 : low;
}

/** Labels of at most so many characters, without their middle where they are longer; null if any two were the same. */
export function shortened(labels, most) {
  const head = Math.floor((most - 1) / 3), tail = most - 1 - head;
  const found = labels.map(label => {
    const signs = [...label];
    return signs.length <= most ? label : [...signs.slice(0, head), "…", ...signs.slice(-tail)].join("");
  });
  return new Set(found).size === new Set(labels).size ? found : null;
}

export class Plot {
  /** A plot in `host`; `zoomed` hears of [from, to], or of null when all is to be seen. */
  constructor(host, zoomed) {
    this.host = host;
    this.zoomed = zoomed;
    this.given = null;
    this.cursor = null;
    this.silent = false;
    this.svg = element("svg", {class: "plot", tabindex: 0, role: "group"});
    this.tip = make("div", {className: "tip", hidden: true});
    this.said = make("div", {className: "unseen", "aria-live": "polite"});
    host.append(this.svg, this.tip, this.said);
    this.listen();
    new ResizeObserver(() => this.render()).observe(host);
  }

  /** Show lines: {label, direct (at its end), colour, dash, x, y, low, high, aside}; labels, forms, {logX, logY}, span. */
  draw(given) {
    this.given = given;
    this.svg.setAttribute("aria-label", `${given.title}. Arrow keys move along it, plus and minus zoom.`);
    this.render();
  }

  render() {
    const given = this.given, width = this.host.clientWidth, height = this.host.clientHeight;
    if (!given || width < 80) return;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.x = null;
    if (!given.lines.some(line => line.x.length)) {
      const middle = {class: "none", x: width / 2, y: height / 2, "text-anchor": "middle"};
      this.svg.append(element("text", middle, given.none ?? "nothing to draw yet"));
      return;
    }
    const named = this.named(width);
    const longest = Math.max(0, ...named.map(({text}) => text.length));
    const right = named.length ? longest * LABEL + 18 : ROOM.right;
    const {lines, logX, logY, span} = given;
    const xs = span ?? extent(lines.flatMap(line => line.x.length ? [line.x[0], ...line.x.slice(-1)] : []), logX, 0);
    if (logX && !span) xs[0] = extent(lines.flatMap(line => line.x), true, 0)[0];
    const seen = line => (value, n) => line.x[n] >= xs[0] && line.x[n] <= xs[1] ? value : null;
    const ys = extent(lines.flatMap(line => [...line.y, ...(line.low ?? [])].map((value, n) =>
      seen(line)(value, n % line.x.length))).concat(given.ends ?? []), logY);
    this.x = scale(xs, [ROOM.left, width - right], logX);
    this.y = scale(ys, [height - ROOM.bottom, ROOM.top], logY);
    this.edges = [ROOM.left, width - right, ROOM.top, height - ROOM.bottom];
    this.axes(width, height);
    const clip = `clip-${given.ident}`, [left, end, top, bottom] = this.edges;
    const room = {x: left, y: top - 4, width: end - left + 4, height: bottom - top + 8};
    this.svg.append(element("clipPath", {id: clip}, element("rect", room)));
    const body = element("g", {"clip-path": `url(#${clip})`});
    for (const line of lines) this.line(body, line);
    this.svg.append(body);
    this.direct(named, width - right + 6);
    this.over = element("g", {class: "over"});
    this.svg.append(this.over);
    if (this.cursor !== null) this.point(this.cursor);
  }

  /** The lines that are named at their end, if there is room for all: [{line, text}]. Else the plot is `silent`. */
  named(width) {
    const found = this.given.lines.filter(line => line.x.length && !line.aside);
    const most = Math.min(WIDEST, Math.floor((0.34 * width - 18) / LABEL));
    const fits = width >= 300 && found.length <= 8;
    const texts = fits ? shortened(found.map(line => line.direct ?? line.label), most) : null;
    this.silent = found.length > 1 && !texts;
    return found.length > 1 && texts ? found.map((line, n) => ({line, text: texts[n]})) : [];
  }

  axes(width, height) {
    const {given, x, y} = this, [left, right, top, bottom] = this.edges, grid = element("g", {class: "grid"});
    for (const value of y.ticks(Math.floor((bottom - top) / 30))) {
      grid.append(element("line", {x1: left, x2: right, y1: y.at(value), y2: y.at(value)}));
      grid.append(element("text", {x: left - 7, y: y.at(value) + 4, "text-anchor": "end"}, number(value)));
    }
    for (const value of x.ticks(Math.floor((right - left) / 52))) {
      grid.append(element("line", {x1: x.at(value), x2: x.at(value), y1: bottom, y2: bottom + 4, class: "tick"}));
      const below = {x: x.at(value), y: bottom + 17, "text-anchor": "middle"};
      grid.append(element("text", below, (given.formX ?? number)(value)));
    }
    grid.append(element("line", {x1: left, x2: right, y1: bottom, y2: bottom, class: "base"}));
    grid.append(element("text", {x: right, y: bottom + 31, "text-anchor": "end", class: "what"}, given.labelX));
    this.svg.append(grid);
  }

  line(body, line) {
    const log = this.given.logY, drawn = value => value !== null && (!log || value > 0);
    let path = "", pen = false;
    const band = [[], []];
    for (let n = 0; n < line.x.length; n++) {
      if (!drawn(line.y[n]) || (this.given.logX && line.x[n] <= 0)) { pen = false; continue; }
      const place = this.x.at(line.x[n]).toFixed(1);
      path += `${pen ? "L" : "M"}${place} ${this.y.at(line.y[n]).toFixed(1)}`;
      pen = true;
      if (line.low && drawn(line.low[n]) && drawn(line.high[n])) {
        band[0].push(`${place} ${this.y.at(line.low[n]).toFixed(1)}`);
        band[1].unshift(`${place} ${this.y.at(line.high[n]).toFixed(1)}`);
      }
    }
    if (band[0].length > 1) {
      body.append(element("path", {class: "band", fill: line.colour, d: `M${[...band[0], ...band[1]].join("L")}Z`}));
    }
    const dash = line.dash ? {"stroke-dasharray": line.dash} : {};
    const kind = `line ${line.aside ? "aside" : ""}`;
    body.append(element("path", {class: kind, stroke: line.colour, d: path || "M0 0", ...dash}));
    if (line.x.length === 1 && drawn(line.y[0])) {
      body.append(element("circle", {cx: this.x.at(line.x[0]), cy: this.y.at(line.y[0]), r: 3, fill: line.colour}));
    }
  }

  /** Names at the ends of lines, moved apart where they would cover each other. */
  direct(named, left) {
    const ends = named.map(({line, text}) => {
      const inside = line.x.map((value, n) => n).filter(n => line.x[n] <= this.x.high && line.y[n] !== null);
      return {line, text, y: this.y.at(line.y[inside[inside.length - 1] ?? 0] ?? this.y.low)};
    }).filter(end => Number.isFinite(end.y)).sort((one, other) => one.y - other.y);
    for (let n = 1; n < ends.length; n++) ends[n].y = Math.max(ends[n].y, ends[n - 1].y + 14);
    for (let n = ends.length - 1, most = this.edges[3]; n >= 0; n--, most -= 14) ends[n].y = Math.min(ends[n].y, most);
    for (const {line, text, y} of ends) {
      this.svg.append(element("circle", {cx: left + 2, cy: y, r: 2.5, fill: line.colour}));
      const full = line.direct ?? line.label, more = text === full ? [] : [element("title", {}, full)];
      this.svg.append(element("text", {class: "direct", x: left + 8, y: y + 4}, text, ...more));
    }
  }

  /** The cursor at a value of x: a line, a mark on each line, and what they are in words. */
  point(x, say = false) {
    const {lines, labelX, formX} = this.given, [left, right, top, bottom] = this.edges;
    const place = this.x.at(x), near = value => Math.abs(this.x.at(value) - place) < NEAR;
    const has = ({line: {x: xs}, n}) => near(xs[n]) || (xs[0] < x && x < xs[xs.length - 1]);
    const all = lines.filter(line => line.x.length).map(line => ({line, n: nearest(line.x, x)}));
    const there = all.filter(has);
    const found = there.length ? there : all;
    this.over.replaceChildren();
    if (!found.length) return;
    const closer = (one, other) => Math.abs(other - x) < Math.abs(one - x) ? other : one;
    this.cursor = found.map(({line, n}) => line.x[n]).reduce(closer);
    const at = this.x.at(this.cursor);
    if (at < left - 1 || at > right + 1) return this.leave();
    this.over.append(element("line", {class: "cursor", x1: at, x2: at, y1: top, y2: bottom}));
    const rows = [make("b", {}, `${labelX} ${(formX ?? number)(this.cursor)}`)];
    for (const {line, n} of found) {
      const y = line.y[n], height = this.y.at(y);
      if (y !== null && Number.isFinite(height)) {
        this.over.append(element("circle", {cx: this.x.at(line.x[n]), cy: height, r: 3.5, fill: line.colour}));
      }
      rows.push(make("span", {}, swatch(line.colour), make("span", {}, line.label), make("em", {}, exact(y))));
    }
    this.tip.replaceChildren(...rows);
    this.tip.hidden = false;
    const wide = this.tip.offsetWidth + 12;
    const beside = at + wide < this.host.clientWidth ? at + 12 : Math.max(0, at - wide);
    this.tip.style.left = `${beside}px`;
    const words = row => [...row.childNodes].map(part => part.textContent).join(" ").trim();
    if (say) this.said.textContent = rows.map(words).join(", ");
  }

  leave() {
    this.cursor = null;
    this.tip.hidden = true;
    this.over?.replaceChildren();
  }

  listen() {
    const inside = event => {
      const box = this.svg.getBoundingClientRect(), [left, right] = this.edges;
      return Math.min(right, Math.max(left, event.clientX - box.left));
    };
    let from = null;
    this.svg.addEventListener("pointerdown", event => {
      if (event.pointerType !== "touch" && this.x) from = inside(event);
    });
    this.svg.addEventListener("pointermove", event => {
      if (!this.x) return;
      const place = inside(event);
      this.point(this.x.value(place));
      if (from !== null && Math.abs(place - from) > LEAST) {
        const [, , top, bottom] = this.edges;
        const span = {x: Math.min(from, place), width: Math.abs(place - from), y: top, height: bottom - top};
        this.over.append(element("rect", {class: "chosen", ...span}));
      }
    });
    window.addEventListener("pointerup", event => {
      if (from === null) return;
      const place = inside(event), chosen = [from, place].sort((one, other) => one - other);
      from = null;
      if (chosen[1] - chosen[0] > LEAST) this.zoomed(chosen.map(end => this.x.value(end)));
    });
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("blur", () => this.leave());
    this.svg.addEventListener("dblclick", () => this.zoomed(null));
    this.svg.addEventListener("keydown", event => this.key(event));
  }

  key(event) {
    if (!this.x || event.ctrlKey || event.metaKey || event.altKey) return;
    const xs = [...new Set(this.given.lines.flatMap(line => line.x))].sort((one, other) => one - other)
      .filter(value => value >= this.x.low && value <= this.x.high);
    const at = this.cursor === null ? -1 : nearest(xs, this.cursor);
    const steps = {ArrowRight: at + 1, ArrowLeft: at - 1, PageDown: at + 10, PageUp: at - 10};
    const moves = {...steps, Home: 0, End: xs.length - 1};
    const around = this.cursor ?? this.x.value((this.edges[0] + this.edges[1]) / 2);
    const closer = factor => [around - (around - this.x.low) * factor, around + (this.x.high - around) * factor];
    if (event.key in moves && xs.length) this.point(xs[Math.max(0, Math.min(xs.length - 1, moves[event.key]))], true);
    else if (event.key === "+" || event.key === "=") this.zoomed(closer(0.5));
    else if (event.key === "-") this.zoomed(closer(2));
    else if (event.key === "0" || event.key === "Escape") { this.leave(); this.zoomed(null); }
    else return;
    event.preventDefault();
  }
}
