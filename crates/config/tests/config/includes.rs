//! Included files: what they may hold, how they are found, and where their problems are.

use std::os::unix::fs::symlink;
use std::path::PathBuf;

use sluicegate_config::{self as config, LoadedConfig};
use sluicegate_model::{Config, PathRule, Problem, ProblemReport};

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn with(name: &str, files: &[(&str, &str)]) -> Folder {
        let folder = std::env::temp_dir().join(format!("sluicegate-include-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let folder = Folder(folder);
        std::fs::create_dir_all(&folder.0).expect("created");
        files.iter().for_each(|(name, text)| folder.write(name, text));
        folder
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().expect("inside")).expect("created");
        std::fs::write(path, text).expect("written");
    }

    fn link(&self, target: &str, name: &str) {
        symlink(target, self.0.join(name)).expect("linked");
    }

    fn load(&self) -> Result<LoadedConfig, ProblemReport> {
        config::load(&self.0.join("gateway.yaml"))
    }

    #[track_caller]
    fn config(&self) -> Config {
        self.load().unwrap_or_else(|report| panic!("{report}")).config
    }

    /// The problems as `file:line:column message`, with names from this folder.
    #[track_caller]
    fn problems(&self) -> Vec<String> {
        let report = self.load().expect_err("invalid");
        let rendered = report.to_string();
        let show = |problem: &Problem| {
            let text = format!(
                "{}:{}:{} {}",
                problem.file_or(&report.file),
                problem.line,
                problem.column,
                problem.message
            );
            let place = format!("{}:{}:{}", problem.file_or(&report.file), problem.line, problem.column);
            assert!(rendered.contains(&place), "{rendered}");
            text.replace(&format!("{}/", self.0.display()), "")
        };
        report.problems.iter().map(show).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn paths(config: &Config) -> Vec<&str> {
    config.locations.iter().map(|location| location.written_path.as_str()).collect()
}

const MAIN: &str = "include: [\"conf.d/*.yaml\"]\nlocations: [{ path: /, upstream: demo }]\n";

#[test]
fn sections_of_all_files_belong_together() {
    let folder = Folder::with(
        "together",
        &[
            ("gateway.yaml", "include: [\"teams/*/gateway.yaml\", ends.yaml]\nlimits: { all: 9/s }\n"),
            ("ends.yaml", "limits: { late: 7/s }\n"),
            (
                "teams/b/gateway.yaml",
                "locations: [{ path: \"~ ^/b\", upstream: app, limits: [all, own, late], access: { deny: bad } }]\n",
            ),
            (
                "teams/a/gateway.yaml",
                "upstreams: { app: [127.0.0.1:1] }\nip_sets: { bad: { file: list.txt } }\n\
                 limits: { own: { rate: \"${file:rate}\" } }\nlocations: [{ path: \"~ ^/a\", upstream: app, limits: own }]\n",
            ),
            ("teams/a/list.txt", "10.0.0.0/8\n"),
            ("teams/a/rate", "3/s\n"),
        ],
    );
    let config = folder.config();
    assert_eq!(paths(&config), ["~ ^/a", "~ ^/b"]);
    let limits: Vec<&str> = config.limits.iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(limits, ["all", "late", "own"]);
    assert_eq!(config.ip_sets[0].networks.len(), 1);
    assert!(matches!(config.locations[0].path, PathRule::Regex(_)));
}

/// The main file comes first, then the others by the bytes of their paths; a `*` takes neither dots nor slashes.
#[test]
fn files_are_found_once_and_in_order() {
    let location = |path: &str| format!("locations: [{{ path: /{path}, upstream: demo }}]\n");
    let folder = Folder::with("order", &[]);
    for name in ["x/b.yaml", "x/a.yaml", "x/.c.yaml", "x/y/d.yaml", "x-1/e.yaml", "x/ä.yaml", "x/f.yml"] {
        folder.write(name, &location(name));
    }
    let of = |include: &str| {
        folder.write("gateway.yaml", &format!("include: {include}\n{}", location("")));
        paths(&folder.config()).join(" ")
    };
    assert_eq!(of("[\"x/*.yaml\"]"), "/ /x/a.yaml /x/b.yaml /x/ä.yaml");
    assert_eq!(of("[\"x/?.yaml\"]"), "/ /x/a.yaml /x/b.yaml /x/ä.yaml");
    assert_eq!(of("[x/b.yaml, \"x/*l\", ./x/a.yaml]"), "/ /x/a.yaml /x/b.yaml /x/f.yml /x/ä.yaml");
    assert_eq!(of("\"*/?.yaml\""), "/ /x-1/e.yaml /x/a.yaml /x/b.yaml /x/ä.yaml");
    assert_eq!(of("\"x/.*.yaml\""), "/ /x/.c.yaml");
    assert_eq!(of("[\"none/*.yaml\", \"x/*.json\", \"*.yaml\"]"), "/");
}

#[test]
fn every_problem_names_its_file() {
    for (wrong, problems) in [
        ("listen: 80\n", &["conf.d/a.yaml:1:1 an included file has no `listen`"][..]),
        (
            "include: b.yaml\nlimit: {}\n",
            &[
                "conf.d/a.yaml:1:1 an included file has no `include`",
                "conf.d/a.yaml:2:1 an included file has no `limit`",
            ],
        ),
        ("# one\n\nlimits: { a: { rate: 1x } }\n", &["conf.d/a.yaml:3:22 the rate `1x` has no"]),
        (
            "limits: { a: { rate: \"${NOPE_X}\" } }\n",
            &["conf.d/a.yaml:1:22 the environment variable `NOPE_X`"],
        ),
        ("limits: { a: *rate }\n", &["conf.d/a.yaml:1:14 not valid YAML: unknown anchor"]),
        ("limits:\n\ta: 1/s\n", &["conf.d/a.yaml:2:1 "]),
        ("limits: { a: 1/s, a: 2/s }\n", &["conf.d/a.yaml:1:19 the key `a` appears twice, first on line 1"]),
        ("limits: [a]\n", &["conf.d/a.yaml:1:1 `limits` must be a mapping"]),
        ("locations: { path: / }\n", &["conf.d/a.yaml:1:1 `locations` must be a list"]),
        ("- a\n", &["conf.d/a.yaml:1:3 the file is not a mapping"]),
        ("owner: a b\n", &["conf.d/a.yaml:1:8 `a b` cannot be a name"]),
        ("server {\n", &["conf.d/a.yaml:1:1 this is a configuration of nginx"]),
        (
            "limits:\n  all: 2/s\n",
            &["conf.d/a.yaml:2:3 `all` is defined twice in limits, first in line 3 of gateway.yaml"],
        ),
        (
            "\nlocations: [{ path: /, upstream: demo }]\n",
            &[
                "conf.d/a.yaml:2:21 the same host, path, methods, scheme, listener and conditions as the location in line 2 of gateway.yaml",
            ],
        ),
        (
            "locations: [{ path: /a, upstream: demo, name: m }]\n",
            &["conf.d/a.yaml:1:47 two locations are named `m`, the other in line 2 of gateway.yaml"],
        ),
        (
            "locations: [{ path: /a, upstream: demo, limits: [{ name: all, rate: 1/s }] }]\n",
            &["conf.d/a.yaml:1:58 two limits are named `all`, the other in line 3 of gateway.yaml"],
        ),
        (
            "locations:\n- path: /w\n  upstream: demo\n  when:\n    header:X-C: a\n    header:x-c: b\n",
            &["conf.d/a.yaml:6:5 `header:x-c` is read as the same value as the condition in line 5"],
        ),
        ("ip_sets: { a: { file: gone.txt } }\n", &["conf.d/a.yaml:1:23 the list `gone.txt` does not exist"]),
    ] {
        let main = MAIN.replace("demo }", "demo, name: m }") + "limits: { all: 1/s }\n";
        let folder = Folder::with("problems", &[("gateway.yaml", &main), ("conf.d/a.yaml", wrong)]);
        let found = folder.problems();
        let same = found.len() == problems.len() && found.iter().zip(problems).all(|(a, b)| a.starts_with(b));
        assert!(same, "{wrong}: {found:#?}");
    }
}

/// Both files are told, and what the main file has wrong comes first.
#[test]
fn problems_are_in_the_order_of_files() {
    let wrong = "locations:\n  - { path: /x, upstream: nope }\n";
    let folder = Folder::with(
        "several",
        &[
            ("gateway.yaml", &MAIN.replace("demo", "none")),
            ("conf.d/b.yaml", wrong),
            (
                "conf.d/a.yaml",
                "locations:\n  - { path: /a, upstream: demo }\n  - { path: /b, upstream: no }\n",
            ),
        ],
    );
    let told = "the upstream";
    assert_eq!(
        folder.problems().iter().map(|one| one.split(told).next().unwrap_or_default()).collect::<Vec<_>>(),
        ["gateway.yaml:2:34 ", "conf.d/a.yaml:3:27 ", "conf.d/b.yaml:2:27 "]
    );
    let report = folder.load().expect_err("invalid");
    let fields: Vec<&str> = report.problems.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(fields, ["locations[0].upstream", "locations[1].upstream", "locations[0].upstream"]);
    assert!(report.to_string().contains("  - { path: /b, upstream: no }"), "{report}");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["problems"][0].get("file"), None);
    assert!(json["problems"][1]["file"].as_str().is_some_and(|file| file.ends_with("conf.d/a.yaml")));
}

#[test]
fn a_warning_names_its_file() {
    let folder = Folder::with("warned", &[("gateway.yaml", MAIN), ("conf.d/a.yaml", "limits:\n  a: 1/s\n")]);
    let warnings = folder.load().unwrap_or_else(|report| panic!("{report}")).warnings;
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].file.ends_with("conf.d/a.yaml") && warnings[0].line == 2, "{warnings:?}");
}

#[test]
fn a_file_that_cannot_be_read_is_told_where_it_is_included() {
    for (include, told) in [
        ("gone.yaml", "the file `gone.yaml` does not exist"),
        ("\"gone/*\"", ""),
        ("\"*\"", "the file `conf.d` is a directory"),
        ("conf.d/large.yaml", "the file `conf.d/large.yaml` is larger than 1 MiB"),
    ] {
        let folder = Folder::with("unreadable", &[("conf.d/large.yaml", &"#".repeat((1 << 20) + 1))]);
        folder.write("gateway.yaml", &format!("include: [{include}]\nlocations: []\n"));
        match told {
            "" => drop(folder.config()),
            told => assert_eq!(folder.problems(), [format!("gateway.yaml:1:11 {told}")]),
        }
    }
}

/// A ConfigMap is a folder of links into a hidden folder, which is a link itself.
#[test]
fn links_lead_anywhere_within_the_folder_of_the_entry() {
    let location = |path: &str| format!("locations: [{{ path: {path}, upstream: demo }}]\n");
    let folder = Folder::with("links", &[("gateway.yaml", MAIN), ("conf.d/..1/a.yaml", &location("/a"))]);
    folder.link("..1", "conf.d/..data");
    folder.link("..data/a.yaml", "conf.d/a.yaml");
    assert_eq!(paths(&folder.config()), ["/", "/a"]);
    // Two names of one file.
    folder.link("a.yaml", "conf.d/b.yaml");
    assert_eq!(paths(&folder.config()), ["/", "/a"]);
    folder.link("nowhere", "conf.d/c.yaml");
    assert_eq!(folder.problems(), ["gateway.yaml:1:11 the file `conf.d/c.yaml` does not exist"]);
    std::fs::remove_file(folder.0.join("conf.d/c.yaml")).expect("removed");
    folder.write("out.yaml", &location("/out"));
    folder.link("../out.yaml", "conf.d/c.yaml");
    let told = "gateway.yaml:1:11 the link `conf.d/c.yaml` leads out of the folder of this entry";
    assert_eq!(folder.problems(), [told]);
    // The folder may be a link itself, and an entry with its `*` further left takes it all.
    folder.write("gateway.yaml", &MAIN.replace("conf.d/*.yaml", "*/?.yaml"));
    assert_eq!(paths(&folder.config()), ["/", "/a", "/out"]);
    std::fs::remove_file(folder.0.join("conf.d/c.yaml")).expect("removed");
    folder.link("conf.d", "there");
    folder.write("gateway.yaml", &MAIN.replace("conf.d/", "there/"));
    assert_eq!(paths(&folder.config()), ["/", "/a"]);
}

#[test]
fn a_set_has_a_hash_of_all_its_files() {
    let folder = Folder::with("hash", &[("gateway.yaml", MAIN)]);
    let hash = |folder: &Folder| folder.load().unwrap_or_else(|report| panic!("{report}")).file_hash;
    let alone = hash(&folder);
    // `sha256sum gateway.yaml`
    assert_eq!(alone, "a05a495936dd");
    folder.write("conf.d/a.yaml", "limits: { a: 1/s }\n");
    let with_one = hash(&folder);
    folder.write("conf.d/a.yaml", "limits: { a: 2/s }\n");
    let changed = hash(&folder);
    folder.write("conf.d/b.yaml", "# nothing\n");
    let with_two = hash(&folder);
    let mut all = vec![alone, with_one, changed, with_two];
    all.dedup();
    assert_eq!(all.len(), 4);
}

/// The files that are watched: what was read, and what each pattern found.
#[test]
fn fingerprints_show_changed_new_and_vanished_files() {
    let folder =
        Folder::with("watched", &[("gateway.yaml", MAIN), ("conf.d/a.yaml", "limits: { a: 1/s }\n")]);
    let files = || folder.load().unwrap_or_else(|report| panic!("{report}")).files;
    let changed = |known: &[sluicegate_base::file::FileFingerprint]| {
        known.iter().filter(|known| known.read_again() != **known).count()
    };
    let known = files();
    assert_eq!(changed(&known), 0);
    folder.write("conf.d/a.yaml", "limits: { a: 2/s }\n");
    assert_eq!(changed(&known), 1);
    let known = files();
    folder.write("conf.d/b.yaml", "limits: { b: 2/s }\n");
    assert_eq!(changed(&known), 1);
    let known = files();
    std::fs::remove_file(folder.0.join("conf.d/a.yaml")).expect("removed");
    assert_eq!(changed(&known), 2);
    // A link that leads out is never read, but its repair is noticed.
    for include in ["\"conf.d/*.yaml\"", "conf.d/b.yaml"] {
        folder.write(
            "gateway.yaml",
            &format!("include: {include}\nlocations: [{{ path: /, upstream: demo }}]\n"),
        );
        folder.write("out.yaml", "limits: { b: 2/s }\n");
        folder.write("conf.d/.c.yaml", "limits: { b: 2/s }\n");
        let link = |target: &str| {
            let _ = std::fs::remove_file(folder.0.join("conf.d/b.yaml"));
            folder.link(target, "conf.d/b.yaml");
        };
        link("../out.yaml");
        let (wrong, known) = config::load_with_files(&folder.0.join("gateway.yaml"));
        assert!(wrong.is_err(), "{wrong:?}");
        link(".c.yaml");
        assert!(changed(&known) >= 1, "{include}");
        folder.config();
    }
}

#[test]
fn the_files_of_a_set_are_bounded() {
    let folder = Folder::with("bounded", &[("gateway.yaml", MAIN)]);
    let filler = "#".repeat(1 << 20);
    (0..65).for_each(|n| folder.write(&format!("conf.d/{n}.yaml"), &filler));
    let told = "the file `conf.d/9.yaml` is too much: all files together are larger than 64 MiB";
    assert_eq!(folder.problems(), [format!("gateway.yaml:1:11 {told}")]);
}
