// Keeps which boxes of the checklist are ticked, in this browser alone.
document.addEventListener("DOMContentLoaded", () => {
  "use strict";
  const KEY = "worldsize-checklist";
  const boxes = [...document.querySelectorAll("input.done")];
  if (!boxes.length) return;
  let kept = [];
  try { kept = JSON.parse(localStorage.getItem(KEY)) || []; } catch { /* a browser that keeps nothing, or odd text */ }
  for (const box of boxes) {
    box.checked = kept.includes(box.id);
    box.addEventListener("change", () => {
      const ticked = boxes.filter((one) => one.checked).map((one) => one.id);
      try { localStorage.setItem(KEY, JSON.stringify(ticked)); } catch { /* the marks last as long as the page */ }
    });
  }
});
