// Outputs adapt to JupyterLab's mark of a dark theme; this keeps that mark in step with the page's own theme.
(() => {
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => {
    const chosen = document.body.dataset.theme || "auto";
    const isDark = chosen === "dark" || (chosen === "auto" && prefersDark.matches);
    document.body.dataset.jpThemeLight = String(!isDark);
  };
  const markScrolling = () => {
    document.querySelectorAll(".cell_output, .table-wrapper, .formula, pre").forEach((one) => {
      if (one.scrollWidth > one.clientWidth) one.tabIndex = 0; // so that keys can scroll it
    });
  };
  const playFirst = () => {
    const buttons = [...document.querySelectorAll(".first .worldsize-messages button")];
    buttons.find((one) => one.textContent === "Play")?.click();
  };
  document.addEventListener("DOMContentLoaded", () => {
    new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-theme"] });
    prefersDark.addEventListener("change", follow);
    follow();
    document.querySelectorAll('.caption[role="heading"]').forEach((caption) => caption.setAttribute("aria-level", "2"));
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) playFirst();
    markScrolling();
    addEventListener("resize", markScrolling);
  });
})();
