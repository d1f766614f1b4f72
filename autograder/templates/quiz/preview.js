const by = id => document.getElementById(id);
const questions = () => [...document.querySelectorAll("article.question")];
const seen = () => questions().filter(one => !one.hidden);
const seeds = {};  // of live questions, by key

function filter() {
  const words = by("words").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const one of questions()) {
    const fits = ["week", "kind", "difficulty"].every(name => !by(name).value || one.dataset[name] == by(name).value)
      && (!by("drawn").checked || one.dataset.drawn) && words.every(word => one.dataset.words.includes(word));
    one.hidden = !fits;
  }
  by("none").hidden = seen().length > 0 || !questions().length;
  by("count").value = `${seen().length} of ${questions().length}`;
}

function turn(question) {  // the next of the variants that the page holds
  const box = question.querySelector(".variants"), all = [...box.querySelectorAll(".variant")];
  const now = Math.max(0, all.findIndex(one => one.classList.contains("now")));
  all.forEach((one, place) => one.classList.toggle("now", place == (now + 1) % all.length));
  box.classList.add("turned");
}

async function show(question, seed) {  // the variant of a seed, which the server draws
  const box = question.querySelector(".variants"), isOpen = box.querySelector("details")?.open;
  const answer = await fetch(`/variant?${new URLSearchParams({key: question.dataset.key, seed})}`);
  box.innerHTML = await answer.text();
  if (isOpen && box.querySelector("details")) box.querySelector("details").open = true;
  seeds[question.dataset.key] = seed;
}

async function another(question) {
  if (!question.querySelector(".another")) return;
  if (isLive) await show(question, (seeds[question.dataset.key] ?? 0) + 1);
  else turn(question);
}

async function reload() {  // the bank as its files are now; filters and seeds stay
  const answer = await fetch("/"), fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const focused = document.activeElement?.closest?.("article")?.dataset.key;
  by("bank").replaceWith(fresh.getElementById("bank"));
  document.title = fresh.title;
  document.querySelector("h1").textContent = fresh.querySelector("h1").textContent;
  for (const name of ["week", "kind"]) {
    const chosen = by(name).value;
    by(name).replaceWith(fresh.getElementById(name));
    by(name).value = chosen;
    if (by(name).selectedIndex < 0) by(name).value = "";
  }
  filter();
  for (const one of questions()) {
    if (seeds[one.dataset.key]) await show(one, seeds[one.dataset.key]);
    if (one.dataset.key == focused) one.focus({preventScroll: true});
  }
}

async function watch() {
  try {
    const answer = await fetch("/version");
    if (await answer.json() != by("bank").dataset.version) await reload();
    document.body.classList.remove("gone");
  } catch {
    document.body.classList.add("gone");  // the server has ended, or starts again
  }
  setTimeout(watch, 1000);
}

function step(by_how_many) {
  const all = seen(), here = all.indexOf(document.activeElement?.closest?.("article"));
  const next = all[Math.min(all.length - 1, Math.max(0, here + by_how_many))];
  next?.focus({preventScroll: true});
  next?.scrollIntoView({block: "start"});
}

document.querySelector("form").addEventListener("input", filter);
document.querySelector("form").addEventListener("submit", event => event.preventDefault());
document.querySelector("form").addEventListener("reset", () => setTimeout(filter));
document.addEventListener("click", event => {
  if (event.target.matches(".another")) another(event.target.closest("article"));
});
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select")) return;
  const question = document.activeElement?.closest?.("article") ?? seen()[0];
  if (event.key == "/") by("words").focus();
  else if (event.key == "n") step(1);
  else if (event.key == "p") step(-1);
  else if (event.key == "v" && question) another(question);
  else if (event.key == "a" && question) {
    const shown = [...question.querySelectorAll("details")].find(one => one.checkVisibility());
    if (shown) shown.open = !shown.open;
  } else return;
  event.preventDefault();
});
filter();
if (isLive) watch();
