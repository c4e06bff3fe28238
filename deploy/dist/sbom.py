"""Prints a bill of materials without what differs between two machines, and without crates that cargo-cyclonedx lists
though the program does not contain them, because a test or another platform needs a feature: sbom.py FOLDER TARGET."""

import json
import re
import sys
from pathlib import Path

from crates import linked, name_of


def main():
    folder, target = Path(sys.argv[1]).resolve(), sys.argv[2]
    (file,) = folder.glob("*.cdx.json")
    text = re.sub(r"\?download_url=[^\"#]*", "", file.read_text()).replace(f"path+file://{folder}", "path+file://")
    bill = json.loads(text)
    bill.pop("serialNumber", None)
    names = {name_of(package) for package in linked(target)}
    bill["components"] = [part for part in bill["components"] if (part["name"], "v" + part["version"]) in names]
    kept = {part["bom-ref"] for part in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    bill["dependencies"] = [
        edges | {"dependsOn": [ref for ref in edges.get("dependsOn", []) if ref in kept]}
        for edges in bill["dependencies"]
        if edges["ref"] in kept
    ]
    json.dump(bill, sys.stdout, indent=2, sort_keys=True)
    print()


main()
