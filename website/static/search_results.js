// Over http Pagefind answers, with sections and excerpts. From file:// a browser refuses to load it: there, and where
// loading fails, Sphinx's own search answers, with what each page is about.
(() => {
  const MOST_PAGES = 20;
  const MOST_SECTIONS = 3;
  const { query: askSphinx, hasIndex } = Search;

  // The words without fillers; then all but one of them, because Pagefind wants every word; then each alone.
  const attempts = (query) => {
    const isExact = query.includes('"');
    const all = isExact ? [query] : query.split(/\s+/).filter((word) => word && !/^vs\.?$/i.test(word));
    const kept = all.filter((word) => !stopwords.has(word.toLowerCase()));
    const words = kept.length ? kept : all;
    const allButOne = words.length > 1 ? words.map((_, left) => words.filter((_, place) => place !== left)) : [];
    return [[words, ...allButOne], words.map((word) => [word])];
  };
  const find = async (pagefind, query) => {
    const best = new Map();
    for (const attempt of attempts(query)) {
      for (const words of attempt)
        for (const result of (await pagefind.search(words.join(" "))).results)
          if (!(best.get(result.id)?.score >= result.score)) best.set(result.id, result);
      if (best.size) break;
    }
    const candidates = [...best.values()].sort((one, other) => other.score - one.score).slice(0, MOST_PAGES);
    const pages = await Promise.all(
      candidates.map(async (result) => {
        const page = await result.data();
        return { ...page, score: result.score * weightOf(nameOf(new URL(page.url, location.href))) };
      }),
    );
    return { found: best.size, pages: pages.sort((one, other) => other.score - one.score) };
  };

  const add = (parent, tag, properties) => parent.appendChild(Object.assign(document.createElement(tag), properties));
  const show = (page) => {
    const { title } = page.meta;
    const item = add(Search.output, "li", {});
    add(item, "a", { href: page.url, textContent: title });
    const weight = (section) => section.weighted_locations.reduce((sum, { balanced_score }) => sum + balanced_score, 0);
    const best = [...page.sub_results].sort((one, other) => weight(other) - weight(one)).slice(0, MOST_SECTIONS);
    const [short] = title.match(/^(Week|Lab|Project) \w+(?=[.:])/) ?? [title];
    for (const section of best) {
      if (section.title !== title) add(item, "a", { className: "section", href: section.url, textContent: `${short} › ${section.title}` });
      add(item, "p", { className: "description", innerHTML: section.excerpt }); // Pagefind escapes it
    }
  };
  const askPagefind = async (query) => {
    try {
      const pagefind = await import("../pagefind/pagefind.js");
      await pagefind.options({ ranking: { termSimilarity: 5, pageLength: 0.5 } });
      const { found, pages } = await find(pagefind, query);
      pages.forEach(show);
      _finishSearch(found);
      if (found > pages.length) Search.status.append(` These are the first ${pages.length}.`);
    } catch (error) {
      console.warn(error);
      useSphinx();
      Search.deferQuery(query);
    }
  };
  const useSphinx = () => {
    Object.assign(Search, { query: askSphinx, hasIndex });
    new MutationObserver(() => Search.output.querySelectorAll("li").forEach(describe)).observe(
      document.getElementById("search-results"),
      { childList: true, subtree: true },
    );
    Search.loadIndex("searchindex.js");
  };
  const describe = (item) => {
    const link = item.querySelector("a");
    const textContent = link && DESCRIPTIONS[nameOf(new URL(link.href))];
    if (textContent && !item.querySelector(".description")) add(item, "p", { className: "description", textContent });
  };
  const nameOf = (url) => url.href.replace(new URL(".", location.href).href, "").replace(/(\.html)?(#.*)?$/, "");

  if (location.protocol === "file:") useSphinx();
  else Object.assign(Search, { query: askPagefind, hasIndex: () => true });
})();
