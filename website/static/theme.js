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
  const enlargeOnClick = () => {
    document.querySelectorAll("article img").forEach((picture) => {
      if (picture.closest("a, button, .first")) return;
      picture.addEventListener("click", () => {
        if (picture.classList.toggle("enlarged")) picture.scrollIntoView({ block: "nearest" });
      });
      const mark = () => picture.classList.toggle("can-grow", picture.naturalWidth > picture.clientWidth * 1.2);
      if (picture.complete) mark();
      else picture.addEventListener("load", mark);
    });
  };
  const linkReports = () => { // a run's report ends with the page that explains it
    document.querySelectorAll(".cell_output pre").forEach((pre) => {
      pre.innerHTML = pre.innerHTML.replace(/docs\/(\w+)\.md#([\w-]+)/g, (all, page, anchor) =>
        `<a href="${document.documentElement.dataset.content_root}docs/${page}.html#${anchor}">${all}</a>`);
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
    enlargeOnClick();
    linkReports();
    markScrolling();
    addEventListener("resize", markScrolling);
  });
})();
