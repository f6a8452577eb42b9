// Moves, zooms and searches the pictures of graphs in a report. It reads the picture alone, and
// writes no HTML: whatever a layer is called stays text. Without it the pictures scroll as they are.
"use strict";

const ZOOM = 1.25;
const STEP = 80; // pixels that an arrow key moves
const NEAREST = 8, FARTHEST = 1 / 1024; // pixels by unit of the picture

function follow(figure) {
  const view = figure.querySelector(".view");
  const svg = view.querySelector("svg");
  const field = figure.querySelector("input");
  const told = figure.querySelector("output");
  const whole = svg.viewBox.baseVal;
  const picture = { width: whole.width, height: whole.height };
  const boxes = [...svg.querySelectorAll("g")].map((group) => ({
    group,
    text: group.querySelector("title").textContent.toLowerCase(),
  }));
  let scale = 1;
  let middle = { x: picture.width / 2, y: 0 };
  let found = [];
  let current = -1;

  function draw() {
    const width = view.clientWidth / scale;
    const height = view.clientHeight / scale;
    middle.x = within(middle.x, width, picture.width);
    middle.y = within(middle.y, height, picture.height);
    svg.setAttribute(
      "viewBox", `${middle.x - width / 2} ${middle.y - height / 2} ${width} ${height}`);
  }

  // Where the middle of what is shown may be: what is smaller than the window stands in its middle.
  function within(place, shown, all) {
    return shown >= all ? all / 2 : Math.min(Math.max(place, shown / 2), all - shown / 2);
  }

  // Zooms by a factor around a point of the window, given from its middle in pixels.
  function zoom(factor, x = 0, y = 0) {
    const before = scale;
    scale = Math.min(Math.max(scale * factor, FARTHEST), NEAREST);
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
    scale = Math.max(Math.min(...scales, 1), FARTHEST);
    draw();
  }

  function search(text) {
    const wanted = text.trim().toLowerCase();
    found = [];
    for (const box of boxes) {
      const fits = wanted !== "" && box.text.includes(wanted);
      box.group.classList.toggle("found", fits);
      if (fits) found.push(box);
    }
    told.value = wanted && !found.length ? "no match" : "";
    show(0);
  }

  // Shows what was found at a place of the list, which goes round.
  function show(place) {
    if (current >= 0) boxes[current].group.classList.remove("current");
    current = -1;
    if (!found.length) return;
    const at = ((place % found.length) + found.length) % found.length;
    current = boxes.indexOf(found[at]);
    const box = boxes[current].group;
    box.classList.add("current");
    const { x, y, width, height } = box.querySelector("rect").getBBox();
    middle = { x: x + width / 2, y: y + height / 2 };
    scale = Math.max(scale, 1);
    draw();
    told.value = `${at + 1} of ${found.length}`;
  }

  function next(step) {
    show(found.indexOf(boxes[current]) + step);
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
      event.preventDefault(); // at its end the page goes on
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

  // The fragment #search=TEXT searches: a link can point to a layer.
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

// A slash searches from anywhere on the page, except where text is written. A graph that has the
// focus searches itself; from elsewhere the first one does.
addEventListener("keydown", (event) => {
  const held = event.ctrlKey || event.metaKey || event.altKey;
  if (event.key !== "/" || held || event.defaultPrevented) return;
  const field = document.querySelector("figure.graph input");
  if (!field || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  field.focus();
});
