//! The command: exit codes, files of several kinds, folders and the standard input.

use crate::support::{Run, Scratch};

#[test]
fn the_exit_code_tells_what_was_lost() {
    let scratch = Scratch::new();
    let run = |args: &[&str]| Run::default().args(args).finish(scratch.path());
    scratch.file("good.conf", "server { listen 8080; location / { proxy_pass http://127.0.0.1:9; } }");
    scratch.file(
        "lossy.conf",
        "server { listen 8080; location / { auth_basic x; proxy_pass http://127.0.0.1:9; } }",
    );
    scratch.file("broken.conf", "server {\n listen 8080\n}");
    let good = run(&["import", "good.conf"]);
    assert_eq!(good.code, Some(0), "{}", good.stderr);
    assert!(good.stdout.contains("upstream: \"127.0.0.1-9\""), "{}", good.stdout);
    assert!(good.stderr.contains("nothing that limits, denies or answers was lost"), "{}", good.stderr);
    let lossy = run(&["import", "lossy.conf", "-o", "out.yaml", "--report", "json"]);
    assert_eq!((lossy.code, lossy.stdout.as_str()), (Some(1), ""));
    let report: serde_json::Value = serde_json::from_str(&lossy.stderr).unwrap();
    assert_eq!(report["lost"], 1);
    assert_eq!(report["not_translated"][0]["directive"], "auth_basic x");
    assert_eq!(report["not_translated"][0]["limits"], true);
    assert!(scratch.path().join("out.yaml").exists());
    assert_eq!(run(&["import", "lossy.conf", "--partial"]).code, Some(0));
    let broken = run(&["import", "broken.conf"]);
    assert_eq!(broken.code, Some(3));
    assert!(broken.stderr.contains("broken.conf:2: `listen` does not end with `;`"), "{}", broken.stderr);
    assert_eq!(run(&["import", "missing.conf"]).code, Some(3));
    assert_eq!(run(&["import"]).code, Some(2));
    let check = run(&["check", "out.yaml"]);
    assert_eq!(check.code, Some(0), "{}", check.stderr);
}

fn domain(name: &str) -> String {
    format!(
        "domain: {name}\ndescriptors: [{{ key: a, rate_limit: {{ unit: second, requests_per_unit: 1 }} }}]\n"
    )
}

/// The domains of a written file.
fn domains_of(yaml: &str) -> Vec<String> {
    let yaml: serde_yaml::Value = serde_yaml::from_str(yaml).expect("YAML");
    let domains = yaml["service"]["domains"].as_mapping().expect("domains");
    domains.keys().map(|name| name.as_str().expect("a name").to_owned()).collect()
}

#[test]
fn the_command_reads_folders_and_stdin() {
    let scratch = Scratch::new();
    std::fs::create_dir(scratch.path().join("config")).expect("a folder");
    std::fs::create_dir(scratch.path().join("empty")).expect("a folder");
    for name in ["one", "two"] {
        scratch.file(&format!("config/{name}.yaml"), &domain(name));
    }
    let run = |args: &[&str]| Run::default().args(args).finish(scratch.path());
    let folder = run(&["import", "config", "-o", "gateway.yaml"]);
    assert_eq!(folder.code, Some(0), "{}", folder.stderr);
    assert!(folder.stderr.contains("4 directives translated exactly"), "{}", folder.stderr);
    assert_eq!(run(&["check", "gateway.yaml"]).code, Some(0));
    let files = run(&["import", "config/two.yaml", "config/one.yaml", "--report", "json"]);
    assert_eq!(domains_of(&files.stdout), ["two", "one"]);
    let empty = run(&["import", "empty"]);
    assert_eq!(empty.code, Some(3));
    assert!(
        empty.stderr.contains("empty:1: the folder has no .yaml, .yml or .json file"),
        "{}",
        empty.stderr
    );
    let pipe = |text: &str| {
        let file = std::fs::File::open(scratch.file("stdin", text)).expect("a file");
        Run::default().stdin(file.into()).args(&["import", "-"]).finish(scratch.path())
    };
    let piped = pipe(&domain("piped"));
    assert_eq!(
        (piped.code, domains_of(&piped.stdout)),
        (Some(0), vec!["piped".to_owned()]),
        "{}",
        piped.stderr
    );
    let broken = pipe("domain: x\ndescriptors:\n  - key: [\n");
    assert_eq!(broken.code, Some(3));
    assert!(broken.stderr.contains("error: stdin:"), "{}", broken.stderr);
    let lossy = pipe("domain: x\ndescriptors: [{ key: a, value: 'b*c', rate_limit: { unlimited: true } }]\n");
    assert_eq!(lossy.code, Some(1), "{}", lossy.stderr);
}
