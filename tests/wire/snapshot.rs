//! Counters across a restart: `state.snapshot`.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;

use crate::support::*;

/// A gateway with a bucket of three per hour and user, and a file for it.
struct Kept {
    dir: Scratch,
}

impl Kept {
    fn new() -> Kept {
        Kept { dir: Scratch::new() }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("counters.bin")
    }

    #[track_caller]
    fn start(&self) -> Gateway {
        self.start_with("rate: 3/h, burst: 3")
    }

    #[track_caller]
    fn start_with(&self, numbers: &str) -> Gateway {
        Gateway::start(&format!(
            "state: {{ snapshot: {} }}\nlimits:\n  \
               per-user: {{ key: header:x-user, {numbers} }}\n  other: {{ key: global, rate: 2/h, burst: 2 }}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: per-user }}\n  \
               - {{ path: /other, respond: {{ body: ok }}, limits: other }}\n",
            self.file().display()
        ))
    }
}

#[track_caller]
fn ask(gateway: &Gateway, user: &str) -> u16 {
    gateway.ask(&get("/").header("x-user", user)).status
}

#[track_caller]
fn stop(mut gateway: Gateway) {
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("a snapshot").permissions().mode() & 0o7777
}

/// A snapshot that cannot be written is reported at the start, by `check` and by `status`. Permissions do not
/// stop root, but in /proc no user can create a file.
#[test]
fn a_snapshot_that_cannot_be_written_is_reported() {
    let yaml = "state: { snapshot: /proc/counters.bin }\nlocations: [{ path: /, respond: { body: ok } }]\n";
    let gateway = Gateway::start(yaml);
    let message = "the snapshot `/proc/counters.bin` cannot be written";
    gateway.wait_stderr(message);
    let file = gateway.file().display().to_string();
    let checked = Run::default().args(&["check", "-c", &file]).finish(gateway.dir());
    assert!(checked.code == Some(0) && checked.stderr.contains(message), "{checked:?}");
    let status = || gateway.admin_get("/status").expect(200).text();
    assert!(status().contains("snapshot    /proc/counters.bin"), "{}", status());
    eventually("the first snapshot to fail", || status().contains("counters.bin cannot be written: "));
    // A reload reports it too.
    let good = yaml.replace("/proc/counters.bin", &gateway.dir().join("counters.bin").display().to_string());
    gateway.change(&good);
    assert!(!status().contains("cannot be written"), "{}", status());
    let warnings = gateway.stderr().matches(message).count();
    gateway.change(yaml);
    eventually("another warning", || gateway.stderr().matches(message).count() > warnings);
}

/// Units used before TERM are used after it; only the owner can read the file, and no other file remains.
#[test]
fn a_spent_bucket_is_spent_after_a_restart() {
    let kept = Kept::new();
    let gateway = kept.start();
    assert_eq!([(); 4].map(|()| ask(&gateway, "ann")), [200, 200, 200, 429]);
    assert_eq!(ask(&gateway, "bob"), 200);
    stop(gateway);
    assert_eq!(mode(&kept.file()), 0o600);
    assert_eq!(std::fs::read_dir(kept.dir.path()).expect("a folder").count(), 1);
    for _ in 0..2 {
        let gateway = kept.start();
        assert_eq!(gateway.metric("sluicegate_keys", &["limit=\"per-user\""]), 2.0);
        assert_eq!(ask(&gateway, "ann"), 429);
        assert!(!gateway.stderr().contains("snapshot"), "{}", gateway.stderr());
        stop(gateway);
    }
    let gateway = kept.start();
    assert_eq!([(); 3].map(|()| ask(&gateway, "bob")), [200, 200, 429]);
    assert_eq!([(); 4].map(|()| ask(&gateway, "eve")), [200, 200, 200, 429]);
}

/// Windows, logs and bans are restored as buckets are.
#[test]
fn windows_and_bans_survive_a_restart() {
    let kept = Kept::new();
    let start = || {
        Gateway::start(&format!(
            "state: {{ snapshot: {} }}\nbans: {{ after: 2/1h, for: 30m, key: ip }}\n\
             server: {{ trusted_proxies: 127.0.0.1 }}\nlimits:\n  \
               fixed: {{ algorithm: fixed_window, rate: 2/1h }}\n  \
               clock: {{ algorithm: fixed_window, rate: 2/1d, align: clock }}\n  \
               sliding: {{ algorithm: sliding_window, rate: 2/1h }}\n  \
               log: {{ algorithm: sliding_log, rate: 2/1h }}\nlocations:\n  \
               - {{ path: /fixed, respond: {{ body: ok }}, limits: fixed }}\n  \
               - {{ path: /clock, respond: {{ body: ok }}, limits: clock }}\n  \
               - {{ path: /sliding, respond: {{ body: ok }}, limits: sliding }}\n  \
               - {{ path: /log, respond: {{ body: ok }}, limits: log }}\n",
            kept.file().display()
        ))
    };
    let from = |ip: &str, path: &str| get(path).header("x-forwarded-for", ip);
    let paths = ["/fixed", "/clock", "/sliding", "/log"];
    let gateway = start();
    for path in paths {
        assert_eq!([(); 2].map(|()| gateway.ask(&from("192.0.2.1", path)).status), [200, 200], "{path}");
        thread::sleep(ms(2));
    }
    for _ in 0..4 {
        gateway.ask(&from("192.0.2.66", "/log"));
    }
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 1.0);
    stop(gateway);
    let gateway = start();
    let banned = gateway.ask(&from("192.0.2.66", "/fixed")).expect(429);
    let left: u64 = banned.header("retry-after").expect("Retry-After").parse().expect("seconds");
    assert!((1700..=1800).contains(&left), "{left}");
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 1.0);
    assert_eq!(gateway.ask(&from("192.0.2.1", "/log")).status, 429);
    for path in paths {
        // A third client, so that no ban answers in place of the limits.
        assert_eq!(gateway.ask(&from("192.0.2.2", path)).status, 200, "{path}");
    }
    for path in &paths[..2] {
        gateway.ask(&from("192.0.2.1", path)).expect(429);
    }
}

/// A killed process loses the changes since its last snapshot, a few seconds at most.
#[test]
fn a_kill_costs_a_few_seconds_at_most() {
    let kept = Kept::new();
    let mut gateway = kept.start();
    assert_eq!([(); 4].map(|()| ask(&gateway, "ann")), [200, 200, 200, 429]);
    let deadline = std::time::Instant::now() + PATIENCE * 2;
    while !kept.file().exists() {
        assert!(std::time::Instant::now() < deadline, "no snapshot comes; stderr:\n{}", gateway.stderr());
        thread::sleep(ms(20));
    }
    gateway.signal(rustix::process::Signal::KILL);
    eventually("its end", || !gateway.is_running());
    let gateway = kept.start();
    assert_eq!(ask(&gateway, "ann"), 429);
}

/// A damaged file is logged; the gateway serves, and replaces the file in the end.
#[test]
fn a_damaged_file_is_logged_and_ignored() {
    let kept = Kept::new();
    let gateway = kept.start();
    assert_eq!([(); 4].map(|()| ask(&gateway, "ann")), [200, 200, 200, 429]);
    stop(gateway);
    let mut bytes = std::fs::read(kept.file()).expect("a snapshot");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(kept.file(), bytes).expect("the snapshot can be written");
    let gateway = kept.start();
    assert_eq!(ask(&gateway, "ann"), 200);
    gateway.wait_stderr("the snapshot is ignored");
    gateway.wait_stderr("damaged");
    stop(gateway);
    let gateway = kept.start();
    assert_eq!([(); 3].map(|()| ask(&gateway, "ann")), [200, 200, 429]);
}

/// A limit with changed numbers starts fresh and says so; the others keep their counts.
#[test]
fn a_changed_limit_starts_fresh() {
    let kept = Kept::new();
    let gateway = kept.start();
    assert_eq!([(); 4].map(|()| ask(&gateway, "ann")), [200, 200, 200, 429]);
    assert_eq!([(); 2].map(|()| gateway.get("/other").status), [200, 200]);
    stop(gateway);
    let gateway = kept.start_with("rate: 4/h, burst: 1");
    assert_eq!([(); 2].map(|()| ask(&gateway, "ann")), [200, 429]);
    assert_eq!(gateway.get("/other").status, 429);
    gateway.wait_stderr("start fresh");
    gateway.wait_stderr("per-user");
}

/// A snapshot that cannot be written is a metric, also of a later configuration, until one is written again.
#[test]
fn a_failing_snapshot_is_a_metric() {
    let kept = Kept::new();
    let gateway = kept.start();
    let shows = |value: u8| gateway.metrics().contains(&format!("\nsluicegate_snapshot_failing {value}\n"));
    assert!(shows(0));
    let file = std::fs::read_to_string(gateway.file()).expect("its file");
    gateway.change(&file.replace("body: ok", "body: changed"));
    assert!(shows(0));
    let away = kept.dir.path().with_extension("away");
    std::fs::rename(kept.dir.path(), &away).expect("a folder can be moved");
    eventually("a failing snapshot", || shows(1));
    std::fs::rename(&away, kept.dir.path()).expect("a folder can be moved");
    eventually("a written snapshot", || shows(0));
}

/// If a snapshot can no longer be written, the gateway continues.
#[test]
fn a_folder_that_vanished_is_reported() {
    let kept = Kept::new();
    let mut gateway = kept.start();
    assert_eq!(ask(&gateway, "ann"), 200);
    std::fs::remove_dir(kept.dir.path()).expect("the folder is empty");
    gateway.term();
    assert_eq!(gateway.wait_exit(), 0);
    gateway.wait_stderr("the snapshot cannot be written");
}
