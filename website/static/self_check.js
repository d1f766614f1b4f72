// Marks the forms of self-checks in the page, by the rules of worldsize/quiz/marking.py.
(() => {
  "use strict";

  const asU = (text) => text.replace(/[\u00b5\u03bc]/g, "u"); // both signs for micro

  // A unit as it is compared: without case, except where it tells bits from bytes and milli from mega.
  const plainUnit = (unit) => {
    const [, prefix, letter, rest] =
      /^((?:[kmgtpe]i?)?)(b)((?:\/s)?)$/i.exec(unit) || /^()(m)(wh?)$/i.exec(unit) || [null, unit, "", ""];
    return asU(prefix).toLowerCase() + letter + rest.toLowerCase();
  };
  // The number that was typed, with or without its unit, by the rules of worldsize.units.parse_number; NaN if none was.
  const number = (typed, unit) => {
    let text = typed.replace(/\u2212/g, "-").replace(/[\u00a0\u2009\u202f]/g, " ").trim();
    const suffix = unit || "%";
    if (plainUnit(text.slice(-suffix.length)) === plainUnit(suffix)) text = text.slice(0, -suffix.length).trimEnd();
    if (/^[+-]?[1-9]\d{0,2}([, ]\d{3})+(\.\d+)?$/.test(text)) text = text.replace(/[, ]/g, "");
    else if (!text.includes(".")) text = text.replace(",", ".");
    return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) ? Number(text) : NaN;
  };
  const plain = (text) =>
    text.toLowerCase().replace(/[\u2013\u2011\u2010-]/g, "-").split(/\s+/).filter(Boolean).join(" ").replace(/\.+$/, "");
  const isNear = (value, wanted, tolerance) => Math.abs(value - wanted) <= tolerance * (1 + 1e-9) + 1e-300;

  // Each gives {share, said, isPart}: what an answer earns, the explanations for it; null where nothing was answered.
  const mark = {
    single: (field) => options(field, (right, wrong) => (right && !wrong ? 1 : 0)),
    multiple: (field) => options(field, (right, wrong, all) => Math.max(0, (right - wrong) / all)),
    numeric: (field) => {
      const typed = field.querySelector("input").value;
      if (!typed.trim()) return null;
      const value = number(typed, field.dataset.unit);
      if (Number.isNaN(value)) return { share: 0, said: [], problem: "This is not a number" + (field.dataset.unit ? ` in ${field.dataset.unit}.` : ".") };
      const wanted = Number(field.dataset.value), tolerance = Number(field.dataset.tolerance);
      if (isNear(value, wanted, tolerance)) return { share: 1, said: [] };
      const relative = tolerance / Math.max(Math.abs(wanted), 1e-300);
      const mistakes = [...field.querySelectorAll(".said")];
      const made = mistakes.find(({ dataset }) =>
        isNear(value, Number(dataset.value), Math.abs(Number(dataset.value)) * relative));
      return { share: 0, said: made ? [made] : [] };
    },
    text: (field) => {
      const typed = plain(field.querySelector("input").value);
      if (!typed) return null;
      if (JSON.parse(field.dataset.accepted).map(plain).includes(typed)) return { share: 1, said: [] };
      const made = [...field.querySelectorAll(".said")].find(({ dataset }) => plain(dataset.text) === typed);
      return { share: 0, said: made ? [made] : [] };
    },
    ordering: (field) => {
      const places = [...field.querySelectorAll("select")];
      const given = places.map((place) => place.value);
      if (given.includes("")) return null;
      if (new Set(given).size < given.length)
        return { share: 0, said: [], problem: `Give each of the places 1 to ${given.length} once.` };
      return { share: places.filter((place) => place.value === place.dataset.place).length / places.length, said: [] };
    },
  };

  const options = (field, share) => {
    const boxes = [...field.querySelectorAll("input")];
    const chosen = boxes.filter((box) => box.checked);
    if (!chosen.length) return null;
    const right = chosen.filter((box) => "right" in box.dataset).length;
    const all = boxes.filter((box) => "right" in box.dataset).length;
    const wrong = chosen.length - right;
    return {
      share: share(right, wrong, all),
      said: chosen.map((box) => box.closest("label").nextElementSibling),
      isPart: right > 0 && !wrong,
    };
  };

  const verdict = (form, marked) => {
    const share = marked.reduce((sum, one) => sum + (one ? one.share : 0), 0) / marked.length;
    const problem = marked.find((one) => one && one.problem);
    if (problem) return ["wrong", problem.problem];
    if (Math.abs(share - 1) < 1e-9) return ["right", "✓ Right."];
    if (form.dataset.kind === "multiple" && marked[0].isPart)
      return ["part", "… Right as far as it goes, but something is missing."];
    if (["ordering", "cloze"].includes(form.dataset.kind) && share > 0)
      return ["part", `… Partly: ${Math.round(share * 100)}% of it is right.`];
    return ["wrong", "✗ Not yet."];
  };

  const check = (event) => {
    event.preventDefault();
    const form = event.target;
    const marked = [...form.querySelectorAll(".field")].map((field) => mark[field.dataset.kind](field));
    form.querySelectorAll(".said, .whole").forEach((one) => { one.hidden = true; });
    const line = form.querySelector(".verdict");
    if (!marked.some(Boolean)) {
      [line.className, line.textContent] = ["verdict", "Answer first, then press Check."];
      return;
    }
    const [kind, text] = verdict(form, marked);
    [line.className, line.textContent] = [`verdict ${kind}`, text];
    marked.forEach((one) => one && one.said.forEach((said) => { said.hidden = false; }));
    const whole = form.querySelector(".whole");
    if (whole) whole.hidden = false;
  };

  document.addEventListener("submit", (event) => {
    if (event.target.matches(".self-check .question")) check(event);
  });
})();
