//! A wall clock that is set back while the gateway runs.

use std::path::PathBuf;
use std::process::Command;

use crate::support::*;

/// The time of day that a process sees once the file named by STEPPED_BACK exists: an hour less.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, now);
    if (which == CLOCK_REALTIME && access(getenv("STEPPED_BACK"), F_OK) == 0) now->tv_sec -= 3600;
    return result;
}
"#;

/// A library with a false time, for LD_PRELOAD.
fn lying_clock(scratch: &Scratch) -> PathBuf {
    let (source, library) = (scratch.file("clock.c", CLOCK), scratch.path().join("clock.so"));
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .arg("-ldl")
        .status()
        .expect("a C compiler, with which Rust links");
    assert!(compiled.success());
    library
}

/// Seconds of the day.
fn time_of(date: &str) -> i64 {
    let time = date.split(' ').nth(4).unwrap_or_else(|| panic!("{date}"));
    time.split(':').fold(0, |sum, part| sum * 60 + part.parse::<i64>().expect("a number"))
}

/// The Date of responses follows at once, over HTTP/1 and HTTP/2, and continues from there; a server's own
/// Date stays.
#[test]
fn the_date_follows_a_step_back() {
    let scratch = Scratch::new();
    let stepped = scratch.path().join("stepped");
    let upstream = Upstream::new(|_| Reply::with(200, &[("Date", "Sun, 06 Nov 1994 08:49:37 GMT")], "own"));
    let gateway = Run::default()
        .env("LD_PRELOAD", &lying_clock(&scratch).display().to_string())
        .env("STEPPED_BACK", &stepped.display().to_string())
        .start(&format!(
            "server: {{ workers: 1 }}\nlocations:\n  - {{ path: /, respond: {{ body: ok }} }}\n  \
               - {{ path: /own, upstream: \"{}\" }}\n",
            upstream.url()
        ));
    let mut client = gateway.client();
    let mut date = || client.ask(&get("/")).expect(200).header("date").expect("a date");
    let before = time_of(&date());
    std::fs::write(&stepped, "").expect("a file");
    let gone_back = |date: &str| (before - time_of(date)).rem_euclid(86_400);
    eventually("an hour less", || (3_500..=3_600).contains(&gone_back(&date())));
    let first = date();
    eventually("the next second", || date() != first);
    let mut h2 = Client2::connect(gateway.addr());
    let request = ::http::Request::get("http://gateway.test/").body(()).expect("a request");
    let answer = h2.ask(request, b"", None).expect("an answer");
    let date = answer.headers["date"].to_str().expect("text");
    assert!((3_500..=3_600).contains(&gone_back(date)), "{date}");
    let own = gateway.get("/own").expect(200).header("date");
    assert_eq!(own.as_deref(), Some("Sun, 06 Nov 1994 08:49:37 GMT"));
}
