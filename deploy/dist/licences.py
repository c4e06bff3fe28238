"""Prints the licences of all crates that the program is made of: licences.py TARGET.

Crates with the same text share it. deny.toml has the licences that are allowed, and `make test` compares it.
"""

import sys
from pathlib import Path

from crates import linked

NAMES = ("license", "licence", "copying", "copyright", "notice", "unlicense")


def texts(package):
    """The files of a crate with its licences and notices, and those of the C library that some carry."""
    folder = Path(package["manifest_path"]).parent
    files = [file for file in folder.rglob("*") if file.is_file() and is_licence(file.relative_to(folder))]
    if package["license_file"]:
        files.append((folder / package["license_file"]).resolve())
    return sorted(set(files))


def is_licence(path):
    named = any(part.lower().startswith(NAMES) for part in path.parts[-2:])
    return named and path.suffix.lower() in ("", ".md", ".txt")


def main():
    packages = [package for package in linked(sys.argv[1]) if package["source"]]
    print("The program sluicegate contains these crates under the licences named, whose texts follow.\n")
    by_text, bare = {}, []
    for package in sorted(packages, key=lambda package: (package["name"], package["version"])):
        title = f"{package['name']} {package['version']}"
        print(f"  {title}: {package['license']}")
        found = [file.read_text(errors="replace").strip().replace("\r\n", "\n") for file in texts(package)]
        for text in found:
            by_text.setdefault(" ".join(text.split()), (text, []))[1].append(title)
        if not found:
            bare.append(f"{title}: {package['license']}, {', '.join(package['authors']) or 'its authors'}")
    if bare:
        print("\nThese crates come without a text; the texts below have their licences:\n")
        print("\n".join(f"  {line}" for line in bare))
    for text, titles in sorted(by_text.values(), key=lambda item: item[1]):
        print(f"\n{'=' * 80}\n{', '.join(dict.fromkeys(titles))}\n{'=' * 80}\n\n{text}")


main()
