/* What pages do beyond being read: run a lesson, explain a word. Without this script a lesson opens
   on a page of its own, and a word leads to the glossary. */
"use strict";

function openLesson(link) {
  if (location.protocol === "file:") {
    link.parentElement.querySelector("p").textContent =
      "Browsers let Python run only in pages that come from a server: `make site-serve` is one.";
    return;
  }
  if (link.page) return link.page.showModal();
  const scheme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
  const page = link.page = document.createElement("dialog");
  page.className = "run-page";
  page.setAttribute("aria-label", link.dataset.title);
  page.innerHTML = `<header><strong></strong>
    <span role="status">starting Python</span>
    <button type="button" class="code" aria-pressed="false" hidden>Show the code</button>
    <button type="button" class="back">Back to the page</button></header><iframe></iframe>`;
  page.querySelector("header").prepend(document.querySelector(".tbt-mark").cloneNode(true));
  page.querySelector("strong").textContent = link.dataset.title;
  const frame = page.querySelector("iframe"), status = page.querySelector("[role=status]");
  frame.title = `${link.dataset.title}, live`;
  frame.src = `${link.getAttribute("href")}?theme=${scheme}`;
  page.querySelector(".back").addEventListener("click", () => page.close());
  const code = page.querySelector(".code");
  code.addEventListener("click", () => {
    frame.contentDocument.getElementById("preview-button").click(); // marimo's own switch
    code.setAttribute("aria-pressed", code.getAttribute("aria-pressed") === "false");
  });
  if (link.dataset.next) {
    const onward = document.createElement("a");
    onward.href = link.dataset.next;
    onward.textContent = `Next: ${link.dataset.nextTitle}`;
    page.querySelector("header").append(onward);
  }
  document.body.append(page);
  page.showModal();
  frame.addEventListener("load", () => {
    const root = frame.contentDocument.documentElement; // it says itself how far it is
    const tell = () => {
      page.dataset.state = root.dataset.tbt;
      status.textContent = root.dataset.tbt === "live" ? "" : root.dataset.tbt;
      code.hidden = root.dataset.tbt !== "live";
    };
    new MutationObserver(tell).observe(root, {attributeFilter: ["data-tbt"]});
    tell();
  });
}

document.querySelectorAll(".run a.button").forEach(link =>
  link.addEventListener("click", event => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openLesson(link);
  }));

/* The walk: one stop at a time, by a slider, two buttons or the arrow keys. */
function stepThrough(walk) {
  const stops = [...walk.querySelectorAll(".tt-walk")];
  const bar = document.createElement("div");
  bar.className = "walk-bar";
  bar.innerHTML = `<button type="button" class="button">Back</button>
    <input type="range" min="1" max="${stops.length}" value="1" aria-label="stop of the walk">
    <button type="button" class="button first">Next</button>`;
  const [back, next] = bar.querySelectorAll("button"), slider = bar.querySelector("input");
  const show = () => {
    const now = Number(slider.value);
    stops.forEach((stop, index) => { stop.classList.toggle("shown", index + 1 === now); });
    slider.setAttribute("aria-valuetext", `stop ${now} of ${stops.length}`);
    back.disabled = now === 1;
    next.disabled = now === stops.length;
  };
  back.addEventListener("click", () => { slider.stepDown(); show(); });
  next.addEventListener("click", () => { slider.stepUp(); show(); });
  slider.addEventListener("input", show);
  walk.classList.add("stepped");
  walk.prepend(bar);
  show();
}

document.querySelectorAll(".walk").forEach(stepThrough);

/* Hover text: also on focus, away with Escape, never outside of the window. */
const tip = document.createElement("span");
tip.className = "term-tip";
tip.id = "term-tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
document.body.append(tip);

function showTip(word) {
  tip.textContent = word.dataset.says;
  tip.hidden = false;
  word.setAttribute("aria-describedby", tip.id);
  const place = word.getBoundingClientRect();
  const left = Math.min(place.left, document.documentElement.clientWidth - tip.offsetWidth - 12);
  tip.style.left = `${Math.max(12, left) + scrollX}px`;
  tip.style.top = `${place.bottom + 6 + scrollY}px`;
}

function hideTip() {
  tip.hidden = true;
  document.querySelectorAll("[aria-describedby=term-tip]").forEach(word =>
    word.removeAttribute("aria-describedby"));
}

document.querySelectorAll("a.term").forEach(word => {
  for (const kind of ["mouseenter", "focus"]) word.addEventListener(kind, () => showTip(word));
  for (const kind of ["mouseleave", "blur"]) word.addEventListener(kind, hideTip);
});
document.addEventListener("keydown", event => { if (event.key === "Escape") hideTip(); });

/* The theme's search is a dialog without a name. */
document.querySelectorAll(".md-search").forEach(search => search.setAttribute("aria-label", "Search"));

/* Labels that open the drawer and the search act as buttons on the keyboard too. */
document.querySelectorAll("label[role=button]").forEach(label =>
  label.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); label.click(); }
  }));
