/* Turn each still picture of messages on this page into an animation, once. A page repeats this script with every
   picture; it finds its place by class, so that no ids can clash. */
(() => {
  // taken from the browser, because exporters for offline pages drop scripts that contain a URL
  const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").querySelector("svg").namespaceURI;
  const STEP_MS = 1300, HOLD_MS = 350;

  function element(parent, name, attributes = {}, text = "", space = null) {
    const made = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    parent.append(made);
    return made;
  }
  const shape = (parent, name, attributes, text) => element(parent, name, attributes, text, SVG);

  function at([x0, y0, x1, y1, x2, y2], t) {
    const a = (1 - t) * (1 - t), b = 2 * t * (1 - t), c = t * t;
    return [a * x0 + b * x1 + c * x2, a * y0 + b * y1 + c * y2];
  }

  function head([, , x1, y1, x2, y2], size) {
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const dx = size * (x2 - x1) / length, dy = size * (y2 - y1) / length;
    return `${x2},${y2} ${x2 - dx - 0.45 * dy},${y2 - dy + 0.45 * dx} ${x2 - dx + 0.45 * dy},${y2 - dy - 0.45 * dx}`;
  }

  function player(root) {
    const run = JSON.parse(root.dataset.run), last = run.steps.length - 1;
    const middleX = run.width / 2, middleY = run.height / 2;
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    const name = "Messages step by step" + (run.title ? `: ${run.title}` : "");
    const box = element(root, "div", { class: "worldsize-player", role: "group", "aria-label": name });
    if (run.title) element(box, "p", { class: "worldsize-title" }, run.title);
    const view = shape(box, "svg", { viewBox: `0 0 ${run.width} ${run.height}`, "aria-hidden": "true" });
    const arrows = shape(view, "g"), nodes = shape(view, "g"), packets = shape(view, "g");
    const hub = shape(view, "circle", { class: "worldsize-hub", cx: middleX, cy: middleY, r: run.hub });
    const calls = shape(view, "g");
    for (const [cx, cy] of run.nodes) shape(nodes, "circle", { cx, cy, r: run.node });
    for (const [x, y, rank] of run.names) shape(nodes, "text", { x, y }, rank);
    const controls = element(box, "div", { class: "worldsize-controls" });
    const button = (label, act) => {
      const made = element(controls, "button", { type: "button" }, label);
      made.addEventListener("click", act);
      return made;
    };
    const back = button("Step back", () => go(step - 1));
    const play = button("Play", () => (isPlaying ? pause() : start()));
    const forward = button("Step forward", () => go(step + 1));
    const slider = element(controls, "input", { type: "range", min: 1, max: last + 1, step: 1, "aria-label": "Step" });
    slider.addEventListener("input", () => go(slider.value - 1));
    const says = element(box, "p", { class: "worldsize-says" });
    const heights = run.steps.map((one) => { says.textContent = one.says; return says.offsetHeight; });
    says.style.minHeight = `${Math.max(...heights)}px`;  // of the longest text: what is below does not move
    says.setAttribute("aria-live", "polite");

    let step = -1, isPlaying = false, begun = 0, request = 0;

    function show(number) {
      step = number;
      const { moves, says: text, calls: names } = run.steps[step];
      says.textContent = text;
      hub.style.visibility = names.length ? "visible" : "hidden";
      calls.replaceChildren();
      names.forEach((name, line) => shape(calls, "text", { x: middleX, y: middleY + 18 * (line - (names.length - 1) / 2) }, name));
      slider.value = step + 1;
      slider.setAttribute("aria-valuetext", `step ${step + 1} of ${last + 1}`);
      back.disabled = step === 0;
      forward.disabled = step === last;
      arrows.replaceChildren();
      packets.replaceChildren();
      for (const [curve, , , size, isMessage] of moves) {
        const [x0, y0, x1, y1, x2, y2] = run.curves[curve];
        shape(arrows, "path", { d: `M${x0} ${y0}Q${x1} ${y1} ${x2} ${y2}` });
        if (isMessage) shape(arrows, "polygon", { points: head(run.curves[curve], Math.min(12, 0.9 * run.node)) });
        const packet = shape(packets, "circle", { class: "worldsize-packet", r: Math.min(6, 0.5 * run.node) });
        packet.style.visibility = "hidden";
        if (isMessage && moves.length <= 8) {
          const [x, y] = at(run.curves[curve], 0.5);
          const away = Math.hypot(x - middleX, y - middleY) || 1;
          shape(arrows, "text", { x: x + 34 * (x - middleX) / away, y: y + 16 * (y - middleY) / away }, size);
        }
      }
    }

    /* Put every message where it was at this fraction of its step, by the recorded times. */
    function place(fraction) {
      const { moves, start, end } = run.steps[step];
      const now = start + fraction * (end - start);
      moves.forEach(([curve, from, until], index) => {
        const packet = packets.children[index];
        const [x, y] = at(run.curves[curve], Math.min(1, Math.max(0, (now - from) / (until - from || 1))));
        packet.setAttribute("cx", x);
        packet.setAttribute("cy", y);
        packet.style.visibility = now < from || fraction >= 1 ? "hidden" : "visible";
      });
    }

    function frame(now) {
      if (!root.isConnected) return;
      const passed = now - begun;
      if (!still.matches) place(Math.min(1, passed / STEP_MS));
      if (passed < STEP_MS + (isPlaying ? HOLD_MS : 0)) {
        request = requestAnimationFrame(frame);
      } else if (isPlaying && step < last) {
        run_step(step + 1);
      } else {
        pause();
      }
    }

    function run_step(number) {
      show(number);
      begun = performance.now();
      cancelAnimationFrame(request);
      request = requestAnimationFrame(frame);
    }

    function go(number) {
      pause();
      run_step(Math.min(last, Math.max(0, number)));
    }

    function start() {
      isPlaying = true;
      play.textContent = "Pause";
      run_step(step === last ? 0 : step);
    }

    function pause() {
      isPlaying = false;
      play.textContent = "Play";
    }

    show(0);
  }

  for (const root of document.querySelectorAll(".worldsize-messages:not(.worldsize-plays)")) {
    root.classList.add("worldsize-plays");
    player(root);
  }
})();
