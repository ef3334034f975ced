// Building and changing the page. Text goes in as text nodes only: names come from outside and may be hostile.
const SVG = "http://www.w3.org/2000/svg";

function make(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child != null));
  return node;
}

export const el = (tag, attributes = {}, ...children) => make(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => make(document.createElementNS(SVG, tag), attributes, children);

// The setters write only what changed, so that a quiet second costs nothing.
export function text(node, value) {
  const wanted = String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

export function attr(node, name, value) {
  if (value === false || value == null) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else {
    const wanted = value === true ? "" : String(value);
    if (node.getAttribute(name) !== wanted) node.setAttribute(name, wanted);
  }
}

// As an attribute, because SVG elements have no `hidden` property.
export const hide = (node, hidden) => attr(node, "hidden", hidden);

const drawn = new WeakMap();

// Calls draw() and replaces the node's children with what it returns, but only when `signature` differs from last time.
export function redraw(node, signature, draw) {
  if (drawn.get(node) === signature) return;
  drawn.set(node, signature);
  node.replaceChildren(...draw());
}

// A value with its small unit: <span class=…>2.31<small>s p99</small></span>, kept and updated in place.
export function figure(tag, className) {
  const value = document.createTextNode("—");
  const unit = el("small");
  const node = el(tag, { class: className }, value, unit);
  return {
    node,
    set(newValue, newUnit = "") {
      if (value.data !== newValue) value.data = newValue;
      text(unit, newUnit);
    },
  };
}

const parts = new WeakMap();

// Keeps one child of `parent` per item, in order: make(item) -> {node, paint(item)} for a new key, paint for every one.
export function keyed(parent, items, keyOf, makePart) {
  const before = parts.get(parent) ?? new Map();
  const now = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const part = before.get(key) ?? makePart(item);
    before.delete(key);
    now.set(key, part);
    if (part.node === place) place = place.nextElementSibling;
    else parent.insertBefore(part.node, place);
    part.paint(item);
  }
  for (const part of before.values()) part.node.remove();
  parts.set(parent, now);
}
