// Runs the script of a report's graphs on a page that is none: objects with the few members of a
// browser's that the script uses. It reads {script, page, steps} as JSON, does each step as a reader
// of the page would, and writes what the page shows after each: {viewBox, found, current, told, ...}.
"use strict";

const fs = require("node:fs");
const vm = require("node:vm");

const { script, page, steps } = JSON.parse(fs.readFileSync(0, "utf-8"));
let focused = null;

class Element {
  constructor(parts = {}) {
    this.parts = parts;
    this.attributes = {};
    this.listeners = {};
    this.classes = new Set();
    this.captured = new Set();
    this.classList = {
      add: (name) => this.classes.add(name),
      remove: (name) => this.classes.delete(name),
      toggle: (name, on) => (on ? this.classes.add(name) : this.classes.delete(name)),
    };
  }
  addEventListener(kind, listener) { (this.listeners[kind] ??= []).push(listener); }
  querySelector(selector) { return this.parts[selector]?.[0] ?? null; }
  querySelectorAll(selector) { return this.parts[selector] ?? []; }
  setAttribute(name, value) { this.attributes[name] = value; }
  setPointerCapture(pointer) { this.captured.add(pointer); }
  hasPointerCapture(pointer) { return this.captured.has(pointer); }
  getBoundingClientRect() { return { left: 0, top: 0, ...page.window }; }
  focus() { focused = this; }
  scrollIntoView() { this.isShown = true; }
  matches() { return this.isField === true; }
  // What a browser does with an event; whether it goes on with what it does by itself.
  dispatch(kind, event = {}) {
    let isPrevented = false;
    const given = { target: this, preventDefault: () => { isPrevented = true; }, ...event };
    for (const listener of this.listeners[kind] ?? []) listener(given);
    return !isPrevented;
  }
}

const groups = page.boxes.map(({ title, rect }) => {
  const box = new Element();
  box.getBBox = () => rect;
  const name = new Element();
  name.textContent = title;
  return new Element({ title: [name], rect: [box] });
});
const svg = new Element({ g: groups });
svg.viewBox = { baseVal: { x: 0, y: 0, ...page.picture } };
const view = new Element({ svg: [svg] });
view.clientWidth = page.window.width;
view.clientHeight = page.window.height;
const field = new Element();
field.value = "";
field.isField = true;
const told = new Element();
told.value = "";
const buttons = page.buttons.map((value) => Object.assign(new Element(), { value }));
const figure = new Element({ ".view": [view], input: [field], output: [told], button: buttons });
const root = new Element({ "figure.graph": [figure], "figure.graph input": [field] });
const location = { hash: "" };

class ResizeObserver {
  constructor(draw) { view.resized = draw; }
  observe() {}
}

const globals = {
  document: root,
  location,
  ResizeObserver,
  URLSearchParams,
  addEventListener: (kind, listener) => root.addEventListener(kind, listener),
};
vm.runInNewContext(script, globals);

const does = {
  click: ({ button }) => buttons.find(({ value }) => value === button).dispatch("click"),
  key: ({ key, where = "view", ...held }) =>
    ({ view, field, page: root })[where].dispatch("keydown", { key, ...held }),
  wheel: (event) => view.dispatch("wheel", event),
  press: (event) => view.dispatch("pointerdown", event),
  drag: (event) => view.dispatch("pointermove", event),
  write: ({ text }) => { field.value = text; return field.dispatch("input"); },
  follow: ({ hash }) => { location.hash = hash; return root.dispatch("hashchange"); },
  resize: ({ width, height }) => {
    [view.clientWidth, view.clientHeight] = [width, height];
    view.resized();
  },
};

function shown(goesOn) {
  const marked = (name) => page.boxes.flatMap((_, at) => (groups[at].classes.has(name) ? [at] : []));
  return {
    viewBox: svg.attributes.viewBox.split(" ").map(Number),
    found: marked("found"),
    current: marked("current"),
    told: told.value,
    goesOn,
    isLive: figure.classes.has("live"),
    focus: focused === field ? "field" : focused === view ? "view" : null,
  };
}

const states = [shown()];
for (const { does: what, ...event } of steps) states.push(shown(does[what](event)));
process.stdout.write(JSON.stringify(states));
