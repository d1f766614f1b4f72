// Shows the frame of the controls' positions. A page may hold many explorers, and run this once for each.
(() => {
  const place = (field) => (field.dataset.places ? field.dataset.places.split(",")[field.value] : field.value);
  const show = (explorer) => {
    const fields = [...explorer.querySelectorAll(".controls input, .controls select")];
    fields.filter((field) => field.dataset.texts).forEach((field) => {
      const text = field.dataset.texts.split("|")[field.value];
      field.nextElementSibling.value = text;
      field.setAttribute("aria-valuetext", text);
    });
    const at = fields.map(place).join(",");
    explorer.querySelectorAll(".frame").forEach((frame) => { frame.hidden = frame.dataset.at !== at; });
  };
  document.querySelectorAll(".worldsize-frames:not([data-is-live])").forEach((explorer) => {
    explorer.dataset.isLive = "yes";
    explorer.addEventListener("input", () => show(explorer));
    show(explorer);
  });
})();
