//! Files that the configuration names and that are not regular: a pipe, which would block, and a device
//! without end.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use sluicegate_config as config;
use sluicegate_model::AccessLogOutput;

/// A test folder with a pipe in it, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = std::env::temp_dir().join(format!("sluicegate-config-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mode = rustix::fs::Mode::from(0o600);
        let pipe = folder.join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The problem of the file at `path`, unless reading it blocks for ever.
fn problems(path: PathBuf) -> String {
    let (done, read) = mpsc::channel();
    std::thread::spawn(move || done.send(config::load(&path).expect_err("it is wrong").to_string()));
    read.recv_timeout(Duration::from_secs(10)).expect("it waits for a pipe")
}

#[test]
fn an_irregular_file_is_rejected_at_once() {
    let folder = Folder::new();
    let tls = Path::new("../../tests/keys/tls").canonicalize().expect("the keys");
    let (cert, key) = (tls.join("a.pem").display().to_string(), tls.join("a.key.pem").display().to_string());
    let (pipe, device) = (folder.0.join("pipe").display().to_string(), "/dev/zero".to_owned());
    assert!(problems(pipe.clone().into()).contains("is not a regular file"));
    for file in [&pipe, &device] {
        for text in [
            format!("listen: \"${{file:{file}}}\"\n"),
            format!("listen: {{ address: \":1\", tls: {{ cert: {file}, key: {key} }} }}\n"),
            format!("listen: {{ address: \":1\", tls: {{ cert: {cert}, key: {file} }} }}\n"),
            format!(
                "listen: {{ address: \":1\", tls: {{ cert: {cert}, key: {key}, client_ca: {file} }} }}\n"
            ),
            format!("ip_sets: {{ offices: {{ file: {file} }} }}\n"),
            format!("account: {{ from: header:x-user, tier: {{ file: {file} }} }}\n"),
            format!("account: {{ from: jwt:sub, jwt: {{ jwks: {file} }} }}\n"),
            format!("upstreams: {{ app: {{ servers: [\"https://a:1\"], tls: {{ ca: {file} }} }} }}\n"),
            format!("state: {{ redis: {{ url: \"rediss://a\", tls: {{ ca: {file} }} }} }}\n"),
        ] {
            let path = folder.0.join("gateway.yaml");
            std::fs::write(&path, format!("{text}locations: []\n")).expect("a file");
            let problem = problems(path);
            assert!(problem.contains("is not a regular file"), "{text}{problem}");
        }
    }
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let folder = Path::new("tests/config/valid");
    let file = folder.join("redis_some.yaml");
    let config = config::load(&file).unwrap_or_else(|report| panic!("{report}")).config;
    assert_eq!(config.state.snapshot, Some(folder.join("counters.bin")));
    assert_eq!(config.access_log.output, AccessLogOutput::File(folder.join("./access.log")));
}

#[test]
fn another_encoding_and_too_much_text_say_what_to_do() {
    let path = std::env::temp_dir().join(format!("sluicegate-encoding-{}.yaml", std::process::id()));
    let text = "locations: []\n";
    let utf16 = |mark: u16, swap: bool| -> Vec<u8> {
        let units = std::iter::once(mark).chain(text.encode_utf16());
        units.flat_map(|unit| if swap { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    };
    for (bytes, says) in [
        (utf16(0xfeff, false), "it is UTF-16: save it as UTF-8"),
        (utf16(0xfeff, true), "it is UTF-16: save it as UTF-8"),
        (utf16(0xfeff, false)[2..].to_vec(), "if the file is UTF-16, save it as UTF-8"),
        (b"locations: []\n# caf\xe9\n".to_vec(), "help: save it as UTF-8"),
        (b"# 34567\n".repeat(132_000), "1 MiB is the most"),
    ] {
        std::fs::write(&path, bytes).expect("a file");
        let report = config::load(&path).map(drop).expect_err(says).to_string();
        assert!(report.contains(says), "{report}");
    }
    let _ = std::fs::remove_file(&path);
}

/// Permissions do not stop root, but in /proc no user can create a file.
#[test]
fn a_snapshot_that_cannot_be_written_is_a_warning() {
    let file = |snapshot: &str| {
        format!("state: {{ snapshot: \"{snapshot}\" }}\nlocations: [{{ path: /, upstream: demo }}]\n")
    };
    let warnings = |snapshot: &str| {
        let loaded = config::parse(&file(snapshot), "x.yaml").unwrap_or_else(|report| panic!("{report}"));
        loaded.warnings
    };
    let [warning] = &warnings("/proc/counters.bin")[..] else { panic!("one warning") };
    let problem = (warning.code, warning.line, warning.column, warning.message.as_str());
    let message = "the snapshot `/proc/counters.bin` cannot be written: ";
    assert!(
        problem.0 == "W009" && (problem.1, problem.2) == (1, 20) && problem.3.starts_with(message),
        "{warning:?}"
    );
    let folder = std::env::temp_dir().join(format!("sluicegate-snapshot-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    assert_eq!(warnings(&folder.join("counters.bin").display().to_string()), []);
    assert_eq!(std::fs::read_dir(&folder).expect("the folder").count(), 0, "it left something behind");
    // A folder that is a file is no folder.
    let inner = folder.join("file");
    std::fs::write(&inner, "").expect("a file");
    let report = config::parse(&file(&inner.join("counters.bin").display().to_string()), "x.yaml");
    assert!(report.expect_err("it is wrong").to_string().contains("does not exist"));
    let _ = std::fs::remove_dir_all(&folder);
}
