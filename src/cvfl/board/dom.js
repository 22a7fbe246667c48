// Elements of a page, made in one way: text is always set as text, never read as HTML.

/** An element with properties, attributes (such as role or aria-label), styles and children. */
export function make(name, {style, ...given} = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key in made && !key.startsWith("aria")) made[key] = value; else made.setAttribute(key, value);
  }
  Object.assign(made.style, style);
  made.append(...children);
  return made;
}

/** A square in the colour of a run, or of what bytes were for. */
export const swatch = (background, opacity = 1) => make("i", {style: {background, opacity}});
