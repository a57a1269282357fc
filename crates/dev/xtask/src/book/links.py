"""Checks the links of a folder of HTML pages: each local one must lead to a file, and to an element
of it if it has a fragment. Links to other hosts are only counted, because a check may run offline."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """Links and identifiers of a page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids.update(attrs[name] for name in ("id", "name") if attrs.get(name))
        self.links += [attrs[name] for name in ("href", "src") if attrs.get(name)]


def broken(folder):
    """Returns the number of local links, that of others, and a line for each broken link."""
    pages = {path: Page(path.read_text()) for path in folder.rglob("*.html") if path.name != "404.html"}
    local, others, wrong = 0, 0, []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                others += 1
                continue
            local += 1
            place = path if not parts.path else (path.parent / unquote(parts.path)).resolve()
            if place.is_dir():
                place /= "index.html"
            inside = place.is_relative_to(folder)
            fragment = unquote(parts.fragment)
            found = inside and place.exists() and (
                not fragment or place not in pages or fragment in pages[place].ids)
            if not found:
                wrong.append(f"{path.relative_to(folder)}: {link} leads nowhere")
    return local, others, sorted(set(wrong))


def main():
    folder = Path(sys.argv[1]).resolve()
    local, others, wrong = broken(folder)
    print("\n".join([*wrong, f"{local} links of the book, {others} to other hosts, {len(wrong)} broken"]))
    sys.exit(1 if wrong or not local else 0)


main()
