"""What converters of HTML to Markdown keep of constructs that documentation is made of.

    python tests/benchmarks/page_fidelity.py [--prepared] [--show CONSTRUCT]

Prints a table: candidates beside constructs, `+` kept, `-` lost or changed. A candidate that is not
installed is left out; `pip install markdownify html2text html-to-markdown trafilatura markitdown
pypandoc_binary htmd-py turbohtml` has all of them. `ours` is what `docs.fetch` makes of a page, the
others are run as their documentation says first, with what they call faithful or GitHub's Markdown
where they ask for a choice. With `--prepared` each gets the main part as `docs.fetch` prepares it
for its own converter, which says what is left to the converter.

Every construct says what must be read off the text, in any dialect: `want` are patterns that must be
there, in this order; `never` is one that must not.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "router"))

Convert = Callable[[str], str]
BASE: Final = "https://docs.example.org/guide/page.html"
PADDING: Final = (
    "<p>This paragraph is long enough to be taken for the content of an article by programs that"
    " look for it, because they count words, and a construct of a line would be too short.</p>"
)


@dataclass(frozen=True, slots=True)
class Construct:
    """Something that pages have, and how to tell that a reader of the Markdown still gets it."""

    name: str
    html: str
    want: tuple[str, ...]
    never: str = ""

    def is_kept_in(self, markdown: str) -> bool:
        """Return whether all of `want` is there in its order, and nothing of `never`."""
        position = 0
        for pattern in self.want:
            found = re.compile(pattern, re.M).search(markdown, position)
            if found is None:
                return False
            position = found.end()
        return not (self.never and re.search(self.never, markdown, re.M))


FENCED_DEF: Final = (
    r"(```|~~~).*\ndef f\(\):\n    return 1\n+(```|~~~)|^    def f\(\):\n        return 1$",
)
CODE_TABLE: Final = "def f():\n    return 1\n"

CONSTRUCTS: Final = (
    Construct(
        "code: spans and newlines",
        "<pre><code><span>def</span> f():\n    <span>return</span> 1\n</code></pre>",
        FENCED_DEF,
    ),
    Construct("code: br ends lines", "<pre>def f():<br>    return 1<br></pre>", FENCED_DEF),
    Construct(
        "code: a div a line",
        "<pre><code><div>def f():</div><div>    return 1</div></code></pre>",
        FENCED_DEF,
    ),
    Construct(
        "code: nested divs, indent in a span",
        '<pre data-language="py"><code><div class="ec-line"><div class="code">def f():</div></div>'
        '<div class="ec-line"><div class="code"><span class="indent">    </span>return 1</div></div>'
        "</code></pre>",
        FENCED_DEF,
    ),
    Construct(
        "code: language of a parent's class",
        '<div class="highlight-python notranslate"><div class="highlight"><pre>x = 1\n</pre></div></div>',
        (r"(```|~~~) ?\{?\.?python", "x = 1"),
    ),
    Construct(
        "code: language of the code's class",
        '<pre><code class="language-python">x = 1\n</code></pre>',
        (r"(```|~~~) ?\{?\.?python", "x = 1"),
    ),
    Construct(
        "code: fences inside",
        "<pre>a\n```\nb\n```\n</pre>",
        (r"^(````+|~~~+)\n?.*\n?a\n```\nb\n```\n(````+|~~~+)|^    a\n    ```\n    b\n    ```",),
    ),
    Construct("code: blank lines stay", "<pre>a\n\n\nb\n</pre>", (r"a\n\n\n *b",)),
    Construct(
        "code: text is not escaped",
        "<pre>*a* _b_ &lt;T&gt; [x](y) \\n\n</pre>",
        (re.escape("*a* _b_ <T> [x](y) \\n"),),
    ),
    Construct(
        "code: in a list item",
        "<ol><li><p>Run:</p><pre>if x:\n    y\n</pre></li><li>Next</li></ol>",
        (r"1\. +Run:", r"\n( {2,})(?:(?:```|~~~).*\n\1)?if x:\n\1    y\n", r"2\. +Next"),
    ),
    Construct(
        "code numbers: Pygments table",
        '<table class="highlighttable"><tr><td class="linenos"><div class="linenodiv"><pre>1\n2</pre>'
        f'</div></td><td class="code"><div class="highlight"><pre>{CODE_TABLE}</pre></div></td></tr>'
        "</table>",
        FENCED_DEF,
    ),
    Construct(
        "code numbers: Rouge table",
        '<div class="language-python highlighter-rouge"><div class="highlight"><pre class="highlight">'
        '<code><table class="rouge-table"><tbody><tr><td class="gutter gl"><pre class="lineno">1\n2\n'
        f'</pre></td><td class="code"><pre>{CODE_TABLE}</pre></td></tr></tbody></table></code></pre>'
        "</div></div>",
        FENCED_DEF,
    ),
    Construct(
        "code numbers: Chroma table",
        '<div class="highlight"><table class="lntable"><tr><td class="lntd"><pre><code>'
        '<span class="lnt">1\n</span><span class="lnt">2\n</span></code></pre></td><td class="lntd">'
        f'<pre><code class="language-python">{CODE_TABLE}</code></pre></td></tr></table></div>',
        FENCED_DEF,
    ),
    Construct(
        "inline code with a backtick",
        "<p>Use <code>a`b</code> now.</p>",
        (r"Use ``+ ?a`b ?``+ now",),
    ),
    Construct("a power", "<p>Up to 2<sup>53</sup> - 1.</p>", (r"2.*53", "1"), r"2\[?53\b"),
    Construct("an index", "<p>Take x<sub>12</sub> of y.</p>", (r"x.*12",), r"x12\b"),
    Construct(
        "struck text",
        "<p>It is <del>always</del> never safe.</p>",
        (r"(~~?|<del>|<s>)always(~~?|</del>|</s>)", "never safe"),
    ),
    Construct(
        "blanks around inline elements",
        "<p>a <b>bold</b> <i>thin</i> z</p>",
        (r"a \*\*bold\*\* [*_]thin[*_] z|a __bold__ [*_]thin[*_] z",),
    ),
    Construct("br in a paragraph", "<p>one<br>two</p>", (r"one( {2}|\\)?\n+two",)),
    Construct(
        "snake_case and *args as written",
        "<p>Set max_token_count and *args, f(**kw).</p>",
        (r"max_token_count and \*args, f\(\*\*kw\)",),
    ),
    Construct("a type in angles", "<p>A List&lt;String&gt; x.</p>", (r"List\\?<String\\?>",)),
    Construct(
        "table",
        "<table><thead><tr><th>Type</th><th>Name</th></tr></thead><tbody><tr><td>int</td><td>size</td>"
        "</tr></tbody></table>",
        (r"\| *Type *\| *Name *\|?\n\|[ :-]*-+[ :]*\|[ :]*-+[ :]*\|?\n\| *int *\| *size *\|?",),
    ),
    Construct(
        "table with a caption",
        "<table><caption>Methods</caption><tr><th>Type</th><th>Name</th></tr><tr><td>int</td>"
        "<td>size</td></tr></table>",
        (r"Methods|Type", r"\|[ :-]*-+[ :]*\|[ :]*-+[ :]*\|?\n\| *int *\| *size *\|?"),
        r"\A(?![\s\S]*Methods)",
    ),
    Construct(
        "table with a colgroup",
        "<table><colgroup><col><col></colgroup><tr><th>Type</th><th>Name</th></tr><tr><td>int</td>"
        "<td>size</td></tr></table>",
        (r"\| *Type *\| *Name *\|?\n\|[ :-]*-+[ :]*\|[ :]*-+[ :]*\|?\n\| *int *\| *size *\|?",),
    ),
    Construct(
        "table with a foot",
        "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1</td></tr></tbody><tfoot><tr>"
        "<td>sum</td></tr></tfoot></table>",
        (r"a *\|\n\|[ :-]*-+[ :]*\|\n\| *1 *\|\n\| *sum *\|",),
    ),
    Construct(
        "table: a cell of two rows",
        "<table><tr><th>Kind</th><th>Name</th><th>Size</th></tr><tr><td rowspan=2>int</td><td>i8</td>"
        "<td>1</td></tr><tr><td>i16</td><td>2</td></tr></table>",
        (r"\| *int *\| *i8 *\| *1 *\|?\n\| *(int|[\"”]?) *\| *i16 *\| *2 *\|?$",),
    ),
    Construct(
        "table: a cell of two columns",
        "<table><tr><th>a</th><th>b</th><th>c</th></tr><tr><td colspan=2>ab</td><td>z</td></tr></table>",
        (r"\| *ab *\| *(ab)? *\| *z *\|?$",),
    ),
    Construct(
        "table: a bar in a cell",
        "<table><tr><th>Type</th><th>Name</th></tr><tr><td><code>int|str</code></td><td>x</td></tr>"
        "</table>",
        (r"int\\\|str|int&#124;str", "x"),
    ),
    Construct(
        "table: lines of code in a cell",
        "<table><tr><th>Do</th><th>How</th></tr><tr><td>x</td><td><pre>if a:\n    b</pre></td></tr></table>",
        (r"if a: *(`? *<br ?/?> *`?|&#10;|\n|<[a-z]+>)(    |&nbsp;{4}|\xa0{4}) *b",),
    ),
    Construct(
        "table: two paragraphs in a cell",
        "<table><tr><th>k</th><th>v</th></tr><tr><td>x</td><td><p>One.</p><p>Two.</p></td></tr></table>",
        (r"\| *x *\|.*One\. *(<br ?/?>|</p>| )+.*Two\.",),
    ),
    Construct(
        "table: a list in a cell",
        "<table><tr><th>k</th><th>v</th></tr><tr><td>x</td><td><ul><li>One</li><li>Two</li></ul></td>"
        "</tr></table>",
        (r"\| *x *\|.*One.*(<br|<li|[-*•;,]).*Two",),
    ),
    Construct(
        "table without a head",
        "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>",
        (r"a *\| *b", r"c *\| *d"),
    ),
    Construct(
        "list: nested",
        "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ul>",
        (r"^ {0,3}[-*+] +a\n+ {2,}[-*+] +b\n+ {4,}[-*+] +c\n+ {0,3}[-*+] +d",),
    ),
    Construct("list: start", "<ol start=4><li>a</li><li>b</li></ol>", (r"4\. +a", r"5\. +b")),
    Construct(
        "list: value and reversed",
        "<ol><li value=7>a</li><li>b</li></ol>",
        (r"7\. +a", r"8\. +b"),
    ),
    Construct(
        "list: tasks",
        '<ul><li><input type="checkbox" checked disabled> done</li><li><input type="checkbox" disabled>'
        " open</li></ul>",
        (r"(\[[xX]\]|☒|☑|✓) *done", r"(\[ \]|☐) *open"),
    ),
    Construct(
        "definitions",
        "<dl><dt>size</dt><dd><p>How many.</p></dd><dt>kind</dt><dd>Which.</dd></dl>",
        (r"size", r"\n+(:|[>-]|  )? *How many\.", r"kind", r"\n+(:|[>-]|  )? *Which\."),
        r"size.*How many",
    ),
    Construct(
        "definitions: nested (an API page)",
        "<dl><dt><code>class A</code></dt><dd><p>Does.</p><dl><dt><code>run()</code></dt><dd><p>Runs.</p>"
        "</dd></dl></dd></dl>",
        (
            r"class A",
            r"^(: +|  +|> )Does\.",
            r"^(  +|> ).*run\(\)",
            r"^(   +|> +[>:]|  +:) *Runs\.",
        ),
    ),
    Construct(
        "quote with code",
        "<blockquote><p>See:</p><pre>a\n  b\n</pre></blockquote>",
        (r"^> *See:", r"^> *(```|~~~).*\n> a\n>   b\n> *(```|~~~)|^>     a\n>       b"),
    ),
    Construct(
        "a figure's caption",
        '<figure><img src="/a.png" alt="Parts"><figcaption>Fig. 1: the parts</figcaption></figure>',
        (r"Parts", r"Fig\. 1: the parts"),
    ),
    Construct(
        "details that are closed",
        "<details><summary>More</summary><p>Hidden gem.</p></details>",
        ("More", r"Hidden gem\."),
    ),
    Construct(
        "an aside in the text",
        '<p>Run it.</p><aside class="caution"><p>Caution</p><p>This deletes the data.</p></aside>',
        (r"Caution", r"This deletes the data\."),
    ),
    Construct(
        "a closed tab panel",
        '<div><ul role="tablist"><li role="tab">Python</li><li role="tab">Node</li></ul><div role="tabpanel">'
        '<pre>pip install a</pre></div><div role="tabpanel" hidden><pre>npm i a</pre></div></div>',
        ("pip install a", "npm i a"),
    ),
    Construct(
        "text in a form",
        '<form action="./x.aspx"><h2>Install</h2><p>Run setup twice.</p></form>',
        (r"## *Install|Install\n-+", r"Run setup twice\."),
    ),
    Construct(
        "a formula's source",
        '<p>So <math><semantics><mrow><mi>x</mi></mrow><annotation encoding="application/x-tex">x^2+y'
        "</annotation></semantics></math> holds.</p>",
        (r"x\^2\+y", "holds"),
    ),
    Construct(
        "tag soup",
        "<p>one<p>two<ul><li>a<li>b</ul><table><tr><td>c<td>d<tr><td>e<td>f</table>",
        (r"one\n\ntwo", r"[-*+] +a\n+[-*+] +b", r"c *\| *d", r"e *\| *f"),
    ),
    Construct(
        "no scripts, styles and templates",
        "<p>text</p><script>var bad=1</script><style>.bad{}</style><template>bad</template>"
        "<noscript>bad</noscript>",
        ("text",),
        "bad",
    ),
    Construct(
        "a link that only runs a script",
        '<p><a href="javascript:alert(1)">click</a> on</p>',
        ("click", "on"),
        "javascript:",
    ),
    Construct(
        "text that looks like markup",
        "<p>&lt;img src=x onerror=y&gt; and [a](javascript:b)</p>",
        ("img src=x", "and"),
        r"(?<!\\)<img|(?<!\\)\]\(javascript",
    ),
    Construct(
        "a head with a permalink",
        '<h2 id="a">Use<a class="headerlink" href="#a" title="Link to this heading">¶</a></h2><p>b</p>',
        (r"^## *Use *$|^Use *\n-+$", "b"),
        "¶",
    ),
)


def page_of(html: str) -> str:
    """Return a page whose content the construct is, with enough text around it to be one."""
    return (
        "<!doctype html><html><head><meta charset=utf-8><title>Title</title></head><body><main>"
        f"<article><h1>Page</h1>{PADDING}{html}{PADDING}</article></main></body></html>"
    )


def _markdownify() -> Convert:
    convert = import_module("markdownify").markdownify
    style = {"heading_style": "atx", "sup_symbol": "^", "sub_symbol": "~"}
    escapes = {"escape_asterisks": False, "escape_underscores": False}
    return lambda html: str(convert(html, **style, **escapes))


def _html2text() -> Convert:
    module = import_module("html2text")

    def convert(html: str) -> str:
        writer = module.HTML2Text(baseurl=BASE, bodywidth=0)
        writer.pad_tables = True
        writer.include_sup_sub = True
        writer.backquote_code_style = True
        return str(writer.handle(html))

    return convert


def _html_to_markdown() -> Convert:
    module = import_module("html_to_markdown")
    options = module.ConversionOptions(sup_symbol="^", sub_symbol="~")
    return lambda html: str(module.convert(html, options).content)


def _trafilatura() -> Convert:
    module = import_module("trafilatura")

    def convert(html: str) -> str:
        made = module.extract(
            html,
            output_format="markdown",
            include_formatting=True,
            include_links=True,
            include_images=True,
            favor_recall=True,
        )
        return str(made or "")

    return convert


def _markitdown() -> Convert:
    converter = import_module("markitdown").MarkItDown()

    def convert(html: str) -> str:
        stream = io.BytesIO(html.encode())
        return str(converter.convert_stream(stream, file_extension=".html").markdown)

    return convert


def _pandoc() -> Convert:
    convert = import_module("pypandoc").convert_text
    return lambda html: str(convert(html, "gfm", format="html", extra_args=["--wrap=none"]))


def _htmd() -> Convert:
    convert = import_module("htmd").convert_html
    return lambda html: str(convert(html))


def _turbohtml() -> Convert:
    module = import_module("turbohtml")
    options = module.Markdown(
        inline=module.Markdown.Inline(sup="^", sub="~"),
        escaping=module.Markdown.Escaping(asterisks=False, underscores=False),
    )

    def convert(html: str) -> str:
        page = module.parse(html)
        return str((page.find("main") or page).to_markdown(options))

    return convert


def prepared(html: str) -> str:
    """Return the HTML of a page's main part, as ours gives it to its converter, with the standard's
    attributes for what ours notes in its own.
    """
    from bundle_router.local_tools.docs.content import read_content
    from bundle_router.local_tools.docs.deadline import Deadline
    from bundle_router.local_tools.docs.soup import CELL_BREAK, KEPT_SPACE, Tag

    content = read_content(
        html, base=BASE, anchor="", keeps_image=lambda url: True, deadline=Deadline(60)
    )
    for row in content.main.find_all("tr", attrs={"data-head": True}):
        for cell in row.find_all("td"):
            cell.name = "th"
    for pre in content.main.find_all("pre", attrs={"data-language": True}):
        pre.wrap(Tag(name="pre"))
        pre.name = "code"
        pre["class"] = f"language-{pre['data-language']}"
    for item in content.main.find_all("li", attrs={"data-number": True}):
        item["value"] = item["data-number"]
        if item.parent is not None and item.find_previous_sibling("li") is None:
            item.parent["start"] = item["data-number"]
    main = str(content.main).replace(CELL_BREAK, "<br>").replace(KEPT_SPACE, "\xa0")
    return f"<!doctype html><html><body><main>{main}</main></body></html>"


def _ours() -> Convert:
    from bundle_router.local_tools.docs.deadline import Deadline
    from bundle_router.local_tools.docs.markdown import to_markdown

    def convert(html: str) -> str:
        return to_markdown(
            html, base=BASE, keeps_image=lambda url: True, deadline=Deadline(60)
        ).markdown

    return convert


CANDIDATES: Final[tuple[tuple[str, str, Callable[[], Convert]], ...]] = (
    ("markdownify", "markdownify", _markdownify),
    ("html2text", "html2text", _html2text),
    ("html-to-markdown", "html-to-markdown", _html_to_markdown),
    ("trafilatura", "trafilatura", _trafilatura),
    ("markitdown", "markitdown", _markitdown),
    ("pandoc", "pypandoc_binary", _pandoc),
    ("htmd", "htmd-py", _htmd),
    ("turbohtml", "turbohtml", _turbohtml),
    ("ours", "bundle-router", _ours),
)
"""Name in the table, distribution, and what loads it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate on this machine: its version, and what it made of each construct."""

    name: str
    version: str
    markdown: dict[str, str]
    kept: frozenset[str]
    seconds: float


def measure(
    name: str, distribution: str, load: Callable[[], Convert], *, prepare: bool
) -> Measured | None:
    """Return what a candidate keeps; None where it is not installed."""
    try:
        convert = load()
        number = version(distribution)
    except ImportError:
        return None
    markdown: dict[str, str] = {}
    seconds = 0.0
    for construct in CONSTRUCTS:
        page = page_of(construct.html)
        if prepare and name != "ours":
            page = prepared(page)
        began = time.perf_counter()
        markdown[construct.name] = convert(page)
        seconds += time.perf_counter() - began
    kept = {each.name for each in CONSTRUCTS if each.is_kept_in(markdown[each.name])}
    return Measured(name, number, markdown, frozenset(kept), seconds)


def table_of(candidates: list[Measured]) -> str:
    """Return the table in Markdown: a row a construct, a column a candidate."""
    heads = [f"{each.name} {each.version}" for each in candidates]
    lines = [_row("construct", heads), _row("---", ["---"] * len(heads))]
    for construct in CONSTRUCTS:
        marks = ["+" if construct.name in each.kept else "-" for each in candidates]
        lines.append(_row(construct.name, marks))
    totals = [f"{len(each.kept)} of {len(CONSTRUCTS)}" for each in candidates]
    lines.append(_row("**kept**", totals))
    lines.append(
        _row("ms a page", [f"{1000 * c.seconds / len(CONSTRUCTS):.1f}" for c in candidates])
    )
    return "\n".join(lines)


def _row(first: str, rest: list[str]) -> str:
    return f"| {' | '.join([first, *rest])} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prepared", action="store_true", help="give each our prepared main part")
    parser.add_argument("--show", help="print what each candidate makes of one construct")
    asked = parser.parse_args()
    measured = [measure(*candidate, prepare=asked.prepared) for candidate in CANDIDATES]
    candidates = [each for each in measured if each is not None]
    if asked.show is None:
        print(table_of(candidates))
        return
    for each in candidates:
        mark = "+" if asked.show in each.kept else "-"
        print(f"{'=' * 30} {mark} {each.name}\n{each.markdown[asked.show]}\n")


if __name__ == "__main__":
    main()
