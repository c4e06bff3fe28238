//! Files that are too large, without an end or made to be expensive.

use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use sluicegate_import::import_file;

use crate::support::{Run, Scratch};

/// The time of this thread on a processor: other work on the machine does not count.
fn processor_ms() -> i64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// The part of a number.
type Part<'p> = &'p dyn Fn(usize) -> String;

/// The time to import as many parts in the place of `@`.
fn import_ms(count: usize, around: &str, part: Part<'_>) -> i64 {
    let scratch = Scratch::new();
    let parts: String = (0..count).map(part).collect();
    let file = scratch.file("nginx.conf", &around.replace('@', &parts));
    let start = processor_ms();
    import_file(&file).expect("an import");
    processor_ms() - start
}

#[test]
fn the_time_grows_with_the_parts_and_not_with_their_square() {
    let body = "limit_req zone=one; proxy_pass http://127.0.0.1:9000;";
    let locations = "limit_req_zone $host zone=one:1m rate=10r/s; server { listen 8080; @ }";
    let names = "server { listen 8080; } server { listen 8080; server_name @; return 403; }";
    let default =
        "server { listen 8080; server_name @; return 403; } server { listen 8080; server_name *.b.test; }";
    let geo = "geo $g { @ } server { listen 8080; if ($g) { return 403; } return 204; }";
    let parts: [(&str, usize, &str, Part<'_>); 8] = [
        ("prefixes", 1000, locations, &|n| format!("location /p{n}/ {{ {body} }}\n")),
        ("expressions", 1000, locations, &|n| format!("location ~ ^/p{n}$ {{ {body} }}\n")),
        ("servers", 1000, "@", &|n| {
            format!("server {{ listen 8080; server_name h{n}.test w{n}.test; return 403; }}\n")
        }),
        ("names", 4000, names, &|n| format!("h{n}.test\n")),
        ("names of the default", 4000, default, &|n| format!("h{n}.test\n")),
        ("rewrites", 200, locations, &|n| {
            format!("location /p{n}/ {{ rewrite a /$1 last; rewrite b /$1 last; {body} }}\n")
        }),
        ("listeners that are left out", 100, "server { @ return 204; }", &|n| {
            format!("listen {} proxy_protocol;\n", 10_000 + n)
        }),
        ("networks", 2000, geo, &|n| format!("10.{}.{}.7 1;\n", n >> 8, n & 255)),
    ];
    for (name, count, around, part) in parts {
        let (few, many) = (import_ms(count, around, part), import_ms(4 * count, around, part));
        assert!(many <= 7 * few, "{name}: {few} ms, and {many} ms for four times as many");
    }
}

fn mkfifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo runs");
    assert!(made.success());
}

/// The command fails within seconds and 500 MB of memory, for this reason.
#[track_caller]
fn assert_refused(scratch: &Scratch, args: &[&str], code: i32, why: &str) {
    let run = Run::default().under("ulimit -t 20; ulimit -d 500000").args(args);
    let done = run.finish(scratch.path());
    assert_eq!(done.code, Some(code), "{args:?}: {}", done.stderr);
    assert!(done.stderr.contains(why), "{args:?}: {}", done.stderr);
}

#[test]
fn only_regular_files_are_read() {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", "locations: []\n");
    for name in ["pipe.conf", "pipe.yaml", "pipe.log"] {
        mkfifo(&scratch.path().join(name));
    }
    let large = std::fs::File::create(scratch.path().join("large.conf")).expect("a file");
    large.set_len(9 << 20).expect("a sparse file");
    for file in ["/dev/zero", "pipe.conf", "pipe.yaml"] {
        assert_refused(&scratch, &["import", file], 3, "is not a regular file");
    }
    assert_refused(&scratch, &["import", "large.conf"], 3, "is larger than 8 MiB");
    assert_refused(&scratch, &["import", "none.conf"], 3, "does not exist");
    for verb in ["replay", "recommend"] {
        for file in ["/dev/zero", "pipe.log"] {
            assert_refused(&scratch, &[verb, file], 1, "is not a regular file");
        }
    }
}

#[test]
fn stdin_without_an_end_is_refused() {
    let scratch = Scratch::new();
    scratch.file("gateway.yaml", "locations: []\n");
    for (args, code, why) in
        [(&["import", "-"], 3, "is larger than 8 MiB"), (&["replay", "-"], 1, "a line is longer than 64 MiB")]
    {
        let zeros = std::fs::File::open("/dev/zero").expect("a device");
        let done = Run::default().stdin(zeros.into()).args(args).finish(scratch.path());
        assert_eq!(done.code, Some(code), "{args:?}: {}", done.stderr);
        assert!(done.stderr.contains(why), "{args:?}: {}", done.stderr);
    }
}

#[test]
fn includes_are_bounded() {
    let scratch = Scratch::new();
    mkfifo(&scratch.path().join("pipe"));
    for folder in ["many", "acl", "proxy_params"] {
        std::fs::create_dir(scratch.path().join(folder)).expect("a folder");
    }
    for (to, link) in [("none", "acl/broken.conf"), ("loop", "loop")] {
        std::os::unix::fs::symlink(to, scratch.path().join(link)).expect("a link");
    }
    for number in 0..2001 {
        scratch.file(&format!("many/{number}.inc"), "");
    }
    scratch.file("again.inc", "include again.inc;\n");
    scratch.file("four.inc", &"# 4 MiB\n".repeat(4 << 17));
    for (include, why) in [
        ("/dev/zero", "is not a regular file"),
        ("pipe", "is not a regular file"),
        ("none.inc", "does not exist"),
        ("many", "is a directory"),
        ("pip*", "is not a regular file"),
        ("acl/*.conf", "does not exist"),
        ("acl/*/x.conf", ""),
        ("loop/*.conf", "cannot be read"),
        ("loop/[a]/x.conf", "cannot be read"),
        ("'man[y]/\\0.inc'", "nginx takes"),
        ("many/[[:alpha:]].inc", "nginx takes"),
        ("proxy_params/deny.conf", "does not exist"),
        ("many/*.inc", "`many/*.inc` stands for too many files"),
        ("/proc/*/task/*/fd/*", ""),
        ("again.inc", "included too deeply"),
        ("four.inc; include four.inc; include four.inc", "the files are larger than 8 MiB"),
    ] {
        scratch.file("nginx.conf", &format!("include {include};\nserver {{ listen 80; }}\n"));
        let done = Run::default().under("ulimit -t 20").args(&["import", "nginx.conf"]);
        let done = done.finish(scratch.path());
        let text = format!("{include}: {:?} {}", done.code, done.stderr);
        if why.is_empty() {
            assert!(done.code.is_some(), "{text}");
            continue;
        }
        assert_eq!(done.code, Some(3), "{text}");
        assert!(done.stderr.contains("nginx.conf:1: ") || include == "again.inc", "{text}");
        assert!(done.stderr.contains(why), "{text}");
    }
}
