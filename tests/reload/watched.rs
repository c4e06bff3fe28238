//! `reload: { watch: … }`: changed files are applied without a signal.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::thread;

use crate::support::*;

fn saying(word: &str) -> String {
    format!("reload: {{ watch: 100ms }}\nlocations:\n  - {{ path: /, respond: {{ body: {word} }} }}\n")
}

fn said(gateway: &Gateway) -> String {
    gateway.get("/").expect(200).text()
}

/// A change is noticed, also by renaming another file into place, as Kubernetes and editors do.
#[test]
fn a_change_is_applied() {
    let gateway = Gateway::start(&saying("one"));
    gateway.write(&saying("two"));
    eventually("the change", || said(&gateway) == "two");
    let beside = gateway.dir().join("beside.yaml");
    let text = std::fs::read_to_string(gateway.file()).expect("the file");
    std::fs::write(&beside, text.replace("two", "three")).expect("another file");
    std::fs::rename(&beside, gateway.file()).expect("renamed");
    eventually("the change", || said(&gateway) == "three");
    // The new file answers requests a moment before the reload is counted.
    eventually("two reloads", || gateway.metric("sluicegate_reloads_total", &["ok"]) == 2.0);
    // Touched but unchanged.
    gateway.write(&saying("three"));
    thread::sleep(ms(500));
    assert_eq!(gateway.metric("sluicegate_reloads_total", &[]), 2.0);
}

/// An invalid file is reported once, and a valid one afterwards is applied.
#[test]
fn a_broken_file_is_reported_once() {
    let gateway = Gateway::start(&saying("one"));
    gateway.write("locations: [\n");
    eventually("a failure", || gateway.metric("sluicegate_reloads_total", &["failed"]) == 1.0);
    thread::sleep(ms(700));
    assert_eq!(gateway.metric("sluicegate_reloads_total", &["failed"]), 1.0);
    assert_eq!(said(&gateway), "one");
    gateway.write(&saying("two"));
    eventually("the change", || said(&gateway) == "two");
}

/// A file written piece by piece is left alone until it stops changing.
#[test]
fn a_file_that_grows_is_left_alone() {
    let gateway = Gateway::start(&saying("one"));
    gateway.write(&saying("two"));
    for n in 0..40 {
        // Appended instead of rewritten: on a busy disk a truncated file is empty for many checks.
        let mut file = OpenOptions::new().append(true).open(gateway.file()).expect("the file");
        writeln!(file, "# {n}").expect("the file can be written");
        thread::sleep(ms(20));
    }
    let meanwhile = gateway.metric("sluicegate_reloads_total", &[]);
    assert!(meanwhile <= 1.0, "{meanwhile} reloads of a file that was never quiet");
    eventually("the change", || said(&gateway) == "two");
    assert_eq!(gateway.metric("sluicegate_reloads_total", &["failed"]), 0.0);
}

/// Files named by the configuration are watched as well; other files are ignored.
#[test]
fn named_files_are_watched_too() {
    let dir = Scratch::new();
    let word = dir.file("word", "one");
    let file = |watch: &str| {
        let body = format!("\"${{file:{}}}\"", word.display());
        saying(&body).replace("100ms", watch)
    };
    let gateway = Gateway::start(&file("100ms"));
    assert_eq!(said(&gateway), "one");
    dir.file("word", "two");
    eventually("the change", || said(&gateway) == "two");
    gateway.change(&file("none"));
    dir.file("word", "three");
    thread::sleep(ms(500));
    assert_eq!(said(&gateway), "two");
    gateway.reload().expect(200);
    assert_eq!(said(&gateway), "three");
}

/// A file rejected because a file it names is missing is applied once that one appears.
#[test]
fn files_of_a_refused_file_are_watched() {
    let gateway = Gateway::start(&saying("one"));
    let word = gateway.dir().join("word");
    gateway.write(&saying(&format!("\"${{file:{}}}\"", word.display())));
    eventually("a failure", || gateway.metric("sluicegate_reloads_total", &["failed"]) == 1.0);
    assert_eq!(said(&gateway), "one");
    std::fs::write(&word, "two").expect("another file");
    eventually("the change", || said(&gateway) == "two");
    // The named file may disappear again and come back with other content.
    std::fs::remove_file(&word).expect("removed");
    eventually("a failure", || gateway.metric("sluicegate_reloads_total", &["failed"]) == 2.0);
    std::fs::write(&word, "three").expect("another file");
    eventually("the change", || said(&gateway) == "three");
}

/// A pipe, or anything else without an end, does not stop the watch: it counts as unreadable until it is a file.
#[test]
fn a_pipe_does_not_end_the_watch() {
    let gateway = Gateway::start(&saying("one"));
    let word = gateway.dir().join("word");
    std::fs::write(&word, "two").expect("a file");
    gateway.change(&saying(&format!("\"${{file:{}}}\"", word.display())));
    for (file, text) in [(gateway.file(), None), (word.clone(), Some("three"))] {
        let kept = std::fs::read(&file).expect("the file");
        std::fs::remove_file(&file).expect("removed");
        mkfifo(&file);
        let failures = gateway.metric("sluicegate_reloads_total", &["failed"]);
        eventually("a failure", || gateway.metric("sluicegate_reloads_total", &["failed"]) == failures + 1.0);
        gateway.wait_stderr("is not a regular file");
        std::fs::remove_file(&file).expect("removed");
        std::fs::write(&file, text.map_or(kept, |text| text.into())).expect("a file");
    }
    eventually("the change", || said(&gateway) == "three");
}

fn mkfifo(path: &Path) {
    let mode = rustix::fs::Mode::from(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
}

/// A port in use by another process is taken once it is free; meanwhile the problem is reported once.
#[test]
fn a_taken_port_is_tried_again() {
    let gateway = Gateway::start(&saying("one"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let addr = taken.local_addr().expect("an address");
    gateway.write(&format!("listen: [127.0.0.1:0, \"{addr}\"]\n{}", saying("two")));
    eventually("a failure", || gateway.metric("sluicegate_reloads_total", &["failed"]) == 1.0);
    thread::sleep(ms(5000));
    assert_eq!(gateway.metric("sluicegate_reloads_total", &[]), 1.0);
    assert_eq!(gateway.stderr().matches("the old configuration stays").count(), 1);
    assert_eq!(said(&gateway), "one");
    drop(taken);
    eventually("the change", || said(&gateway) == "two");
    Client::connect(addr).ask(&get("/")).expect(200);
}

/// A shorter interval applies at once, not after the previous pause.
#[test]
fn a_shorter_pause_holds_at_once() {
    let gateway = Gateway::start(&saying("one").replace("100ms", "60s"));
    thread::sleep(ms(200));
    gateway.change(&saying("two"));
    gateway.write(&saying("three"));
    eventually("the change", || said(&gateway) == "three");
}
