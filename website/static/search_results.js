// Below each result, what its page is about: Sphinx's own excerpts would be fetched, which a browser refuses from file://.
document.addEventListener("DOMContentLoaded", () => {
  const describe = (item) => {
    const link = item.querySelector("a");
    if (!link || item.querySelector(".description")) return;
    const page = new URL(link.href).href.replace(new URL(".", location.href).href, "").replace(/\.html.*$/, "");
    if (!DESCRIPTIONS[page]) return;
    const text = document.createElement("p");
    text.className = "description";
    text.textContent = DESCRIPTIONS[page];
    item.append(text);
  };
  const results = document.getElementById("search-results");
  const describeAll = () => results.querySelectorAll("ul.search > li").forEach(describe);
  new MutationObserver(describeAll).observe(results, { childList: true, subtree: true });
});
