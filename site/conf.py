"""The site: `make site` renders README.md, GLOSSARY.md, CONTRIBUTING.md and the notebooks, with their stored outputs, into build/site.

Sphinx reads the files as they are. The hooks below add what only a site can have: navigation, links from "(4.2)" to the equation of that
number, links from a glossary term's first mention in a chapter to its entry, solutions that open on a click, and buttons for Colab and Binder.
"""

import json
import re
import tomllib
from pathlib import Path

from docutils import nodes

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
# Terms whose names are everyday words too: linked in the chapter that explains them, and nowhere else.
EVERYDAY = {"whole": "notebooks/10_variants", "page": "notebooks/11_decoding"}
TAG = re.compile(r"\\tag\{([\d.]+)\}")

project = "FlashAttention, derived and built"
author = "the authors of the course"
project_copyright = author
html_title = project
language = "en"
extensions = ["myst_nb", "sphinx_copybutton", "sphinx-mathjax-offline"]
root_doc = "README"
include_patterns = ["README.md", "GLOSSARY.md", "CONTRIBUTING.md", "notebooks/*.ipynb"]
html_additional_pages = {"index": "redirect.html"}
templates_path = ["templates"]

nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "amsmath", "html_image"]
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]  # a block of PTX or SASS is shown as it is

html_theme = "sphinx_book_theme"
html_static_path = ["static"]
html_css_files = ["course.css"]
html_favicon = "static/favicon.svg"
html_context = {"default_mode": "auto"}  # light or dark as the reader's system is
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"show_toc_level": 2, "use_download_button": False, "use_fullscreen_button": False, "home_page_in_toc": True}
copybutton_exclude = ".linenos, .gp, .go"

# The one place for the address is [project.urls] in pyproject.toml; without it no page has a button.
repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {}).get("Repository", "")


def add_buttons(app, config):
    """With the repository's address known, each chapter can be opened on Colab and on Binder."""
    if config.repository:
        config.html_theme_options |= {
            "repository_url": config.repository,
            "repository_branch": "main",
            "use_repository_button": True,
            "launch_buttons": {
                "colab_url": "https://colab.research.google.com",
                "binderhub_url": "https://mybinder.org",
                "notebook_interface": "jupyterlab",
            },
        }


def add_toctree(app, docname, source):
    """The README needs no list of pages on a code host; the site's navigation does."""
    if docname == root_doc:
        source[0] += "\n\n```{toctree}\n:hidden:\n" + "\n".join([*CHAPTERS, "GLOSSARY", "CONTRIBUTING"]) + "\n```\n"


# ---------------------------------------------------------------- equations and glossary terms


def equations():
    """{"4.2": the chapter that has the equation}."""
    sources = {chapter: json.loads(path.read_text(encoding="utf-8"))["cells"] for chapter, path in CHAPTERS.items()}
    return {tag: chapter for chapter, cells in sources.items() for cell in cells for tag in TAG.findall("".join(cell["source"]))}


def terms():
    """{"producer": ("term-producer-consumer", meaning)}: a row of GLOSSARY.md's terms, once for each name that stands in its first column."""
    table = (ROOT / "GLOSSARY.md").read_text(encoding="utf-8").partition("\n## Terms\n")[2].partition("\n## ")[0]
    found = {}
    for term, meaning in re.findall(r"^\| (.+?) \| (.+?) \|", table, re.MULTILINE)[1:]:
        for name in re.split(r", | \(", term):
            found[name.strip("`)")] = (anchor(term), meaning.replace("`", ""))
    return found


def anchor(term):
    """The id of a term's row in the glossary; term: its first column, in Markdown or as text."""
    return nodes.make_id(f"term-{term}")


EQUATIONS, TERMS = equations(), terms()
NAMES = "|".join(rf"[{name[0].upper()}{name[0]}]{re.escape(name[1:])}" for name in sorted(TERMS, key=len, reverse=True))
LINKED = re.compile(rf"\((?P<equation>\d+\.\d+)\)|(?<![\w-])(?P<term>{NAMES})(?P<plural>s?)(?![\w-])".replace(r"\ ", r"\s"))


def link_text(text, seen, uri):
    """The nodes that a text becomes: its equations' numbers and the terms that are not in `seen` are links. uri(docname): where a page is."""
    parts, end = [], 0
    for match in LINKED.finditer(text):
        name = " ".join((match["term"] or "").split())
        name = name if name in TERMS else name[:1].lower() + name[1:]
        if match["equation"] in EQUATIONS:
            number = match["equation"]
            link = nodes.reference("", match[0], refuri=f"{uri(EQUATIONS[number])}#equation-{number}", internal=True)
        elif match["term"] and TERMS[name][0] not in seen:
            row, meaning = TERMS[name]
            seen.add(row)
            link = nodes.reference("", match[0], refuri=f"{uri('GLOSSARY')}#{row}", reftitle=meaning, internal=True, classes=["term"])
        else:
            continue
        parts += [nodes.Text(text[end : match.start()]), link]
        end = match.end()
    return [*parts, nodes.Text(text[end:])]


def link_chapter(doctree, docname, uri):
    """Give each equation the id of its number, and make links of what the chapter's sentences name."""
    for block in doctree.findall(nodes.math_block):
        block["ids"] += [f"equation-{tag}" for tag in TAG.findall(block.astext())]
        if not block.get("no-wrap"):  # Sphinx would put lines of one equation into a split environment, where a tag is an error
            block[:] = [nodes.Text(rf"\[{block.astext()}\]")]
            block["no-wrap"] = True
    seen = {TERMS[word][0] for word, chapter in EVERYDAY.items() if chapter != docname}
    sentences = (nodes.paragraph, nodes.emphasis, nodes.strong)
    for text in [text for text in doctree.findall(nodes.Text) if isinstance(text.parent, sentences)]:
        if not any(isinstance(node, nodes.reference | nodes.title) for node in (text.parent, text.parent.parent)):
            text.parent.replace(text, link_text(text.astext(), seen, uri))


def name_terms(doctree):
    """Give each row of the glossary that explains a term the id that links lead to."""
    rows = {row for row, _ in TERMS.values()}
    for row in doctree.findall(nodes.row):
        if (name := anchor(row[0].astext())) in rows:
            row[0]["ids"].append(name)


def fold_solutions(doctree):
    """What hint("1.2") and solution("1.2") show opens on a click."""
    for cell in doctree.findall(lambda node: isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"):
        if call := re.match(r"(hint|solution)\(", cell.astext()):
            cell.update_all_atts({"hide_mode": "output", "prompt_show": f"Show the {call[1]}", "prompt_hide": f"Hide the {call[1]}"})


def add_links(app, doctree):
    docname = app.env.docname
    if docname == "GLOSSARY":
        name_terms(doctree)
    if docname in CHAPTERS:
        fold_solutions(doctree)
        link_chapter(doctree, docname, lambda target: app.builder.get_relative_uri(docname, target) if target != docname else "")


def setup(app):
    app.add_config_value("repository", "", "html", str)
    app.connect("config-inited", add_buttons)
    app.connect("source-read", add_toctree)
    app.connect("doctree-read", add_links)
