#!/usr/bin/env python3
"""Checks the files of a release in target/dist without the network: check.py VERSION TARGET.

Sums, contents and modes of each package, one program in all of them, its libraries, its list of crates, the bill of
materials, and that no path of the machine that built it stands in any file.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zlib
from hashlib import sha256
from pathlib import Path

from crates import linked

VERSION, TARGET = sys.argv[1:]
DIST = Path("target/dist")
SIZE_MAX = 22 * 1000 * 1000
GLIBC = "2.34"
SHARED = {"gateway.schema.json", "deploy/alerts.yml", "deploy/grafana.json"}
problems = []


def expect(right, words):
    if not right:
        problems.append(words)


def run(*words, **options):
    return subprocess.run(words, check=True, capture_output=True, **options).stdout


def is_slower():
    """Whether the release was built without a profile, as its file names say."""
    names = {name for name in os.listdir(DIST) if name != "SHA256SUMS"}
    return all("-no-pgo" in name for name in names)


SUFFIX = "-no-pgo" if is_slower() else ""
NAME = f"sluicegate-{VERSION}-x86_64-linux{SUFFIX}"
FILES = {
    "tar": f"{NAME}.tar.gz",
    "deb": f"sluicegate_{VERSION}-1_amd64{SUFFIX}.deb",
    "rpm": f"sluicegate-{VERSION}-1.x86_64{SUFFIX}.rpm",
    "debug": f"{NAME}.debug",
    "bill": f"sluicegate-{VERSION}{SUFFIX}.cdx.json",
} | ({} if SUFFIX else {"profile": f"{NAME}.profdata"})


def check_sums():
    found = {file.name: sha256(file.read_bytes()).hexdigest() for file in DIST.iterdir() if file.name != "SHA256SUMS"}
    listed = dict(reversed(line.split("  ", 1)) for line in (DIST / "SHA256SUMS").read_text().splitlines())
    expect(set(found) == set(FILES.values()), f"the files are {sorted(found)} instead of {sorted(FILES.values())}")
    expect(listed == found, "SHA256SUMS does not list exactly the files that are there")


def manual():
    return {path.name for path in Path("target/dist-work/stage/man").glob("*.1")}


def tar_files():
    texts = {"gateway.yaml", "LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES", "deploy/sluicegate.service"}
    texts |= {"deploy/sluicegate.socket", "completions/sluicegate.bash", "completions/_sluicegate"}
    texts |= {"completions/sluicegate.fish"} | SHARED | {f"man/{page}" for page in manual()}
    return {f"{NAME}/{text}": 0o644 for text in texts} | {f"{NAME}/sluicegate": 0o755}


def system_files(units, zsh, licences, page_suffix):
    texts = {"etc/sluicegate/gateway.yaml", f"{units}/sluicegate.service", f"{units}/sluicegate.socket"}
    texts |= {"usr/share/bash-completion/completions/sluicegate", f"{zsh}/_sluicegate"}
    texts |= {"usr/share/fish/vendor_completions.d/sluicegate.fish"} | set(licences)
    texts |= {f"usr/share/sluicegate/{Path(name).name}" for name in SHARED}
    texts |= {f"usr/share/man/man1/{page}{page_suffix}" for page in manual()}
    return {text: 0o644 for text in texts} | {"usr/bin/sluicegate": 0o755}


def deb_files():
    folder = "usr/share/doc/sluicegate"
    licences = [f"{folder}/copyright", f"{folder}/LICENSE-APACHE", f"{folder}/THIRD-PARTY-LICENSES"]
    return system_files("lib/systemd/system", "usr/share/zsh/vendor-completions", licences, ".gz")


def rpm_files():
    folder = "usr/share/licenses/sluicegate"
    licences = [f"{folder}/{name}" for name in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY-LICENSES")]
    return system_files("usr/lib/systemd/system", "usr/share/zsh/site-functions", licences, "")


def check_package(kind, members, expected):
    """Compares names, modes and owners; `members` has (name, mode, owner, is a file)."""
    modes = {name.removeprefix("./"): mode for name, mode, _, is_file in members if is_file}
    expect(modes == expected, f"{kind}: contents or modes differ: {sorted(set(modes.items()) ^ set(expected.items()))}")
    for name, mode, owner, is_file in members:
        expect(owner in ("0/0", "root/root"), f"{kind}: {name} belongs to {owner}")
        expect(is_file or mode == 0o755, f"{kind}: folder {name} has mode {mode:o}")


def tar_members(archive):
    return [(m.name, m.mode, f"{m.uid}/{m.gid}", m.isfile()) for m in archive.getmembers()]


def unpack(folder):
    """Unpacks each package into a folder of its own and checks what it holds."""
    for kind in ("tar", "rpm"):
        (folder / kind).mkdir()
    with tarfile.open(DIST / FILES["tar"]) as archive:
        check_package("tar", tar_members(archive), tar_files())
    run("tar", "--extract", "--file", DIST / FILES["tar"], "--directory", folder / "tar")
    run("dpkg-deb", "--raw-extract", DIST / FILES["deb"], folder / "deb")
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", DIST / FILES["deb"]], stdout=subprocess.PIPE) as stream:
        with tarfile.open(fileobj=stream.stdout, mode="r|") as archive:
            check_package("deb", tar_members(archive), deb_files())
    rpm = DIST / FILES["rpm"]
    # rpm2cpio ends with 1 for packages without a signature.
    archive = run("rpm2archive", "--nocompression", "-", input=rpm.read_bytes())
    run("tar", "--extract", "--directory", folder / "rpm", input=archive)
    form = r"[%{FILENAMES}\t%{FILEMODES:octal}\t%{FILEUSERNAME}/%{FILEGROUPNAME}\t%{FILEFLAGS:fflags}\n]"
    listed = run("rpm", "-qp", "--nosignature", "--queryformat", form, rpm, text=True).splitlines()
    members, flags = [], {}
    for name, mode, owner, flags[name] in (line.split("\t") for line in listed):
        members.append((name[1:], int(mode, 8) & 0o7777, owner, int(mode, 8) & 0o170000 == 0o100000))
    check_package("rpm", members, rpm_files())
    expect(flags.get("/etc/sluicegate/gateway.yaml") == "cn", "rpm: gateway.yaml is not %config(noreplace)")
    conffiles = (folder / "deb/DEBIAN/conffiles").read_text().split()
    expect(conffiles == ["/etc/sluicegate/gateway.yaml"], f"deb: conffiles are {conffiles}")
    version = run("dpkg-deb", "--field", DIST / FILES["deb"], "Version", text=True).strip()
    expect(version == f"{VERSION}-1", f"deb: the version is {version}")


def check_program(folder):
    programs = [folder / path for path in (f"tar/{NAME}/sluicegate", "deb/usr/bin/sluicegate", "rpm/usr/bin/sluicegate")]
    expect(len({program.read_bytes() for program in programs}) == 1, "the packages hold different programs")
    program = programs[0]
    for file in [program] + [DIST / FILES[kind] for kind in ("tar", "deb", "rpm")]:
        expect(file.stat().st_size <= SIZE_MAX, f"{file.name} has {file.stat().st_size} bytes, more than {SIZE_MAX}")
    said = run(program, "version", text=True).strip()
    expect(said == f"sluicegate {VERSION}" + (" (built without a profile)" if SUFFIX else ""), f"`version` says {said}")
    sections = run("readelf", "--sections", "--wide", program, text=True)
    expect(not re.search(r"\.(symtab|debug_info|debug_line)\b", sections), "the program is not stripped")
    symbols = run("objdump", "--dynamic-syms", program, text=True)
    versions = {tuple(map(int, found.split("."))) for found in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    highest = ".".join(map(str, max(versions)))
    expect(highest == GLIBC, f"the highest symbol is GLIBC_{highest} instead of {GLIBC}")
    debug = DIST / FILES["debug"]
    link = section(folder, program, ".gnu_debuglink")
    expect(link.startswith(debug.name.encode() + b"\0"), f"the program does not name {debug.name}")
    sum_of_link = int.from_bytes(link[-4:], "little")
    expect(sum_of_link == zlib.crc32(debug.read_bytes()), "the debug information is of another program")
    expect(".debug_line" in run("readelf", "--sections", "--wide", debug, text=True), "the debug file has no lines")
    run("objcopy", "--decompress-debug-sections", debug, folder / "debug")
    return program


def section(folder, program, name):
    """The content of a section of the program."""
    run("objcopy", "--dump-section", f"{name}={folder / 'section'}", program, folder / "copy")
    (folder / "copy").unlink()
    return (folder / "section").read_bytes()


def check_crates(folder, program):
    """The crates that the program, and the bill of materials, name."""
    with open("Cargo.lock", "rb") as file:
        locked = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]}
    needed = {(package["name"], package["version"]) for package in linked(TARGET)}
    listed = json.loads(zlib.decompress(section(folder, program, ".dep-v0")))
    audited = {(package["name"], package["version"]) for package in listed["packages"]}
    bill = json.loads((DIST / FILES["bill"]).read_text())
    expect("serialNumber" not in bill, "the bill of materials has a random serial number")
    components = bill["components"] + [bill["metadata"]["component"]]
    billed = {(part["name"], part["version"]) for part in components}
    expect(billed == needed, f"the bill of materials differs from the crates needed: {sorted(billed ^ needed)}")
    for kind, found in (("the program's list of crates", audited), ("the bill of materials", billed)):
        expect(found >= needed, f"{kind} lacks {sorted(needed - found)}")
        expect(found <= set(locked), f"{kind} has what Cargo.lock has not: {sorted(found - set(locked))}")
    for part in components:
        sums = [known["content"] for known in part.get("hashes", []) if known["alg"] == "SHA-256"]
        sum_of_lock = locked.get((part["name"], part["version"]))
        expect(sums == [sum_of_lock] * bool(sum_of_lock), f"the bill of materials has another sum of {part['name']}")


def check_paths(folder):
    """No file has a path of this machine, nor the name of its registry."""
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    sysroot = run("rustc", "--print", "sysroot", text=True).strip()
    words = {str(Path.cwd()), str(home), sysroot, str(Path.home()) + "/"}
    words |= {registry.name for registry in (home / "registry/src").iterdir()}
    files = [file for file in folder.rglob("*") if file.is_file()]
    files += [DIST / FILES[kind] for kind in ("bill", "profile") if kind in FILES]
    for file in files:
        data = file.read_bytes()
        for word in words:
            expect(word.encode() not in data, f"{file} contains {word}")


def check_all():
    check_sums()
    if problems:
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack(folder)
        check_paths(folder)
        check_crates(folder, check_program(folder))


def main():
    try:
        check_all()
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
        problems.append(f"a check could not end: {error}")
    for problem in problems:
        print(f"check.py: {problem}", file=sys.stderr)
    sys.exit(1 if problems else print(f"{len(FILES)} files of {NAME} are as they must be"))


main()
