//! The command line: help, completions, manual pages, the file's place, and what a start writes to stderr.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Command;

use serde_json::Value;

use crate::support::*;

const HELLO: &str = "locations:\n  - { path: /, respond: { body: ok } }\n";
const COMMANDS: [&str; 22] = [
    "run",
    "check",
    "explain",
    "test",
    "reload",
    "status",
    "top",
    "keys",
    "show",
    "usage",
    "reset",
    "grant",
    "revoke",
    "bans",
    "ban",
    "unban",
    "proxy",
    "init",
    "schema",
    "completions",
    "man",
    "version",
];

fn run(args: &[&str]) -> Finished {
    Run::default().args(args).finish(Scratch::new().path())
}

/// The file on stdin.
fn run_on_stdin(yaml: &str, args: &[&str]) -> Finished {
    let dir = Scratch::new();
    let stdin: OwnedFd = File::open(dir.file("piped.yaml", yaml)).expect("it was written").into();
    Run::default().stdin(stdin).args(args).finish(dir.path())
}

fn json_lines(stderr: &str) -> Vec<Value> {
    let json = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    stderr.lines().map(json).collect()
}

#[test]
fn every_help_has_an_example_and_the_exit_codes() {
    for command in COMMANDS {
        let help = run(&[command, "--help"]);
        assert_eq!(help.code, Some(0), "{help:?}");
        assert!(help.stdout.contains(&format!("Examples:\n  sluicegate {command}")) || command == "check");
        assert!(help.stdout.contains("Exit codes:\n  0  fine"), "{help:?}");
        assert_eq!(run(&["help", command]).stdout, help.stdout, "{command}");
    }
    let help = run(&["--help"]).stdout;
    assert!(help.contains("\nExamples:\n  sluicegate\n"), "{help}");
    for code in [
        "1  failed while running",
        "2  wrong command line",
        "3  the file",
        "4  cannot listen",
        "5  the admin",
    ] {
        assert!(help.contains(&format!("\n  {code}")), "{code}: {help}");
    }
    assert_eq!(run(&["help", "no-such-command"]).code, Some(2));
}

/// What bash offers after these words.
fn complete_in_bash(script: &str, words: &[&str]) -> Vec<String> {
    let (last, before) = (words.len() - 1, words[words.len() - 2]);
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let text = format!(
        "{script}\nCOMP_WORDS=({}); COMP_CWORD={last}\n_sluicegate sluicegate '{}' '{before}'\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
        quoted.join(" "),
        words[last]
    );
    let output = Command::new("bash").args(["--norc", "-c", &text]).output().expect("bash runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

#[test]
fn shells_complete_commands_options_and_values() {
    let script = run(&["completions", "bash"]);
    assert_eq!((script.code, script.stderr.as_str()), (Some(0), ""));
    let complete = |words: &[&str]| complete_in_bash(&script.stdout, words);
    assert_eq!(complete(&["sluicegate", "comp"]), ["completions"]);
    let offered = complete(&["sluicegate", "completions", ""]);
    assert!(
        ["bash", "zsh", "fish"].iter().all(|shell| offered.iter().any(|word| word == shell)),
        "{offered:?}"
    );
    assert_eq!(complete(&["sluicegate", "check", "--st"]), ["--strict"]);
    assert_eq!(complete(&["sluicegate", "explain", "P"]), ["POST", "PUT", "PATCH"]);
    for (shell, mark) in
        [("zsh", "#compdef sluicegate"), ("fish", "complete -c sluicegate"), ("elvish", "sluicegate")]
    {
        let script = run(&["completions", shell]);
        assert!(script.code == Some(0) && script.stdout.contains(mark), "{shell}: {script:?}");
    }
    assert_eq!(run(&["completions", "tcsh"]).code, Some(2));
    assert_eq!(run(&["completions"]).code, Some(2));
}

#[test]
fn the_manual_has_every_command() {
    let page = run(&["man"]);
    assert_eq!(page.code, Some(0), "{page:?}");
    assert!(page.stdout.contains(".TH sluicegate 1"), "{}", page.stdout);
    let dir = Scratch::new();
    let written = Run::default().args(&["man", "--dir", "man/man1"]).finish(dir.path());
    assert_eq!(written.code, Some(0), "{written:?}");
    for command in COMMANDS {
        assert!(page.stdout.contains(&format!("\n.SS {command}\n")), "{command}: {}", page.stdout);
        let file = dir.path().join(format!("man/man1/sluicegate-{command}.1"));
        let own = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        assert!(own.contains(".SH EXAMPLES") && own.contains(".SH \"EXIT STATUS\""), "{own}");
    }
    assert!(dir.path().join("man/man1/sluicegate.1").is_file());
    dir.file("taken", "");
    assert_eq!(Run::default().args(&["man", "--dir", "taken"]).finish(dir.path()).code, Some(1));
}

#[test]
fn check_and_explain_read_stdin() {
    for args in [&["check", "-c", "-"][..], &["check", "-"], &["-t", "-c", "-"]] {
        let good = run_on_stdin(HELLO, args);
        assert!(good.code == Some(0) && good.stdout.starts_with("stdin is valid\n"), "{good:?}");
        let bad = run_on_stdin(&format!("{HELLO}limts: 1\n"), args);
        assert!(bad.code == Some(3) && bad.stderr.contains("stdin:3:1"), "{bad:?}");
    }
    let explained = run_on_stdin(HELLO, &["explain", "GET", "/", "-c", "-"]);
    assert_eq!(explained.code, Some(0), "{explained:?}");
    for args in
        [&["run", "-c", "-"][..], &["-c", "-"], &["run", "-"], &["reload", "-c", "-"], &["init", "-c", "-"]]
    {
        let refused = run_on_stdin(HELLO, args);
        assert!(
            refused.code == Some(2) && refused.stderr.contains("cannot use stdin"),
            "{args:?}: {refused:?}"
        );
    }
}

#[test]
fn check_describes_the_whole_file_for_programs_too() {
    let yaml = "server: { headers: { set: { X-A: a } } }\nupstreams: { app: 10.0.0.1:9000 }\nlocations:\n  \
                - { path: /, upstream: app, request_headers: { set: { X-Key: secret } } }\n  \
                - { path: /old, redirect: { to: \"/new${path}\" }, cors: { origins: https://a.test } }\n";
    let checked = run_on_stdin(yaml, &["check", "--json", "-"]);
    let report: Value = serde_json::from_str(&checked.stdout).expect("JSON");
    assert_eq!(report["listen"][0], "port 8080: plain HTTP");
    assert_eq!(report["upstreams"][0]["name"], "app");
    assert_eq!(report["upstreams"][0]["does"], "10.0.0.1:9000; no health checks; 1 retry (connect, refused)");
    assert_eq!(report["response_headers"], "set x-a");
    assert_eq!(report["locations"][0]["request_headers"], "set x-key");
    assert_eq!(report["locations"][1]["to"], "redirects to /new${path} with 308");
    assert_eq!(report["locations"][1]["cors"], "https://a.test");
    assert!(!checked.stdout.contains("secret"), "{checked:?}");
}

#[test]
fn the_file_may_be_an_argument_and_t_checks() {
    let dir = Scratch::new();
    let file =
        dir.file("other.yaml", &format!("listen: 127.0.0.1:0\nadmin: none\n{HELLO}")).display().to_string();
    for args in [&["check", &file][..], &["-t", "-c", &file], &["--test", "--config", &file]] {
        let checked = run(args);
        assert!(checked.code == Some(0) && checked.stdout.contains("is valid"), "{checked:?}");
    }
    for args in
        [&["check", &file, "-c", &file][..], &["run", &file, "-c", &file], &["-t", "run"], &["-t", &file]]
    {
        let refused = run(args);
        assert!(refused.code == Some(2) && refused.stderr.starts_with("error: "), "{args:?}: {refused:?}");
    }
    let hinted = run(&[&file]);
    assert!(
        hinted.code == Some(2) && hinted.stderr.contains(&format!("`sluicegate run {file}`")),
        "{hinted:?}"
    );
    assert_eq!(Run::default().args(&["run", &file]).serve(false).get("/").expect(200).text(), "ok");
}

/// With `log.format: json`, and with `auto` off a terminal, every line of stderr is JSON; the first one is no warning.
#[test]
fn json_logs_are_json_from_the_first_line() {
    // A limit that another one makes useless is a warning of the file.
    let warned = "limits:\n  long: { algorithm: leaky_bucket, rate: 1/m, queue: 1000, key: ip }\n\
                  locations:\n  - { path: /, respond: { body: ok }, limits: long }\n";
    let named = "log: { format: json }\nserver: { max_connections: 60000 }\n";
    for (log, level) in [("", "INFO"), (named, "WARN")] {
        let mut gateway = Run::default().under("ulimit -n 256").start(&format!("{log}{warned}"));
        gateway.get("/").expect(200);
        gateway.term();
        assert_eq!(gateway.wait_exit(), 0);
        let lines = json_lines(&gateway.stderr());
        assert!(
            lines.iter().all(|line| line["timestamp"].is_string() && line["level"].is_string()),
            "{lines:?}"
        );
        let message = |line: &Value| line["message"].as_str().unwrap_or_default().to_owned();
        assert!(lines[0]["level"] == "INFO" && message(&lines[0]).starts_with("sluicegate "), "{lines:#?}");
        let listening = lines.iter().position(|line| message(line).starts_with("listening http://"));
        let descriptors = lines.iter().position(|line| message(line).contains("descriptor limit"));
        let of_file =
            lines.iter().position(|line| line["code"].as_str().is_some_and(|code| code.starts_with('W')));
        assert!(listening.is_some() && listening < descriptors && listening < of_file, "{lines:#?}");
        // A trouble only where the file asks for more.
        assert_eq!(lines[descriptors.expect("the limit is told")]["level"], level);
    }
}

#[test]
fn pretty_logs_begin_with_the_banner() {
    let gateway = Run::default().under("ulimit -n 256").start(&format!("log: {{ format: pretty }}\n{HELLO}"));
    gateway.wait_stderr("descriptor limit");
    let stderr = gateway.stderr();
    assert!(
        stderr.starts_with("sluicegate ") && stderr.contains("\nlistening http://127.0.0.1:"),
        "{stderr}"
    );
    assert!(stderr.contains("\n/ -> answers 200\n"), "{stderr}");
}

#[test]
fn errors_of_a_start_have_the_format_of_the_log() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("an address");
    let dir = Scratch::new();
    let start = |yaml: &str| {
        let file = dir.file("gateway.yaml", yaml).display().to_string();
        Run::default().args(&["run", &file]).finish(dir.path())
    };
    let file = format!("listen: {addr}\nadmin: none\n{HELLO}");
    let finished = start(&format!("log: {{ format: json }}\n{file}"));
    let lines = json_lines(&finished.stderr);
    assert!(finished.code == Some(4) && lines.len() == 1 && lines[0]["level"] == "ERROR", "{finished:?}");
    let told = lines[0]["message"].as_str().expect("a message");
    assert!(
        told.starts_with(&format!("cannot listen on {addr}: ")) && told.contains("; the port is taken"),
        "{told}"
    );
    let finished = start(&format!("log: {{ format: pretty }}\n{file}"));
    assert!(finished.stderr.starts_with(&format!("error: cannot listen on {addr}: ")), "{finished:?}");
    // An invalid file too, as far as its format can be read.
    let finished = start(&format!("log: {{ format: json }}\n{file}limts: 1\n"));
    let lines = json_lines(&finished.stderr);
    assert!(finished.code == Some(3) && lines.len() == 1, "{finished:?}");
    assert!(lines[0]["at"].as_str().is_some_and(|at| at.ends_with("gateway.yaml:6:1")), "{finished:?}");
    let finished = start(&format!("log: {{ format: pretty }}\n{file}limts: 1\n"));
    assert!(finished.stderr.starts_with("error[E"), "{finished:?}");
    assert!(!json_lines(&start("locations: [\n").stderr).is_empty(), "auto, off a terminal");
}

/// The message names the process that has the port.
#[test]
fn a_taken_port_names_its_process() {
    let gateway = Gateway::start(HELLO);
    let dir = Scratch::new();
    let yaml = format!("listen: {}\nadmin: none\n{HELLO}", gateway.addr());
    let file = dir.file("gateway.yaml", &yaml).display().to_string();
    // The search gives up on a machine that is too busy.
    eventually("the process", || {
        let finished = Run::default().args(&["run", &file]).finish(dir.path());
        assert_eq!(finished.code, Some(4), "{finished:?}");
        finished.stderr.contains(&format!("(process {})", gateway.pid()))
    });
}
