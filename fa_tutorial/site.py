"""Render the course for reading without running it: `python -m fa_tutorial.site`, or `make html`; the site lies in build/html.

nbconvert turns each notebook, with its stored outputs, into a page, README.md into the first one, and GLOSSARY.md into one that each chapter links to. The site mirrors the repository's
folders, so that a relative link means the same in both; only links to notebooks and to Markdown files become links to their pages.
Formulas are drawn by MathJax, which a page loads from its usual host; without it they stand as TeX.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "html"
INDEX = ROOT / "README.md"
GLOSSARY = ROOT / "GLOSSARY.md"
# [text](target.ipynb#anchor), the target being a path and no address.
SOURCE_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)\s#]+\.(?:ipynb|md))(?=(?:#[^)\s]*)?\))")


class _Targets(HTMLParser):
    """Collects the links and image sources of a page, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.links += filter(None, (attributes.get("src"), attributes.get("href") if tag in ("a", "link") else None))
        self.anchors |= {attributes["id"]} if attributes.get("id") else set()


def _targets(html: str) -> _Targets:
    targets = _Targets()
    targets.feed(html)
    return targets


def _local(links: Sequence[str], page: Path) -> dict[str, tuple[Path, str]]:
    """(file, anchor) that each of a page's links leads to; addresses with a scheme or a host, and data in place, are left out."""
    parts = {link: urlsplit(link) for link in links}
    return {
        link: ((page.parent / unquote(part.path)).resolve() if part.path else page, unquote(part.fragment))
        for link, part in parts.items()
        if not part.scheme and not part.netloc
    }


def broken_links(folder: Path) -> list[str]:
    """A line for each link or image of a page in `folder` that leads to no file of the folder, or to no anchor of its page."""
    folder = folder.resolve()
    pages = {page: _targets(page.read_text(encoding="utf-8")) for page in sorted(folder.rglob("*.html"))}
    faults = []
    for page, targets in pages.items():
        for link, (file, anchor) in _local(targets.links, page).items():
            if not file.is_file() or not file.is_relative_to(folder):
                faults.append(f"{page.relative_to(folder)}: {link} leads to no file of the site")
            elif anchor and file in pages and anchor not in pages[file].anchors:
                faults.append(f"{page.relative_to(folder)}: {link} leads to no anchor of that page")
    return faults


def page_of(source: str) -> str:
    """The name of a source's page: notebooks/01_x.html for notebooks/01_x.ipynb, index.html for README.md."""
    path = Path(source)
    return (path.with_name("index.html") if path.name == INDEX.name else path.with_suffix(".html")).as_posix()


def link_pages(markdown: str) -> str:
    """The text with each link to a notebook or a Markdown file turned into a link to its page."""
    return SOURCE_LINK.sub(lambda match: page_of(match[1]), markdown)


def _read(source: Path):
    """A notebook as it is; a Markdown file as a notebook of one cell."""
    import nbformat

    if source.suffix == ".ipynb":
        return nbformat.read(source, as_version=4)
    text = nbformat.v4.new_markdown_cell(source.read_text(encoding="utf-8"), id="text")
    return nbformat.v4.new_notebook(cells=[text])


def title_of(notebook) -> str:
    """The first heading of a notebook's first cell."""
    return re.search(r"^# (.+)$", notebook.cells[0].source, re.MULTILINE)[1]


def _add_ways_on(notebook, before: Path | None, after: Path | None) -> None:
    """Put links to the contents, the glossary, and the chapters before and after above and below a chapter's text."""
    import nbformat

    ways = ["[Contents](../index.html)", f"[Glossary](../{page_of(GLOSSARY.name)})"]
    ways += [f"{way}: [{title_of(_read(path))}]({page_of(path.name)})" for way, path in (("before", before), ("next", after)) if path]
    top, end = (nbformat.v4.new_markdown_cell(" · ".join(ways), id=name) for name in ("ways-on-top", "ways-on-end"))
    notebook.cells = [top, *notebook.cells, end]


def _write(notebook, title: str, source: Path, folder: Path) -> None:
    """Write the page of a source, with the outputs that it holds, and copy what it shows or links to, but for pages."""
    from nbconvert import HTMLExporter

    page = folder / page_of(source.relative_to(ROOT).as_posix())
    page.parent.mkdir(parents=True, exist_ok=True)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = link_pages(cell.source)
    html, _ = HTMLExporter().from_notebook_node(notebook, resources={"metadata": {"name": title}})
    page.write_text(html, encoding="utf-8")
    for file, _ in _local(_targets(html).links, page).values():
        original = ROOT / file.relative_to(folder) if file.is_relative_to(folder) else None
        if original and original.is_file() and not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, file)


def build(folder: Path) -> None:
    """Render README.md, GLOSSARY.md, the Markdown files that README.md links to, and every notebook into `folder`, which is emptied first."""
    folder = folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    index = _read(INDEX)
    linked = [ROOT / link for link in SOURCE_LINK.findall(index.cells[0].source) if link.endswith(".md")]
    for source in dict.fromkeys((INDEX, GLOSSARY, *linked)):
        notebook = _read(source)
        _write(notebook, title_of(notebook), source, folder)
    chapters = sorted((ROOT / "notebooks").glob("*.ipynb"))
    for source, before, after in zip(chapters, [None, *chapters[:-1]], [*chapters[1:], None], strict=True):
        notebook = _read(source)
        title = title_of(notebook)
        _add_ways_on(notebook, before, after)
        _write(notebook, title, source, folder)


def main() -> int:
    """Build the site in build/html. Returns the exit status: 1 where a link of it leads nowhere."""
    build(FOLDER)
    faults = broken_links(FOLDER)
    print("\n".join(faults) or FOLDER / "index.html", file=sys.stderr if faults else sys.stdout)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
