"""Check the links of the built site: `python config/check_links.py build/docs`.

mkdocs checks the links between pages, but not those to files that it leaves out of the site, and
nothing of the Python reference. Here every page is read as browsers do: each link to a file of the
site must lead to one, and each anchor must be in it.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take in a tag."""
        for name, value in attrs:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in ("href", "src"):
                self.links.add(value or "")


def dead_links(site: Path) -> list[str]:
    """Return the links that lead nowhere, each with its page."""
    pages = {
        path: Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.resolve().rglob("*.html"))
        if path.name != "404.html"  # its links are those of the site's root
    }
    dead: list[str] = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            is_there = target.exists() and (
                not anchor or target not in pages or anchor in pages[target].anchors
            )
            if not is_there:
                dead.append(f"{path.relative_to(site.resolve())}: {link}")
    return dead


if __name__ == "__main__":
    found = dead_links(Path(sys.argv[1]))
    for each in found:
        print(f"dead link: {each}", file=sys.stderr)
    sys.exit(bool(found))
