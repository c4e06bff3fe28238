#!/usr/bin/env python3
"""Checks the pages in the folder $1, built from $2: links lead to files and anchors, nothing is loaded from another
host, and every page of the manual is there."""

import html.parser
import pathlib
import re
import sys
import urllib.parse

# Attributes whose target a browser loads with the page; `href` of `a` is only followed.
LOADED = {"src", "srcset", "href", "data", "poster", "action"}
FOREIGN = re.compile(r"^\s*(?:[a-z][a-z0-9+.-]*:)?//|^\s*[a-z][a-z0-9+.-]*:", re.IGNORECASE)
STYLE_TARGET = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(html.parser.HTMLParser):
    """The anchors of a page, its links, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.loaded = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif tag == "a" and name == "href":
                self.links.append(value)
            elif name in LOADED:
                self.loaded += [part.split()[0] for part in value.split(",")] if name == "srcset" else [value]
            elif name == "style":
                self.loaded += style_targets(value)


def style_targets(text):
    return [first or second for first, second in STYLE_TARGET.findall(text)]


def target_of(page, link):
    """The file that a link of a page leads to, and its anchor."""
    parts = urllib.parse.urlsplit(link)
    path = urllib.parse.unquote(parts.path)
    return ((page.parent / path).resolve() if path else page.resolve()), urllib.parse.unquote(parts.fragment)


def problems_of(root, path, page, pages):
    for link in page.loaded:
        if link.startswith("data:"):
            continue
        if FOREIGN.match(link):
            yield f"loads {link}"
        elif not target_of(path, link)[0].is_file():
            yield f"loads {link}, which does not exist"
    for link in page.links:
        if FOREIGN.match(link):
            continue
        file, anchor = target_of(path, link)
        if not file.is_relative_to(root) or not file.is_file():
            yield f"links to {link}, which does not exist"
        elif anchor and file in pages and anchor not in pages[file].anchors:
            yield f"links to {link}, which has no such anchor"


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text()) for path in sorted(root.rglob("*.html"))}
    problems = [f"{path.relative_to(root)}: {what}"
                for path, page in pages.items() for what in problems_of(root, path, page, pages)]
    for path in sorted(root.rglob("*.css")):
        for link in style_targets(path.read_text()):
            if not link.startswith("data:") and (FOREIGN.match(link) or not target_of(path, link)[0].is_file()):
                problems.append(f"{path.relative_to(root)}: loads {link}, which is not here")
    source = pathlib.Path(sys.argv[2]).resolve()
    for path in sorted(source.joinpath("docs").rglob("*.md")):
        built = root / path.relative_to(source).with_suffix(".html")
        if path.name != "SUMMARY.md" and not built.is_file():
            problems.append(f"{path.relative_to(source)}: not in docs/SUMMARY.md")
    links = sum(len(page.links) for page in pages.values())
    if links < 1000:
        problems.append(f"only {links} links were found in {len(pages)} pages")
    print(*problems, f"{len(pages)} pages, {links} links, {len(problems)} problems", sep="\n")
    sys.exit(1 if problems else 0)


main()
