// What no page of ours has: handlers, styles, frames, addresses elsewhere.
() => [...document.querySelectorAll("*")].flatMap((element) => [
  ...[...element.attributes]
    .filter((a) => /^on/i.test(a.name) || a.name === "style" || a.name === "srcdoc"
      || (/^(href|src|action|formaction|xlink:href)$/i.test(a.name) && !/^(\/|#|http:\/\/127\.0\.0\.1)/.test(a.value)))
    .map((a) => `${element.tagName} ${a.name}=${a.value.slice(0, 80)}`),
  ...(/^(IFRAME|OBJECT|EMBED|STYLE|BASE|FRAME)$/.test(element.tagName) ? [element.tagName] : []),
])
