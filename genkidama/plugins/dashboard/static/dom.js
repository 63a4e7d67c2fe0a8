// Elements of the document: made, found, and changed only where something differs.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

// What the parent gives beside this page, as `status` or `policy?version=7`.
export const address = (name) => new URL(name, location.href.split(/[?#]/)[0]);

function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

// `text` is the text, `onclick` and the like are listeners, all else are attributes.
export function element(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function drawn(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

// Where the text is the same already, nothing is laid out anew.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  if (value === null) node.removeAttribute(name);
  else if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

export function reveal(node, seen) {
  if (node.hidden === seen) node.hidden = !seen;
}

// As many children as this: those that are there stay, and missing ones are made.
export function fit(list, count, make) {
  while (list.children.length > count) list.lastElementChild.remove();
  while (list.children.length < count) list.append(make());
}

// A small picture with its name, a value beside that, and below it where an axis begins and ends.
export function small(name, svg, caption) {
  const [value, low, high] = [element("b"), element("span"), element("span")];
  const node = element(
    "figure",
    { "data-name": name },
    element("figcaption", {}, element("span", caption), value),
    svg,
    element("p", { class: "range soft" }, low, high),
  );
  return { node, svg, value, low, high };
}

// A list of terms and values: [term, value, hint, "warn" or nothing]. Rows are kept while they fit.
export function facts(list, pairs) {
  fit(list, pairs.length, () => element("div", {}, element("dt"), element("dd")));
  pairs.forEach(([term, value, hint = "", kind = ""], index) => {
    const [name, figure] = list.children[index].children;
    say(name, term);
    say(figure, value);
    mark(list.children[index], "title", hint || null);
    mark(list.children[index], "class", kind || null);
  });
}
