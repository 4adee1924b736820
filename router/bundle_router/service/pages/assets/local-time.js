"use strict";
// Shows the times of a page in the reader's own zone, if they choose so. Without it they are UTC.
(() => {
  const KEY = "bundle-router-local-times";
  const button = document.getElementById("zone-choice");
  if (!button) return;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "this browser's zone";
  const two = (number) => String(number).padStart(2, "0");

  const chosen = () => {
    try { return localStorage.getItem(KEY) === "1"; } catch { return false; }
  };
  const choose = (local) => {
    try { localStorage.setItem(KEY, local ? "1" : "0"); } catch { /* it holds for this page */ }
  };

  const localText = (date, withDay) => {
    const clock = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
    if (!withDay) return clock;
    const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
    return `${day} ${clock}`;
  };

  let local = chosen();
  const show = () => {
    for (const time of document.querySelectorAll("time[datetime]")) {
      const date = new Date(time.dateTime);
      if (Number.isNaN(date.getTime())) continue;
      time.dataset.utc ??= time.textContent;
      time.textContent = local ? localText(date, time.dataset.utc.length > 8) : time.dataset.utc;
    }
    for (const place of document.querySelectorAll(".zone")) place.textContent = local ? zone : "UTC";
    button.textContent = local ? "Show UTC" : "Show local time";
  };
  button.addEventListener("click", () => {
    local = !local;
    choose(local);
    show();
  });
  document.body.addEventListener("htmx:afterSwap", show);
  button.hidden = false;
  show();
})();
