"""The built site: its pages are those of the course in its order, nothing is lost on the way, and every link and image leads somewhere."""

import functools
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import notebook_rules as rules
import pytest

import fa_tutorial

pytest.importorskip("myst_nb", reason="the site's extra is not installed: `make site` installs it")

from bs4 import BeautifulSoup  # as the site's theme does

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]  # one worker builds it
ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def sphinx(root: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Build the site of the course in `root` as `make site` does, in `folder`/site."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", f"{root}/site", "-d", f"{folder}/doctrees"]
    return subprocess.run([*command, *arguments, root, f"{folder}/site"], capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("build")
    done = sphinx(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@functools.cache
def targets_of(page: Path) -> tuple[list[str], set[str]]:
    """The links and image sources of a page, and its anchors."""
    html = BeautifulSoup(page.read_text(encoding="utf-8"), "html.parser")
    links = [tag["src"] for tag in html.select("[src]")] + [tag["href"] for tag in html.select("a[href], link[href]")]
    return links, {tag["id"] for tag in html.select("[id]")}


def local(links: Sequence[str], page: Path) -> dict[str, tuple[Path, str]]:
    """(file, anchor) that each of a page's links leads to; addresses with a scheme or a host, and data in place, are left out."""
    parts = {link: urlsplit(link) for link in links}
    return {
        link: ((page.parent / unquote(part.path)).resolve() if part.path else page, unquote(part.fragment))
        for link, part in parts.items()
        if not part.scheme and not part.netloc
    }


def test_every_link_and_image_resolves(built):
    pages = {page.resolve(): targets_of(page) for page in sorted(built.rglob("*.html")) if "_static" not in page.parts}
    faults = []
    for page, (links, _) in pages.items():
        for link, (file, anchor) in local(links, page).items():
            if not file.is_file() or (anchor and file in pages and anchor not in pages[file][1]):
                faults.append(f"{page.name}: {link}")
    assert len(pages) > len(PATHS) and faults == []


def test_the_first_page_and_the_glossary_lead_to_every_chapter_in_order(built):
    assert "url=README.html" in (built / "index.html").read_text()
    assert (built / "favicon.ico").is_file()  # a browser asks for it there
    chapters = [f"notebooks/{path.stem}.html" for path in PATHS]
    for name in ("README.html", "GLOSSARY.html"):
        links = re.findall(r'<a\b[^>]* href="(notebooks/[^"#]+)"', (built / name).read_text(encoding="utf-8"))
        assert list(dict.fromkeys(links)) == chapters


def test_every_public_function_is_on_a_page(built):
    _, anchors = targets_of(built / "site" / "api.html")
    names = [*fa_tutorial.__all__, "ring.ring_attention", "ring.shard", "ring.unshard", "hugging_face.register"]
    assert {f"fa_tutorial.{name}" for name in names} <= anchors


def test_chapters_lead_to_the_next(built):
    for path, after in itertools.pairwise(PATHS):
        page = (built / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert re.search(rf'<a class="right-next"\s+href="{after.stem}.html"', page)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_page_shows_the_whole_notebook(path, built):
    """Each picture that is stored as an output, each image of the text, each equation as the source has it and where its number leads."""
    notebook = rules.load(path)
    page = built / "notebooks" / f"{path.stem}.html"
    html, (links, anchors) = page.read_text(encoding="utf-8"), targets_of(page)
    stored = sum("image/png" in output.get("data", {}) for cell in rules.code_cells(notebook) for output in cell["outputs"])
    pictures = [link for link in links if "/_images/" in link]
    names = {Path(link).name for link in pictures}
    assert rules.images_of(notebook) <= names and len(pictures) >= stored + len(rules.images_of(notebook))
    tags = rules.equation_tags(notebook)
    assert re.findall(r"\\tag\{([^}]*)\}", unescape(html)) == tags
    assert {f"equation-{tag}" for tag in tags} <= anchors
    assert "mathjax/tex-chtml.js" in html or not tags


def test_an_equation_s_number_leads_to_it_and_a_term_to_its_entry(built):
    for path in PATHS:
        notebook = rules.load(path)
        links, _ = targets_of(built / "notebooks" / f"{path.stem}.html")
        assert any(link.startswith("../GLOSSARY.html#term-") for link in links)
        for number in rules.equations_named("\n".join(re.sub(r"`[^`]*`", "", cell["source"]) for cell in rules.markdown_cells(notebook))):
            assert any(link.endswith(f"#equation-{number}") for link in links), (path.stem, number)


def test_an_exercise_s_number_and_a_chapter_s_lead_there(built):
    for path in PATHS:
        text = "\n".join(re.sub(r"`[^`]*`|^#.*", "", cell["source"], flags=re.M) for cell in rules.markdown_cells(rules.load(path)))
        links, _ = targets_of(built / "notebooks" / f"{path.stem}.html")
        article = BeautifulSoup((built / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8"), "html.parser").article
        chapters = [
            link["href"] for link in article.select("p > a.reference.internal, li > a.reference.internal") if "#" not in link["href"]
        ]
        assert any(link.removesuffix(".html") in {p.stem for p in PATHS} for link in chapters), path.stem
        for number in re.findall(r"\b[Ee]xercise (\d+\.\d+)", text):
            assert any(link.endswith(f"#exercise-{number.replace('.', '-')}") for link in links), (path.stem, number)


def test_the_search_leads_to_each_exercise_each_equation_and_the_glossary(built):
    """What it answers first, above titles and text: {name: [[page, anchor, True]]}."""
    text = (built / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    found = {name: [[index["docnames"][page], *rest] for page, *rest in places] for name, places in index["indexentries"].items()}
    for path in PATHS:
        notebook, where = rules.load(path), f"notebooks/{path.stem}"
        for tag in rules.equation_tags(notebook):
            assert found[f"({tag})"] == [[where, f"equation-{tag}", True]]
        for number, *_ in rules.headings(notebook):
            [[page, anchor, is_main]] = found[number]
            assert found[f"exercise {number}"] == found[number] and (page, is_main) == (where, True)
            assert anchor.startswith(f"exercise-{number.replace('.', '-')}-") and anchor in targets_of(built / f"{where}.html")[1]
    for name, row in (("logsumexp", "log-sum-exp"), ("lse", "log-sum-exp"), ("online softmax", "online-softmax")):
        assert any(page == "GLOSSARY" and anchor.startswith(f"term-{row}") for page, anchor, _ in found[name])


def test_solutions_open_on_a_click(built):
    for path in PATHS:
        shown = sum(cell["source"].startswith(("hint(", "solution(")) for cell in rules.code_cells(rules.load(path)))
        html = (built / "notebooks" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert len(re.findall(r"Show the (?:hint|solution)<", html)) == shown
