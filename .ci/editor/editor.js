// The editor of the config pages: CodeMirror 6 over the form's <textarea>, which stays what is sent and what is seen
// without JavaScript.
//
// It lives in a shadow root, since there CodeMirror's styles are constructed style sheets, which `style-src 'self'`
// allows, and not <style> elements, which it does not. Colours are the page's own custom properties: they inherit.
// Marks come from the server's check: what it answers is put into #problem-list (htmx), and read from there.

import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { HighlightStyle, StreamLanguage, bracketMatching, syntaxHighlighting } from "@codemirror/language";
import { toml } from "@codemirror/legacy-modes/mode/toml";
import { lintGutter, lintKeymap, setDiagnostics } from "@codemirror/lint";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { EditorState } from "@codemirror/state";
import { EditorView, highlightActiveLine, highlightActiveLineGutter, hoverTooltip, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const KEY = String.raw`(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')`;
const PATH = String.raw`${KEY}(?:\s*\.\s*${KEY})*`;
const HEADER = new RegExp(String.raw`^\s*\[\[?\s*(${PATH})\s*\]`);
const ENTRY = new RegExp(String.raw`^\s*(${PATH})\s*=`);

const parts = (path) => (path.match(new RegExp(KEY, "g")) ?? []).map((key) => key.replace(/^["']|["']$/g, ""));

// --- the JSON Schema ---------------------------------------------------------------------------------------------

/** The alternatives that a node of the schema stands for: references, unions and the entries of lists followed. */
function forms(node, root) {
  if (typeof node !== "object" || node === null) return [];
  const next = [...(node.anyOf ?? []), ...(node.oneOf ?? []), ...(node.allOf ?? [])];
  if (node.$ref) next.push(root.definitions[node.$ref.split("/").pop()]);
  if (node.items) next.push(node.items);
  return [node, ...next.flatMap((one) => forms(one, root))];
}

/** The nodes of the schema that a path of keys leads to. */
function at(path, root) {
  let nodes = forms(root, root);
  for (const key of path)
    nodes = nodes.flatMap((node) => forms(node.properties?.[key] ?? node.additionalProperties, root));
  return nodes;
}

const described = (nodes) => nodes.find((node) => node.description)?.description ?? "";

/** The table that a line lies in, by the last header above it. */
function table(state, line) {
  for (let number = line; number > 0; number--) {
    const header = HEADER.exec(state.doc.line(number).text);
    if (header) return parts(header[1]);
  }
  return [];
}

const complete = (schema) => (context) => {
  const line = context.state.doc.lineAt(context.pos);
  const before = line.text.slice(0, context.pos - line.from);
  const entry = ENTRY.exec(before);
  const word = context.matchBefore(/["A-Za-z0-9_-]*/);
  if (before.includes("#") || (!context.explicit && word.from === word.to)) return null;
  const path = /^\s*\[/.test(before) ? [] : table(context.state, line.number);
  if (entry) {
    const values = at([...path, ...parts(entry[1])], schema).flatMap((node) =>
      node.type === "boolean" ? [true, false] : (node.enum ?? (node.const === undefined ? [] : [node.const])),
    );
    const labels = [...new Set(values.map((value) => JSON.stringify(value)))];
    return labels.length ? { from: word.from, options: labels.map((label) => ({ label, type: "constant" })) } : null;
  }
  const typed = parts(before.replace(/^\s*\[*/, "")).slice(0, /\.\s*$/.test(before) ? undefined : -1);
  const found = new Map();
  for (const node of at([...path, ...typed], schema))
    for (const [label, inner] of Object.entries(node.properties ?? {}))
      found.set(label, { label, type: "property", info: described(forms(inner, schema)) || undefined });
  return found.size ? { from: word.from, options: [...found.values()] } : null;
};

const explain = (schema) =>
  hoverTooltip((view, pos) => {
    const line = view.state.doc.lineAt(pos);
    const [header, entry] = [HEADER.exec(line.text), ENTRY.exec(line.text)];
    const path = header ? parts(header[1]) : entry && [...table(view.state, line.number), ...parts(entry[1])];
    const text = path && described(at(path, schema));
    if (!text || pos - line.from > (header ?? entry)[0].length) return null;
    const dom = Object.assign(document.createElement("div"), { textContent: text, className: "cm-about" });
    return { pos: line.from, end: line.from + (header ?? entry)[0].length, above: true, create: () => ({ dom }) };
  });

// --- looks -------------------------------------------------------------------------------------------------------

const chip = { borderRadius: "6px", border: "1px solid var(--line)" };
const mark = (tone, sign) => ({ content: `"${sign}"`, color: `var(--${tone})`, fontWeight: "700" });
const line = (tone) => ({ backgroundImage: "none", textDecoration: `underline wavy var(--${tone})`, paddingBottom: "0" });
const looks = EditorView.theme({
  "&": { color: "var(--text)", background: "var(--card)", border: "1px solid var(--line)", borderRadius: "8px", minHeight: "18rem" },
  "&.cm-focused": { outline: "3px solid var(--accent)", outlineOffset: "2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", fontSize: "13px", lineHeight: "1.55", maxHeight: "70vh", overflow: "auto" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-gutters": { background: "var(--sunk)", color: "var(--soft)", border: "0" },
  ".cm-activeLine, .cm-activeLineGutter": { background: "color-mix(in srgb, var(--accent-soft) 45%, transparent)" },
  ".cm-selectionMatch": { background: "var(--warn-soft)" },
  ".cm-searchMatch": { background: "var(--warn-soft)", outline: "1px solid var(--warn)" },
  "&.cm-focused .cm-matchingBracket": { background: "var(--accent-soft)" },
  ".cm-tooltip, .cm-panels": { background: "var(--card)", color: "var(--text)", ...chip },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { background: "var(--accent-soft)", color: "var(--accent)" },
  ".cm-completionInfo, .cm-about, .cm-diagnostic": { maxWidth: "min(32rem, 80vw)", padding: ".4rem .6rem", whiteSpace: "pre-line" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--bad)" },
  ".cm-diagnostic-warning": { borderLeftColor: "var(--warn)" },
  ".cm-lintRange-error": line("bad"),
  ".cm-lintRange-warning": line("warn"),
  ".cm-lint-marker-error, .cm-lint-marker-warning": { content: "normal", width: "auto", height: "auto" },
  ".cm-lint-marker-error::before": mark("bad", "✗"),
  ".cm-lint-marker-warning::before": mark("warn", "!"),
  ".cm-textfield, .cm-button": { background: "var(--sunk)", backgroundImage: "none", color: "var(--text)", ...chip },
});
const colours = HighlightStyle.define([
  { tag: tags.comment, color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--info)" },
  { tag: tags.string, color: "var(--good)" },
  { tag: [tags.number, tags.bool, tags.atom], color: "var(--warn)" },
  { tag: [tags.tagName, tags.bracket], color: "var(--accent)", fontWeight: "600" },
]);

// --- the page ----------------------------------------------------------------------------------------------------

/** What the server found in this file, as marks on the text. */
function marks(doc) {
  return [...document.querySelectorAll("#problem-list [data-line]")].flatMap((item) => {
    const number = Number(item.dataset.line);
    if (number > doc.lines) return []; // of a text that was longer
    const { from, text } = doc.line(number);
    const column = Math.min(Math.max(Number(item.dataset.column), 1), text.length + 1) - 1;
    const rest = text.slice(column);
    const length = Number(item.dataset.column) ? /^("[^"]*"|'[^']*'|[^\s,\]=]+|.)?/.exec(rest)[0].length : rest.length;
    const start = from + column;
    return [{ from: start, to: start + length, severity: item.dataset.level, message: item.querySelector(".said").textContent }];
  });
}

function begin(textarea, schema) {
  const label = document.querySelector(`label[for="${textarea.id}"]`);
  const host = Object.assign(document.createElement("div"), { className: "editor" });
  textarea.before(host);
  const update = EditorView.updateListener.of((change) => {
    if (!change.docChanged) return;
    textarea.value = change.state.doc.toString();
    textarea.dispatchEvent(new Event("input", { bubbles: true }));
  });
  const view = new EditorView({
    doc: textarea.value,
    root: host.attachShadow({ mode: "open" }),
    parent: host.shadowRoot,
    extensions: [
      lineNumbers(), lintGutter(), history(), bracketMatching(), closeBrackets(), highlightActiveLine(),
      highlightActiveLineGutter(), highlightSelectionMatches(), search({ top: true }), EditorView.lineWrapping,
      StreamLanguage.define(toml), syntaxHighlighting(colours), looks, update,
      autocompletion({ override: [complete(schema)], icons: false }), explain(schema),
      EditorState.readOnly.of(textarea.readOnly),
      EditorView.contentAttributes.of({
        "aria-label": label.textContent,
        autocapitalize: "off",
        spellcheck: "false",
      }),
      keymap.of([...closeBracketsKeymap, ...defaultKeymap, ...searchKeymap, ...historyKeymap, ...completionKeymap, ...lintKeymap]),
    ],
  });
  const show = () => view.dispatch(setDiagnostics(view.state, marks(view.state.doc)));
  document.body.addEventListener("htmx:afterSwap", (event) => event.target.id === "problem-list" && show());
  label.addEventListener("click", () => view.focus());
  textarea.hidden = true;
  show();
}

const textarea = document.querySelector("textarea[data-schema]");
if (textarea)
  fetch(textarea.dataset.schema)
    .then((answer) => (answer.ok ? answer.json() : {}))
    .catch(() => ({}))
    .then((schema) => begin(textarea, schema));
