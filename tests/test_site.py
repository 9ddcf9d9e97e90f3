"""The rendered course: every link and image leads somewhere, the pages are those of the course in its order, and nothing is lost on the way."""

import itertools
import re
from html import unescape
from pathlib import Path

import notebook_rules as rules
import pytest

from fa_tutorial import site

pytest.importorskip("nbconvert", reason="nbconvert is not installed")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build") / "html"
    site.build(folder)
    return folder


def test_every_link_and_image_resolves(built):
    assert site.broken_links(built) == []


def test_index_leads_to_every_chapter_in_order(built):
    links = re.findall(r'href="(notebooks/[^"#]+)"', (built / "index.html").read_text(encoding="utf-8"))
    assert list(dict.fromkeys(links)) == [f"notebooks/{path.stem}.html" for path in PATHS]


def test_the_glossary_is_a_page_that_leads_to_every_chapter_and_back(built):
    links = set(re.findall(r'href="(notebooks/[^"#]+)"', (built / "GLOSSARY.html").read_text(encoding="utf-8")))
    assert links == {f"notebooks/{path.stem}.html" for path in PATHS}
    for page in (built / "notebooks").glob("*.html"):
        assert 'href="../GLOSSARY.html"' in page.read_text(encoding="utf-8")


def test_chapters_lead_to_the_next(built):
    for path, after in itertools.pairwise(PATHS):
        assert f'next: <a href="{after.stem}.html">' in (built / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_page_shows_the_whole_notebook(path, built):
    """Each picture that is stored as an output, each equation as the source has it, and no link to a notebook's file."""
    notebook = rules.load(path)
    html = (built / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
    stored = sum("image/png" in output.get("data", {}) for cell in rules.code_cells(notebook) for output in cell["outputs"])
    assert html.count('src="data:image/png;base64,') == stored
    assert re.findall(r"\\tag\{([^}]*)\}", unescape(html)) == rules.equation_tags(notebook)
    assert "mathjax" in html.lower() and ".ipynb" not in html


def test_a_broken_link_is_seen(tmp_path):
    (tmp_path / "there.html").write_text('<h1 id="here">there</h1>')
    links = ("there.html#here", "there.html", "#top", "https://example.org/a", "there.html#gone", "gone.html", "../outside.html")
    text = "".join(f'<a href="{link}">x</a>' for link in links)
    (tmp_path / "index.html").write_text(f'<p id="top">{text}<img src="gone.png"><img src="data:image/png;base64,AAAA">')
    (tmp_path.parent / "outside.html").write_text("")
    assert [fault.split()[1] for fault in site.broken_links(tmp_path)] == ["there.html#gone", "gone.html", "../outside.html", "gone.png"]


@pytest.mark.parametrize(
    ("source", "page"),
    [
        ("[1](notebooks/01_x.ipynb)", "[1](notebooks/01_x.html)"),
        ("[c](02_y.ipynb#A-heading), [d](../CONTRIBUTING.md)", "[c](02_y.html#A-heading), [d](../CONTRIBUTING.html)"),
        ("[start](../README.md)", "[start](../index.html)"),
        ("[there](https://example.org/x.ipynb) ![](../images/x.png)", "[there](https://example.org/x.ipynb) ![](../images/x.png)"),
    ],
)
def test_links_to_sources_lead_to_pages(source, page):
    assert site.link_pages(source) == page
