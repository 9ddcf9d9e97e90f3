"""The site: `make site` renders README.md, GLOSSARY.md, CONTRIBUTING.md, the notebooks with their stored outputs, and
the public functions' docstrings (api.md) into build/site.

Sphinx reads the files as they are. The hooks below add what only a site can have: navigation; links from "(4.2)",
"exercise 3.3" and "chapter 5" to what they name, and from a glossary term's first mention in a chapter to its entry; a
search that knows exercises and terms by name; and solutions that open on a click.
"""

import json
import math
import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = {
    path.relative_to(ROOT).with_suffix("").as_posix(): path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))
}
# Terms whose names are everyday words too: linked in the chapter that explains them, and nowhere else.
EVERYDAY = {"whole": "notebooks/10_variants", "page": "notebooks/11_decoding", "rank": "notebooks/13_past_one_gpu"}
TAG = re.compile(r"\\tag\{([\d.]+)\}")

project = "FlashAttention, derived and built"
author = "The fa_tutorial authors"
project_copyright = f"2026 {author}"
html_title = project
language = "en"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx-mathjax-offline"]
root_doc = "README"
include_patterns = ["README.md", "GLOSSARY.md", "CONTRIBUTING.md", "site/api.md", "notebooks/*.ipynb"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]

nb_execution_mode = "off"
nb_render_markdown_format = "myst"  # tables, too
myst_enable_extensions = ["dollarmath", "amsmath", "html_image"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # a block of PTX or SASS is shown as it is

html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_css_files = ["course.css"]
html_favicon = "favicon.ico"
html_extra_path = ["favicon.ico"]  # at the root too, where a browser looks by itself
html_use_index = False  # the search takes its place
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "footer_content_items": "copyright.html",  # which names the authors
}
autodoc_typehints = "none"
copybutton_exclude = ".linenos, .gp, .go"


def add_toctree(app, docname, source):
    """The README needs no list of pages on a code host; the site's navigation does."""
    if docname == root_doc:
        pages = "\n".join([*CHAPTERS, "GLOSSARY", "site/api", "CONTRIBUTING"])
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n{pages}\n```\n"


# ---------------------------------------------------------------- equations and glossary terms


def equations():
    """{"4.2": the chapter that has the equation}."""
    sources = {chapter: json.loads(path.read_text(encoding="utf-8"))["cells"] for chapter, path in CHAPTERS.items()}
    return {
        tag: chapter
        for chapter, cells in sources.items()
        for cell in cells
        for tag in TAG.findall("".join(cell["source"]))
    }


def terms():
    """{"producer": ("term-producer-consumer", meaning, the chapter that explains it)}: a row of GLOSSARY.md's terms,
    once for each name that stands in its first column."""
    table = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8").partition("\n## Terms\n")[2].partition("\n## ")[0]
    found = {}
    row = r"^\| (.+?) \| (.+?) \| (?:\[\d+\]\((.+?)\.ipynb\))?"
    for term, meaning, chapter in re.findall(row, table, re.MULTILINE)[1:]:
        found |= dict.fromkeys(names(term), (anchor(term), meaning.replace("`", ""), chapter))
    return found


def names(term):
    """The names that stand in the first column of a row of the glossary."""
    return [name.strip("`)") for name in re.split(r", | \(", term)]


def anchor(term):
    """The id of a term's row in the glossary; term: its first column, in Markdown or as text."""
    return nodes.make_id(f"term-{term}")


EQUATIONS, TERMS = equations(), terms()
NUMBERED = {str(int(Path(chapter).name[:2])): chapter for chapter in CHAPTERS}
NAMES = "|".join(rf"[{name[0].upper()}{name[0]}]{re.escape(name[1:])}" for name in sorted(TERMS, key=len, reverse=True))
LINKED = re.compile(
    rf"\((?P<equation>\d+\.\d+)\)|\b[Ee]xercise (?P<exercise>(?P<of>\d+)\.\d+)|\b[Cc]hapter (?P<chapter>\d+)\b"
    rf"|(?<![\w-])(?P<term>{NAMES})(?P<plural>s?)(?![\w-])".replace(r"\ ", r"\s")
)


def term_of(match):
    """The glossary's spelling of the term that LINKED found, or None."""
    name = " ".join((match["term"] or "").split())
    return next((known for known in (name, name[:1].lower() + name[1:]) if known in TERMS), None)


def target_of(match, seen, docname):
    """Where what LINKED found leads, (page, anchor), its title and its classes; None if that is said already, or is
    this page. `seen` is added to."""
    if match["equation"] in EQUATIONS:
        return (EQUATIONS[match["equation"]], f"equation-{match['equation']}"), {}
    if match["exercise"] and match["of"] in NUMBERED:
        return (NUMBERED[match["of"]], nodes.make_id(f"exercise {match['exercise']}")), {}
    chapter = NUMBERED.get(match["chapter"], docname)
    if chapter != docname and chapter not in seen:
        seen.add(chapter)
        return (chapter, ""), {}
    if (term := term_of(match)) and TERMS[term][0] not in seen:
        row, meaning, _ = TERMS[term]
        seen.add(row)
        return ("GLOSSARY", row), {"reftitle": meaning, "classes": ["term"]}
    return None


def link_text(text, seen, docname, uri):
    """The nodes that a text becomes: equations' and exercises' numbers, and the chapters and terms that are not in
    `seen`, are links. uri(docname): where a page is."""
    parts, end = [], 0
    for match in LINKED.finditer(text):
        if found := target_of(match, seen, docname):
            (page, place), looks = found
            address = uri(page) + (f"#{place}" if place else "")
            link = nodes.reference("", match[0], refuri=address, internal=True, **looks)
            parts += [nodes.Text(text[end : match.start()]), link]
            end = match.end()
    return [*parts, nodes.Text(text[end:])]


def link_chapter(doctree, docname, uri):
    """Give each equation the id of its number, by which the search finds it, too, and make links of what the chapter's
    sentences name."""
    for block in list(doctree.findall(nodes.math_block)):
        for tag in TAG.findall(block.astext()):
            block["ids"].append(f"equation-{tag}")
            find_first(doctree, f"({tag})", f"equation-{tag}")
        # Sphinx would put lines of one equation into a split environment, where a tag is an error
        if not block.get("no-wrap"):
            block[:] = [nodes.Text(rf"\[{block.astext()}\]")]
            block["no-wrap"] = True
    seen = {TERMS[word][0] for word, chapter in EVERYDAY.items() if chapter != docname}
    sentences = (nodes.paragraph, nodes.emphasis, nodes.strong)
    for text in [text for text in doctree.findall(nodes.Text) if isinstance(text.parent, sentences)]:
        if not any(isinstance(node, nodes.reference | nodes.title) for node in (text.parent, text.parent.parent)):
            text.parent.replace(text, link_text(text.astext(), seen, docname, uri))


def name_explanations(doctree, docname):
    """The search leads from a term, after its row of the glossary, to the paragraph of its chapter that sets it in
    italics, or else names it first."""
    places = {}
    for order, paragraph in enumerate(doctree.findall(nodes.paragraph)):
        for text in paragraph.findall(nodes.Text):
            for term in filter(None, map(term_of, LINKED.finditer(text.astext()))):
                rank = (not isinstance(text.parent, nodes.emphasis), order)
                if TERMS[term][2] == docname and rank < places.get(term, ((True, math.inf),))[0]:
                    places[term] = rank, paragraph
    for term, (_, paragraph) in places.items():
        name = f"about-{TERMS[term][0]}"
        if name not in paragraph["ids"]:
            paragraph["ids"].append(name)
        find_first(doctree, term, name)


def find_first(doctree, name, target):
    """Make `target`, an id of the page, the search's first result for `name`: Sphinx ranks index entries above titles
    and text."""
    doctree.append(addnodes.index(entries=[("single", name, target, "main", None)]))


def name_rows(doctree):
    """Give each symbol's and each term's row of the glossary the id that links and the search lead to."""
    for table in doctree.findall(nodes.table):
        head, *rows = table.findall(nodes.row)
        for row in rows if head[0].astext() in ("symbol", "term") else ():
            row["ids"].append(anchor(row[0].astext()))
            for name in names(row[0].astext()):
                find_first(doctree, name, row["ids"][0])


def name_exercises(doctree):
    """The search finds "exercise 5.5", and "5.5": the heading's stars and minutes would hide it."""
    for section in list(doctree.findall(nodes.section)):
        if heading := re.match(r"Exercise (\d+\.\d+)", section[0].astext()):
            for name in heading.group(0, 1):
                find_first(doctree, name, section["ids"][0])
            section["ids"].append(nodes.make_id(heading[0]))  # the links' name, which its minutes don't change


def fold_solutions(doctree):
    """What hint("1.2") and solution("1.2") show opens on a click."""
    for cell in doctree.findall(
        lambda node: isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"
    ):
        if call := re.match(r"(hint|solution)\(", cell.astext()):
            cell.update_all_atts(
                {"hide_mode": "output", "prompt_show": f"Show the {call[1]}", "prompt_hide": f"Hide the {call[1]}"}
            )


def add_links(app, doctree):
    docname = app.env.docname
    if docname == "GLOSSARY":
        name_rows(doctree)
    if docname in CHAPTERS:
        fold_solutions(doctree)
        name_exercises(doctree)
        name_explanations(doctree, docname)
        link_chapter(
            doctree, docname, lambda target: app.builder.get_relative_uri(docname, target) if target != docname else ""
        )


def show_docstring(app, what, name, obj, options, lines):
    """A docstring is plain text, which the page wraps: the break after a full line goes, unless an argument or an
    assignment follows."""
    text = re.sub(r"(?<=.{90})\n(?!\w+(?:, \w+)*: | *\w+ = ) *(?=\S)", " ", "\n".join(lines))
    lines[:] = [".. code-block:: text", "", *(f"   {line}" for line in text.splitlines()), ""]


def setup(app):
    app.connect("autodoc-process-docstring", show_docstring)
    app.connect("source-read", add_toctree)
    app.connect("doctree-read", add_links)
