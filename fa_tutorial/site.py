"""Render the course for reading without running it: `python -m fa_tutorial.site [FOLDER]`, or `make html`.

nbconvert turns each notebook, with its stored outputs, into a page, and README.md into the first one. The site mirrors the repository's
folders, so that a relative link means the same in both; only links to notebooks and Markdown files become links to their pages.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "html"
INDEX = "README.md"


class _Targets(HTMLParser):
    """Collects what a page links to and the anchors that it has."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and ((name == "href" and tag == "a") or name == "src"):
                self.links.append(value)
            elif value and name == "id":
                self.anchors.add(value)


def targets_of(html: str) -> tuple[list[str], set[str]]:
    """(links and image sources, anchors) of a page, in the order in which they stand."""
    parser = _Targets()
    parser.feed(html)
    return parser.links, parser.anchors


def local_file(link: str, page: Path) -> tuple[Path, str] | None:
    """(file, anchor) that a link on `page` leads to; None for another host or data in place."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return None
    return ((page.parent / unquote(parts.path)).resolve() if parts.path else page), unquote(parts.fragment)


def broken_links(folder: Path) -> list[str]:
    """Every link of every page in `folder` to a file or an anchor that is not there."""
    pages = {page.resolve(): targets_of(page.read_text(encoding="utf-8")) for page in sorted(folder.rglob("*.html"))}
    faults = []
    for page, (links, _) in pages.items():
        for link in links:
            if (target := local_file(link, page)) is None:
                continue
            file, anchor = target
            if not file.is_file() or not file.is_relative_to(folder.resolve()):
                faults.append(f"{page.relative_to(folder.resolve())}: {link} is not there")
            elif anchor and file in pages and anchor not in pages[file][1]:
                faults.append(f"{page.relative_to(folder.resolve())}: {link} names no anchor of that page")
    return faults


def page_name(source: Path) -> Path:
    """Where a source's page lies in the site: index.html for README.md, notebooks/01_x.html for notebooks/01_x.ipynb."""
    relative = source.relative_to(ROOT)
    return Path("index.html") if relative == Path(INDEX) else relative.with_suffix(".html")
