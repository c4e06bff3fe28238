"""The crates that the program is made of, as cargo resolves them."""

import json
import subprocess


def linked(target):
    """The packages that the program and its build scripts need on the target, with those of the workspace."""
    common = ["--locked", "--offline"]
    tree = cargo("tree", *common, "--edges", "normal,build", "--target", target, "--prefix", "none", "--format", "{p}")
    named = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    metadata = cargo("metadata", *common, "--format-version", "1", "--filter-platform", target)
    return [package for package in json.loads(metadata)["packages"] if name_of(package) in named]


def name_of(package):
    return package["name"], "v" + package["version"]


def cargo(*words):
    return subprocess.run(["cargo", *words], check=True, capture_output=True, text=True).stdout
