// Runs a calculator: Python in a worker computes each answer, and Vega draws it.
(() => {
  "use strict";

  const MEGABYTES = 15; // that the worker loads; a test adds them up
  if (!location.protocol.startsWith("http")) return; // a browser loads no program for a page that is a file
  const worker = new Worker(new URL("calculator_worker.js", document.currentScript.src), { type: "module" });
  const drawing = import(new URL("calculators/vega.js", document.currentScript.src));

  // Asks the worker for a function of calculators/calculator.py; without one, waits until Python has started.
  const waiting = new Map();
  let last = 0;
  const ask = (call, name, given) =>
    new Promise((resolve, reject) => {
      waiting.set(++last, { resolve, reject });
      worker.postMessage({ id: last, call, name, given });
    });
  const loading = new EventTarget();
  worker.onmessage = ({ data: { loaded, id, result, problem } }) => {
    if (loaded !== undefined) return void loading.dispatchEvent(new CustomEvent("progress", { detail: loaded }));
    const { resolve, reject } = waiting.get(id);
    waiting.delete(id);
    problem ? reject(new Error(problem)) : resolve(result);
  };
  worker.onerror = ({ message }) => waiting.forEach(({ reject }) => reject(new Error(message || "no module workers")));
  const started = ask();

  // Vega's colours from the page's theme.
  const theme = () => {
    const style = getComputedStyle(document.body);
    const [ink, faint] = ["--color-foreground-primary", "--color-background-border"].map((name) => style.getPropertyValue(name));
    const words = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
    return {
      background: null,
      view: { stroke: null },
      font: style.fontFamily,
      axis: { ...words, gridColor: faint, domainColor: faint, tickColor: faint },
      legend: { ...words, labelLimit: 400 },
      rule: { color: ink },
      text: { color: ink },
    };
  };

  const start = (section) => {
    const name = section.dataset.name;
    const [guess, controls] = [".guess", ".controls"].map((one) => section.querySelector(one));
    const [answer, picture, state] = [".answer", ".picture", ".state"].map((one) => section.querySelector(one));
    const fields = [...controls.querySelectorAll("input[type=range], select")];
    const chosen = controls.querySelector("input[type=file]");
    let chart = null; // until Python has answered, the page has a picture of its own
    let asked = 0;

    const draw = async () => {
      await drawing;
      if (chart) await window.vegaEmbed(picture, chart, { actions: false, renderer: "svg", config: theme() });
    };
    const show = async (result) => {
      const { html, chart: found, problem } = JSON.parse(result);
      section.classList.toggle("impossible", Boolean(problem));
      state.textContent = problem || "";
      if (problem) return;
      answer.innerHTML = html; // made by calculators/calculator.py, which escapes what it is given
      chart = Object.keys(found).length ? found : null;
      if (!chart) picture.replaceChildren();
      await draw();
    };
    const compute = async () => {
      if (++asked > 1) return; // one answer at a time: what has moved meanwhile is asked below
      while (asked) {
        asked = 1;
        const places = fields.map((field) => (field.type === "range" ? Number(field.value) : field.selectedIndex));
        try {
          const result = await ask("answer", name, places);
          if (asked === 1) await show(result);
        } finally {
          asked -= 1;
        }
      }
    };
    const explain = async () => show(await ask("explain", name, [...chosen.files]));

    controls.addEventListener("submit", (event) => event.preventDefault());
    controls.addEventListener("input", ({ target }) => {
      if (target === chosen) return void explain();
      if (target.type === "range") {
        const text = JSON.parse(target.dataset.texts)[target.value];
        target.nextElementSibling.textContent = text;
        target.setAttribute("aria-valuetext", text);
      }
      compute();
    });
    if (guess) {
      section.classList.add("asking");
      const verdict = guess.querySelector(".verdict");
      const reveal = () => {
        section.classList.remove("asking");
        draw();
      };
      guess.addEventListener("submit", async (event) => {
        event.preventDefault();
        reveal();
        if (!section.dataset.ready) verdict.textContent = guess.dataset.answer; // Python judges the guess once it has started
        verdict.textContent = await ask("judge", name, guess.querySelector("input").value);
      });
      guess.querySelector(".skip").addEventListener("click", reveal);
    }
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
    const coming = new AbortController();
    const say = (megabytes) => (state.textContent = `Python is starting in your browser: ${megabytes} of about ${MEGABYTES} MB loaded …`);
    loading.addEventListener("progress", ({ detail }) => say(Math.round(detail / 1e6)), { signal: coming.signal });
    say(0);
    started.then(
      async () => {
        coming.abort();
        state.textContent = "";
        section.dataset.ready = "yes";
        if (!chosen) await compute();
      },
      (error) => {
        coming.abort();
        state.textContent = `Python did not start in this browser: ${error.message}`;
      },
    );
  };

  globalThis.calculators = ask; // for the console, and for tests
  document.querySelectorAll(".calculator").forEach(start);
})();
