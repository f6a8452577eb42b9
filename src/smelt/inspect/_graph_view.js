// Panning, zooming and searching of the graphs in a report. The script reads only the SVG and writes
// no HTML, so names of layers stay text. Without the script, the graphs can be scrolled.
"use strict";

const ZOOM = 1.25;
const STEP = 80; // pixels that an arrow key moves the graph
const MAX_SCALE = 8, MIN_SCALE = 1 / 1024; // pixels per unit of the picture

function follow(figure) {
  const view = figure.querySelector(".view");
  const svg = view.querySelector("svg");
  const field = figure.querySelector("input");
  const status = figure.querySelector("output");
  const viewBox = svg.viewBox.baseVal;
  const picture = { width: viewBox.width, height: viewBox.height };
  const boxes = [...svg.querySelectorAll("g")].map((group) => ({
    group,
    text: group.querySelector("title").textContent.toLowerCase(),
  }));
  let scale = 1;
  let middle = { x: picture.width / 2, y: 0 };
  let matches = [];
  let current = -1;

  function draw() {
    const width = view.clientWidth / scale;
    const height = view.clientHeight / scale;
    middle.x = within(middle.x, width, picture.width);
    middle.y = within(middle.y, height, picture.height);
    svg.setAttribute(
      "viewBox", `${middle.x - width / 2} ${middle.y - height / 2} ${width} ${height}`);
  }

  // Returns the nearest allowed middle of the visible part along an axis. A picture that is smaller
  // than the window is centred.
  function within(position, visible, total) {
    return visible >= total ? total / 2
      : Math.min(Math.max(position, visible / 2), total - visible / 2);
  }

  // Zooms by a factor around a point of the window, in pixels from the middle of the window.
  function zoom(factor, x = 0, y = 0) {
    const before = scale;
    scale = Math.min(Math.max(scale * factor, MIN_SCALE), MAX_SCALE);
    middle.x += x / before - x / scale;
    middle.y += y / before - y / scale;
    draw();
  }

  function move(x, y) {
    const before = { ...middle };
    middle.x += x / scale;
    middle.y += y / scale;
    draw();
    return middle.x !== before.x || middle.y !== before.y;
  }

  function fit() {
    const scales = [view.clientWidth / picture.width, view.clientHeight / picture.height];
    scale = Math.max(Math.min(...scales, 1), MIN_SCALE);
    draw();
  }

  function search(text) {
    const term = text.trim().toLowerCase();
    matches = [];
    for (const box of boxes) {
      const fits = term !== "" && box.text.includes(term);
      box.group.classList.toggle("found", fits);
      if (fits) matches.push(box);
    }
    status.value = term && !matches.length ? "no match" : "";
    show(0);
  }

  // Shows the match of an index, modulo the number of matches.
  function show(number) {
    if (current >= 0) boxes[current].group.classList.remove("current");
    current = -1;
    if (!matches.length) return;
    const index = ((number % matches.length) + matches.length) % matches.length;
    current = boxes.indexOf(matches[index]);
    const box = boxes[current].group;
    box.classList.add("current");
    const { x, y, width, height } = box.querySelector("rect").getBBox();
    middle = { x: x + width / 2, y: y + height / 2 };
    scale = Math.max(scale, 1);
    draw();
    status.value = `${index + 1} of ${matches.length}`;
  }

  function next(step) {
    show(matches.indexOf(boxes[current]) + step);
  }

  const actions = {
    next: () => next(1),
    previous: () => next(-1),
    in: () => zoom(ZOOM),
    out: () => zoom(1 / ZOOM),
    fit,
  };
  const keys = {
    ArrowLeft: () => move(-STEP, 0),
    ArrowRight: () => move(STEP, 0),
    ArrowUp: () => move(0, -STEP),
    ArrowDown: () => move(0, STEP),
    PageUp: () => move(0, -view.clientHeight),
    PageDown: () => move(0, view.clientHeight),
    Home: () => move(0, -picture.height * scale),
    End: () => move(0, picture.height * scale),
    "+": actions.in,
    "=": actions.in,
    "-": actions.out,
    0: fit,
    n: actions.next,
    N: actions.previous,
    "/": () => field.focus(),
  };

  view.addEventListener("keydown", (event) => {
    const key = keys[event.key];
    if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    key();
  });
  view.addEventListener("wheel", (event) => {
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? view.clientHeight : 1;
    const [x, y] = [event.deltaX * unit, event.deltaY * unit];
    if (event.ctrlKey || event.metaKey) {
      const area = view.getBoundingClientRect();
      const [left, top] = [area.left + area.width / 2, area.top + area.height / 2];
      zoom(Math.exp(-y / 200), event.clientX - left, event.clientY - top);
      event.preventDefault();
    } else if (event.shiftKey && !x ? move(y, 0) : move(x, y)) {
      event.preventDefault(); // at the end of the graph, the page scrolls
    }
  }, { passive: false });
  view.addEventListener("pointerdown", (event) => {
    if (event.button === 0) view.setPointerCapture(event.pointerId);
  });
  view.addEventListener("pointermove", (event) => {
    if (view.hasPointerCapture(event.pointerId)) move(-event.movementX, -event.movementY);
  });
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") next(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") view.focus();
    else return;
    event.preventDefault();
  });
  for (const button of figure.querySelectorAll("button")) {
    button.addEventListener("click", actions[button.value]);
  }
  new ResizeObserver(draw).observe(view);

  // The fragment #search=TEXT starts a search, so that a link can point to a layer.
  function searchFragment() {
    const text = new URLSearchParams(location.hash.slice(1)).get("search");
    if (text === null) return;
    field.value = text;
    search(text);
    figure.scrollIntoView();
  }

  figure.classList.add("live");
  draw();
  addEventListener("hashchange", searchFragment);
  addEventListener("load", searchFragment);
}

document.querySelectorAll("figure.graph").forEach(follow);

// The key / starts a search anywhere on the page, except in text fields. It searches the graph that
// has the focus, or else the first one.
addEventListener("keydown", (event) => {
  const held = event.ctrlKey || event.metaKey || event.altKey;
  if (event.key !== "/" || held || event.defaultPrevented) return;
  const field = document.querySelector("figure.graph input");
  if (!field || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
});
