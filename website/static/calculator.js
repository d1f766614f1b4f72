// Runs a calculator: Python in the page (Pyodide) computes each answer, and Vega draws it.
(() => {
  "use strict";

  if (!location.protocol.startsWith("http")) return; // a browser loads no program for a page that is a file
  const files = new URL("calculators/", document.currentScript.src); // what extensions/calculators.py has put there

  const started = (async () => {
    const { loadPyodide } = await import(new URL("pyodide.mjs", files));
    const [python, bundle] = await Promise.all([
      loadPyodide({ indexURL: files.href }),
      fetch(new URL("worldsize.zip", files)).then((response) => response.arrayBuffer()),
    ]);
    python.unpackArchive(bundle, "zip", { extractDir: "/course" });
    python.runPython('import sys; sys.path.insert(0, "/course")');
    return { python, calculator: python.pyimport("calculators.calculator") };
  })();
  const drawing = import(new URL("vega.js", files));

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
    let chart = null;
    let asked = 0;

    const draw = async () => {
      await drawing;
      if (chart) await window.vegaEmbed(picture, chart, { actions: false, renderer: "svg", config: theme() });
      else picture.replaceChildren();
    };
    const show = async (result) => {
      const { html, chart: found, problem } = JSON.parse(result);
      section.classList.toggle("impossible", Boolean(problem));
      state.textContent = problem || "";
      if (problem) return;
      answer.innerHTML = html; // made by calculators/calculator.py, which escapes what it is given
      chart = Object.keys(found).length ? found : null;
      await draw();
    };
    const compute = async () => {
      const turn = ++asked;
      const places = fields.map((field) => (field.type === "range" ? Number(field.value) : field.selectedIndex));
      const { python, calculator } = await started;
      if (turn !== asked) return; // moved again meanwhile
      const given = python.toPy(places);
      await show(calculator.answer(name, given));
      given.destroy();
    };
    const explain = async () => {
      const { python, calculator } = await started;
      python.FS.mkdirTree("/files");
      const paths = await Promise.all(
        [...chosen.files].map(async (file) => {
          python.FS.writeFile(`/files/${file.name}`, new Uint8Array(await file.arrayBuffer()));
          return `/files/${file.name}`;
        }),
      );
      const given = python.toPy(paths);
      await show(calculator.explain(name, given));
      given.destroy();
      paths.forEach((path) => python.FS.unlink(path));
    };

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
        const { calculator } = await started;
        verdict.textContent = calculator.judge(name, guess.querySelector("input").value);
        reveal();
      });
      guess.querySelector(".skip").addEventListener("click", reveal);
    }
    new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
    state.textContent = "Python is starting in your browser …";
    started.then(
      async () => {
        state.textContent = "";
        section.dataset.ready = "yes";
        if (!chosen) await compute();
      },
      (error) => (state.textContent = `Python did not start in this browser: ${error.message}`),
    );
  };

  globalThis.calculators = started; // for the console, and for tests
  document.querySelectorAll(".calculator").forEach(start);
})();
