// Fits every slide to the screen, and shows them: what is too tall is scaled down, then split, and cut as a last resort.
(() => {
  "use strict";
  const TEXT = [0.7, 1.4], BLOCKS = [1, 1.4], PICTURE = [0.3, 3]; // least and most zoom; text is 20 pixels high at 1
  const MINUTES = 1.5; // for a slide, besides its exercise
  const WHOLE = "TABLE, UL, OL, PRE, IMG, SVG";
  const slides = document.querySelector(".slides");

  const bodyOf = (section) => section.querySelector(".body");
  const visible = (parent) => [...parent.children].filter((child) => child.offsetHeight);

  function addLink(section, text) {
    const link = `<p class="to-lesson"><a href="${section.dataset.lesson}">${text}</a></p>`;
    section.querySelector(".page").insertAdjacentHTML("beforeend", link);
  }

  function fitsAt(zoom, body) {
    body.style.zoom = zoom;
    const room = body.parentElement;
    return room.scrollHeight <= room.clientHeight && room.scrollWidth <= room.clientWidth;
  }

  // give a body the largest zoom at which it fits, if there is one
  function scale(body) {
    const isPicture = !body.innerText.trim() && body.querySelector("img, svg");
    let [low, high] = isPicture ? PICTURE : visible(body).length > 1 ? BLOCKS : TEXT;
    if (fitsAt(high, body)) return true;
    if (!fitsAt(low, body)) return false;
    while (high - low > 0.01) {
      const middle = (low + high) / 2;
      if (fitsAt(middle, body)) low = middle;
      else high = middle;
    }
    return fitsAt(low, body);
  }

  // what a body can be split into: its blocks, or the rows, items or lines of its only block
  function partsOf(body) {
    let block = body;
    while (visible(block).length === 1 && !block.matches(WHOLE)) [block] = visible(block);
    if (block.matches("table")) return [...block.querySelectorAll("tbody > tr")];
    if (block.matches("pre") && !block.querySelector(".line")) {
      const lines = block.innerHTML.trimEnd().split("\n");
      block.innerHTML = lines.map((line) => `<span class="line">${line}\n</span>`).join("");
    }
    return block.matches("ul, ol, pre") ? [...block.children] : visible(block);
  }

  function fit(section) {
    const body = bodyOf(section);
    if (scale(body)) return [section];
    const parts = partsOf(body), total = parts.length;
    if (total < 2) {
      section.querySelector(".room").classList.add("cut");
      addLink(section, "… in the lesson");
      return [section];
    }
    let count = total;
    do parts[--count].hidden = true; while (count > 1 && !scale(body));
    if (!parts[0].matches("body > *")) count = Math.ceil(total / Math.ceil(total / count)); // parts of equal size
    parts.forEach((part) => { part.hidden = false; });
    const rest = section.cloneNode(true);
    rest.querySelector(".notes")?.remove();
    rest.dataset.minutes = 0;
    section.after(rest);
    partsOf(bodyOf(rest)).slice(0, count).forEach((part) => part.remove());
    parts.slice(count).forEach((part) => part.remove());
    return [...fit(section), ...fit(rest)];
  }

  // how long the slides take in class, for the notes of the first
  function pace(sections) {
    const stated = sections.map((section) => Number(section.dataset.minutes));
    const titles = sections.map((section) => section.querySelector("h2").innerText);
    const begins = [0];
    stated.forEach((minutes, index) => begins.push(begins[index] + MINUTES + minutes));
    const whole = begins.at(-1), fromMiddle = (index) => Math.abs(begins[index] - whole / 2);
    const middle = [...titles.keys()].filter((index) => titles[index] !== titles[index - 1])
      .reduce((best, index) => (fromMiddle(index) < fromMiddle(best) ? index : best));
    return `<p><strong>${titles.length} slides, about ${Math.round(whole)} minutes</strong>: ${MINUTES} minutes for each
      slide, and ${stated.reduce((sum, minutes) => sum + minutes)} minutes that the exercises state. The middle is before
      slide ${middle + 1}, “${titles[middle]}”, after about ${Math.round(begins[middle])} minutes.</p>`;
  }

  slides.querySelectorAll(".worldsize-frames").forEach((explorer) => {
    explorer.querySelectorAll(".controls, .words, .frame[hidden]").forEach((part) => part.remove());
    addLink(explorer.closest("section"), "Its controls are in the lesson");
  });
  slides.parentElement.classList.add("measured");
  for (const section of [...slides.children]) {
    const pieces = fit(section);
    if (pieces.length > 1)
      pieces.forEach((piece, index) => { piece.dataset.part = `part ${index + 1} of ${pieces.length}`; });
  }
  const sections = [...slides.children];
  sections[0].querySelector(".notes").insertAdjacentHTML("afterbegin", pace(sections));
  slides.parentElement.classList.remove("measured");
  Reveal.initialize({
    width: 1280, height: 720, margin: 0, center: false, hash: true, slideNumber: "c/t", transition: "none",
    pdfSeparateFragments: false, plugins: [RevealNotes],
  });
})();
