// Controls, links and pictures that a screen reader has no words for.
() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea, button, a, img, svg, audio")]
  .filter((element) => !(element.labels && element.labels.length) && !element.getAttribute("aria-label")
    && !element.textContent.trim() && element.getAttribute("alt") === null
    && !element.querySelector("img[alt], svg[aria-label]"))
  .map((element) => element.outerHTML.slice(0, 200))
