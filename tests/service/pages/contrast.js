// Texts whose contrast with what lies under them is below 4.5 (WCAG AA).
() => {
  const parse = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const under = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour.slice(0, 3);
    }
    return parse(getComputedStyle(document.body).backgroundColor).slice(0, 3);
  };
  const low = [];
  for (const element of document.querySelectorAll("a, p, td, th, h1, h2, span, dt, dd, button, label, summary, code")) {
    const style = getComputedStyle(element);
    if (!element.textContent.trim() || !element.getClientRects().length || element.closest("svg")) continue;
    const a = luminance(parse(style.color)), b = luminance(under(element));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push([element.tagName, element.className, element.textContent.trim().slice(0, 30), ratio.toFixed(2)]);
  }
  return low;
}
