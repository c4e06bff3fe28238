//! The gateway under test: the real binary, started on a file, watched from outside.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::PATIENCE;
use super::client::{Ask, Client};
use super::http::Response;
use super::timing::{eventually, ms};

/// A directory of one test, removed with it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let place = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sluicegate-test-{}-{place}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a temporary directory");
        Scratch(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the temporary directory takes files");
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How to start the binary.
#[derive(Default)]
pub struct Run {
    env: Vec<(String, String)>,
    /// Shell words put before it, e.g. `ulimit -n 256`.
    shell: Option<String>,
    args: Option<Vec<String>>,
}

/// What a run that ended by itself left behind.
#[derive(Debug)]
pub struct Finished {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    pub fn env(mut self, name: &str, value: &str) -> Run {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn under(mut self, shell: &str) -> Run {
        self.shell = Some(shell.to_owned());
        self
    }

    /// Instead of `run -c FILE`.
    pub fn args(mut self, args: &[&str]) -> Run {
        self.args = Some(args.iter().map(|&a| a.to_owned()).collect());
        self
    }

    fn command(&self, args: &[String], dir: &Path) -> Command {
        let binary = env!("CARGO_BIN_EXE_sluicegate");
        let mut command = match &self.shell {
            None => Command::new(binary),
            Some(words) => {
                let mut sh = Command::new("sh");
                sh.arg("-c").arg(format!("{words}; exec \"$0\" \"$@\"")).arg(binary);
                sh
            }
        };
        command.args(args).current_dir(dir).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.envs(self.env.iter().map(|(n, v)| (n, v)));
        command
    }

    /// Starts the gateway on `yaml` and waits until it listens. Without a `listen` or `admin` line of its
    /// own the file gets one on a port that the kernel picks.
    #[track_caller]
    pub fn start(self, yaml: &str) -> Gateway {
        let mut text = String::new();
        for word in ["listen", "admin"] {
            if !yaml.lines().any(|line| line.starts_with(&format!("{word}:"))) {
                let _ = writeln!(text, "{word}: 127.0.0.1:0");
            }
        }
        text += yaml;
        let (listeners, admin) = expected(&text);
        let scratch = Scratch::new();
        let file = scratch.file("gateway.yaml", &text);
        let args = vec!["run".to_owned(), "-c".to_owned(), file.display().to_string()];
        self.spawn(&args, scratch, listeners, admin)
    }

    /// Starts the binary with the arguments given, waits for one listener and, if wanted, the admin port.
    #[track_caller]
    pub fn serve(self, admin: bool) -> Gateway {
        let args = self.args.clone().expect("arguments");
        self.spawn(&args, Scratch::new(), 1, admin)
    }

    #[track_caller]
    fn spawn(self, args: &[String], scratch: Scratch, listeners: usize, admin: bool) -> Gateway {
        let mut child = self.command(args, scratch.path()).spawn().expect("the binary starts");
        let stdout = Lines::follow(child.stdout.take().expect("piped"));
        let stderr = Lines::follow(child.stderr.take().expect("piped"));
        let mut gateway =
            Gateway { child, scratch, stdout, stderr, listening: Vec::new(), admin: None, status: None };
        gateway.wait_ready(listeners, admin);
        gateway
    }

    /// Runs the binary to its end in `dir`.
    #[track_caller]
    pub fn finish(self, dir: &Path) -> Finished {
        let args = self.args.clone().expect("arguments");
        let mut child = self.command(&args, dir).spawn().expect("the binary starts");
        let stdout = Lines::follow(child.stdout.take().expect("piped"));
        let stderr = Lines::follow(child.stderr.take().expect("piped"));
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = child.try_wait().expect("a child can be waited for") {
                break status;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{args:?} did not end; stderr:\n{}", stderr.text());
            }
            thread::sleep(ms(5));
        };
        stdout.wait_end();
        stderr.wait_end();
        Finished { code: status.code(), stdout: stdout.text(), stderr: stderr.text() }
    }
}

/// How many `listening` lines the file leads to, and whether an `admin` line.
fn expected(yaml: &str) -> (usize, bool) {
    let file: serde_yaml::Value = serde_yaml::from_str(yaml).expect("the test wrote YAML");
    let listeners = match &file["listen"] {
        serde_yaml::Value::Sequence(items) => items.len(),
        _ => 1,
    };
    (listeners, file["admin"].as_str() != Some("none"))
}

/// One stream of a child's output, collected in the background.
struct Lines(Arc<(Mutex<(Vec<String>, bool)>, Condvar)>);

impl Lines {
    fn follow(stream: impl Read + Send + 'static) -> Lines {
        let shared = Arc::new((Mutex::new((Vec::new(), false)), Condvar::new()));
        let lines = shared.clone();
        thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let mut line = Vec::new();
            while stream.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                let text = String::from_utf8_lossy(&line).trim_end_matches('\n').to_owned();
                lines.0.lock().unwrap().0.push(text);
                lines.1.notify_all();
                line.clear();
            }
            lines.0.lock().unwrap().1 = true;
            lines.1.notify_all();
        });
        Lines(shared)
    }

    fn all(&self) -> Vec<String> {
        self.0.0.lock().unwrap().0.clone()
    }

    fn text(&self) -> String {
        self.all().iter().map(|line| format!("{line}\n")).collect()
    }

    fn ended(&self) -> bool {
        self.0.0.lock().unwrap().1
    }

    fn wait_end(&self) {
        let lines = self.0.0.lock().unwrap();
        drop(self.0.1.wait_timeout_while(lines, PATIENCE, |lines| !lines.1));
    }
}

/// A running gateway; dropping it kills it.
pub struct Gateway {
    child: Child,
    scratch: Scratch,
    stdout: Lines,
    stderr: Lines,
    /// `127.0.0.1:PORT` or `/path`, in the order they were announced.
    listening: Vec<String>,
    admin: Option<SocketAddr>,
    status: Option<ExitStatus>,
}

impl Gateway {
    #[track_caller]
    pub fn start(yaml: &str) -> Gateway {
        Run::default().start(yaml)
    }

    #[track_caller]
    fn wait_ready(&mut self, listeners: usize, admin: bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let lines = self.stderr.all();
            self.listening = lines.iter().filter_map(|line| announced(line, "listening ")).collect();
            self.admin = lines.iter().find_map(|line| announced(line, "admin ")?.parse().ok());
            if self.listening.len() >= listeners && (!admin || self.admin.is_some()) {
                return;
            }
            if Instant::now() > deadline || self.stderr.ended() {
                let status = self.child.try_wait();
                let file = std::fs::read_to_string(self.scratch.path().join("gateway.yaml"));
                panic!(
                    "the gateway is not ready ({status:?}); stderr:\n{}\nfile:\n{}",
                    self.stderr.text(),
                    file.unwrap_or_default()
                );
            }
            thread::sleep(ms(2));
        }
    }

    /// The first TCP listener.
    #[track_caller]
    pub fn addr(&self) -> SocketAddr {
        let mut addrs = self.listening.iter().filter_map(|l| l.parse().ok());
        addrs.next().expect("a TCP listener")
    }

    #[track_caller]
    pub fn admin(&self) -> SocketAddr {
        self.admin.expect("an admin listener")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn dir(&self) -> &Path {
        self.scratch.path()
    }

    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.addr())
    }

    /// One request on a connection of its own.
    #[track_caller]
    pub fn ask(&self, ask: &Ask) -> Response {
        self.client().ask(ask)
    }

    #[track_caller]
    pub fn get(&self, target: &str) -> Response {
        self.ask(&super::get(target))
    }

    /// Raw bytes on a connection of their own, and the one answer.
    #[track_caller]
    pub fn raw(&self, bytes: impl AsRef<[u8]>) -> Response {
        let mut client = self.client();
        client.send(bytes);
        client.response()
    }

    #[track_caller]
    pub fn admin_get(&self, target: &str) -> Response {
        Client::connect(self.admin()).ask(&super::get(target))
    }

    #[track_caller]
    pub fn metrics(&self) -> String {
        self.admin_get("/metrics").expect(200).text()
    }

    /// The sum of the samples of one metric whose line contains all of `labels`.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.metrics();
        let samples = text.lines().filter(|line| {
            let rest = line.strip_prefix(name).unwrap_or_default();
            rest.starts_with(['{', ' ']) && labels.iter().all(|label| line.contains(label))
        });
        samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// The access log so far.
    #[track_caller]
    pub fn log_lines(&self) -> Vec<Value> {
        let lines = self.stdout.all();
        let json = |line: &String| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        lines.iter().map(json).collect()
    }

    /// The access log once it has `count` lines; fails when it gets more.
    #[track_caller]
    pub fn wait_log(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} access-log lines"), || self.stdout.all().len() >= count);
        let lines = self.log_lines();
        assert_eq!(lines.len(), count, "{lines:#?}");
        lines
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// Sends TERM.
    pub fn term(&self) {
        self.signal(Signal::TERM);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("the gateway can be signalled");
    }

    /// Waits for its end and returns the exit code.
    #[track_caller]
    pub fn wait_exit(&mut self) -> i32 {
        self.wait_exit_within(PATIENCE)
    }

    #[track_caller]
    pub fn wait_exit_within(&mut self, patience: Duration) -> i32 {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                self.status = Some(status);
                self.stdout.wait_end();
                return status.code().unwrap_or_else(|| panic!("{status}; stderr:\n{}", self.stderr()));
            }
            assert!(Instant::now() < deadline, "it still runs; stderr:\n{}", self.stderr());
            thread::sleep(ms(2));
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if thread::panicking() {
            eprintln!("--- stderr of the gateway\n{}---", self.stderr.text());
        }
    }
}

/// The address after `word`, whatever the log format puts around it.
fn announced(line: &str, word: &str) -> Option<String> {
    for scheme in ["http://", "unix:"] {
        let mark = format!("{word}{scheme}");
        if let Some(at) = line.find(&mark) {
            let rest = &line[at + mark.len()..];
            let end = rest.find(|c: char| c.is_whitespace() || c == '"' || c == '\u{1b}').unwrap_or(rest.len());
            return Some(rest[..end].to_owned());
        }
    }
    None
}

/// A gateway that forwards everything to `upstream`, under these extra top-level lines.
#[track_caller]
pub fn forwarding(upstream: &super::Upstream, extra: &str) -> Gateway {
    Gateway::start(&format!("{extra}\nlocations:\n  - {{ path: /, upstream: \"{}\" }}\n", upstream.url()))
}
