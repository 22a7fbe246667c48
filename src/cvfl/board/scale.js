// Numbers to places on an axis and to text: linear and logarithmic, with ticks that people would choose.

const RAISED = {"-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹"};

/** A number to so many digits: 0.0123, 4.56, 789, 12,345, 1.2×10⁷. */
export function number(value, digits = 4) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    const [factor, power] = value.toExponential(digits - 2).split("e");
    const raised = [...String(Number(power))].map(sign => RAISED[sign]).join("");
    return Number(factor) === 1 ? `10${raised}` : `${Number(factor)}×10${raised}`;
  }
  return Number(value.toPrecision(digits)).toLocaleString("en", {maximumFractionDigits: 6});
}

/** The same with all of its digits, so that numbers below each other can be compared: 0.9020. */
export function exact(value) {
  const size = Math.abs(value);
  return value !== null && size >= 1e-3 && size < 1e4 ? value.toPrecision(4) : number(value);
}

/** Seconds as people say them: 12 s, 3:05, 2:03:05. */
export function clock(seconds) {
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds), two = value => String(value).padStart(2, "0");
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** The step of a linear axis: 1, 2 or 5 times a power of ten, for at most so many ticks. */
function step(extent, most) {
  const raw = extent / most, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map(factor => factor * power).find(found => found >= raw * (1 - 1e-9));
}

function linearTicks([low, high], most) {
  const by = step(high - low || 1, most), found = [];
  for (let n = Math.ceil(low / by - 1e-9); n * by <= high + by * 1e-9; n++) {
    found.push(Number((n * by).toPrecision(12)));
  }
  return found;
}

function logTicks([low, high], most) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const between = factors => {
    const found = [];
    for (let power = first; power <= last; power++) {
      for (const factor of factors) {
        const value = Number((factor * 10 ** power).toPrecision(12));
        if (value >= low * (1 - 1e-9) && value <= high * (1 + 1e-9)) found.push(value);
      }
    }
    return found;
  };
  const choices = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 5], [1, 3], [1]].map(between);
  const fitting = choices.find(found => found.length <= most) ?? [];
  if (fitting.length >= 2) return fitting;
  if (fitting.length === 0) {
    const powers = choices[choices.length - 1], every = Math.ceil(powers.length / most);
    return powers.filter((_, n) => n % every === 0);
  }
  return linearTicks([low, high], most);
}

/** A scale from [low, high] to [start, end] with `at`, `value` (the way back) and `ticks`. */
export function scale([low, high], [start, end], log) {
  const to = log ? Math.log10 : value => value, back = log ? value => 10 ** value : value => value;
  const [from, extent] = [to(low), to(high) - to(low) || 1];
  return {
    low, high,
    at: value => start + (to(value) - from) / extent * (end - start),
    value: place => back(from + (place - start) / (end - start) * extent),
    ticks: most => (log ? logTicks : linearTicks)([low, high], Math.max(2, most)),
  };
}

/** What an axis shows: the values, with a little room, and something to show where they are all the same. */
export function extent(values, log, room = 0.04) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value === null || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [0.1, 1] : [0, 1];
  if (low === high && log) return [low / 2, high * 2];
  if (low === high) return [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  if (log) return [low * (low / high) ** room, high * (high / low) ** room];
  return [low - room * (high - low), high + room * (high - low)];
}
