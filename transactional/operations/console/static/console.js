// Live pages. The server says that something has changed: then the page is fetched again.
"use strict";
(() => {
  const root = document.querySelector("[data-changes]");
  const live = document.querySelector(".live");
  if (!root || !live) return;
  const told = live.querySelector("span");
  const button = live.querySelector("button");
  let paused = false, due = false, busy = false, full = false;
  // Parts as the server has made them: charts.js puts more into them.
  const served = new WeakMap();
  for (const part of document.querySelectorAll("[data-part]")) served.set(part, part.innerHTML);

  const put = html => {
    const page = new DOMParser().parseFromString(html, "text/html");
    for (const part of document.querySelectorAll("[data-part]")) {
      const fresh = page.querySelector(`[data-part="${part.dataset.part}"]`);
      if (!fresh || part.contains(document.activeElement) || part.querySelector(".zoomed") || served.get(part) === fresh.innerHTML) continue;
      served.set(fresh, fresh.innerHTML);
      part.replaceWith(fresh);
      document.dispatchEvent(new CustomEvent("replaced", {detail: part.dataset.part}));
    }
    told.textContent = "live";
  };

  const refresh = async () => {
    if (paused || busy || document.hidden) { due = true; return; }
    busy = true; due = false;
    try {
      const answer = await fetch(location.href, {credentials: "same-origin"});
      if (!answer.ok) throw new Error(String(answer.status));
      put(await answer.text());
    } catch { told.textContent = "no answer; trying again"; due = true; }
    busy = false;
    if (due) setTimeout(refresh, 1000);
  };

  live.classList.add("on");
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Resume" : "Pause";
    told.textContent = paused ? "paused" : "live";
    if (!paused && due) refresh();
  });
  document.addEventListener("visibilitychange", () => { if (due) refresh(); });
  const events = new EventSource(root.dataset.changes);
  events.addEventListener("open", () => { full = false; if (told.textContent.startsWith("no answer")) refresh(); else told.textContent = paused ? "paused" : "live"; });
  events.addEventListener("changed", refresh);
  events.addEventListener("away", () => { told.textContent = "the store does not respond"; });
  events.addEventListener("full", event => { full = true; told.textContent = event.data; });
  events.addEventListener("error", () => { if (!full) told.textContent = "no answer; trying again"; });
})();

// Times are UTC. Whoever points at one reads it by their own clock, too.
document.addEventListener("pointerover", event => {
  const time = event.target.closest ? event.target.closest("time[datetime]") : null;
  if (!time || time.dataset.local) return;
  time.dataset.local = new Date(time.dateTime).toLocaleString(undefined, {dateStyle: "medium", timeStyle: "long"});
  time.title = `${time.dataset.local}\n${time.title}`;
});
