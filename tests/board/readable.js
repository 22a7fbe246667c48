// Run in the page: what sticks out, how small text is, and how little text differs from what is behind it (WCAG).

const part = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const light = colour => {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map(value => part(value / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (; element; element = element.parentElement) {
    const found = getComputedStyle(element).backgroundColor;
    if (/^rgb\(/.test(found)) return found;
  }
};
const all = names => [...document.querySelectorAll(names)].filter(element => element.checkVisibility());
const contrast = element => {
  const style = getComputedStyle(element), colour = element.closest("svg") ? style.fill : style.color;
  const [more, less] = [light(colour), light(behind(element))].sort((one, other) => other - one);
  return (more + 0.05) / (less + 0.05);
};
const within = (element, left, right) => {
  const box = element.getBoundingClientRect();
  return box.left >= left - 1 && box.right <= right + 1;
};
const texts = all("h1, h2, dt, dd, small, td, th, .plot text, #runs b, figcaption span, label, .note, #purposes li")
  .filter(element => element.textContent.trim());
const boxes = all("figure, .cards, .scroll, #legend li, .tools, header").filter(element => !within(element, 0, innerWidth));
const plotted = all(".plot text").filter(element => {
  const {left, right} = element.closest(".plot").getBoundingClientRect();
  return !within(element, left, right);
});
return {
  scroll: document.documentElement.scrollWidth,
  outside: [...boxes, ...plotted].map(element => element.textContent.slice(0, 40)),
  small: Math.min(...texts.map(element => parseFloat(getComputedStyle(element).fontSize))),
  contrast: Math.min(...texts.map(contrast)),
};
