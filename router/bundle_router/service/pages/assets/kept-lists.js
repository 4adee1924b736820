"use strict";
// Keeps named lists of runs in this browser. The name is in the address, which works without it.
(() => {
  const KEY = "bundle-router-lists";
  const MOST = 50;
  const row = document.getElementById("kept-lists");
  const button = document.getElementById("keep-list");
  if (!row || !button) return;

  const address = new URLSearchParams(location.search);
  address.delete("page");
  const here = { name: address.get("name") || "", query: address.toString() };

  const isList = (list) => typeof list?.name === "string" && typeof list?.query === "string";
  const read = () => {
    try {
      const lists = JSON.parse(localStorage.getItem(KEY));
      return Array.isArray(lists) ? lists.filter(isList) : [];
    } catch { return []; }
  };
  const write = (lists) => {
    try { localStorage.setItem(KEY, JSON.stringify(lists.slice(0, MOST))); } catch { /* not kept */ }
  };
  const isHere = (list) => list.name === here.name && list.query === here.query;

  const chip = (list) => {
    const link = document.createElement("a");
    link.className = isHere(list) ? "chip on" : "chip";
    link.href = `${location.pathname}?${list.query}`;
    link.textContent = list.name;
    return link;
  };
  const show = () => {
    const lists = read();
    row.querySelector(".chips").replaceChildren(...lists.map(chip));
    row.hidden = lists.length === 0;
    button.hidden = !here.name;
    button.textContent = lists.some(isHere) ? "Forget it in this browser" : "Keep it in this browser";
  };
  button.addEventListener("click", () => {
    const others = read().filter((list) => list.name !== here.name);
    write(read().some(isHere) ? others : [here, ...others]);
    show();
  });
  show();
})();
