//! The gateway under test: the real binary, started with a file and observed from outside.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::PATIENCE;
use super::client::{Ask, Client};
use super::http::Response;
use super::run::{Lines, Run, Scratch, completed};
use super::timing::{eventually, ms};

/// A running gateway; dropping it kills it.
pub struct Gateway {
    child: Child,
    scratch: Scratch,
    stdout: Lines,
    stderr: Lines,
    /// `127.0.0.1:PORT` or `/path`, in the order of their announcement.
    listening: Vec<String>,
    admin: Option<SocketAddr>,
    status: Option<ExitStatus>,
}

/// The process that answers on an admin port; dropping it kills it.
pub struct Successor(pub i32);

impl Drop for Successor {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Gateway {
    /// Sends USR2, waits for this process to end, and returns its successor.
    #[track_caller]
    pub fn upgrade(&mut self) -> Successor {
        let old = self.pid();
        self.signal(Signal::USR2);
        eventually("another process", || self.process() != old);
        let successor = Successor(self.process() as i32);
        assert_eq!(self.wait_left(), 0, "stderr:\n{}", self.stderr());
        successor
    }

    /// The process that answers on the admin port.
    #[track_caller]
    pub fn process(&self) -> u32 {
        let status = self.ask_admin(&super::get("/status").header("Accept", "application/json"));
        status.expect(200).json()["pid"].as_u64().expect("a process id") as u32
    }

    #[track_caller]
    pub fn start(yaml: &str) -> Gateway {
        Run::default().start(yaml)
    }

    /// Waits until `child` has announced its listeners.
    #[track_caller]
    pub fn ready(
        child: Child,
        scratch: Scratch,
        output: [Lines; 2],
        listeners: usize,
        admin: bool,
    ) -> Gateway {
        let [stdout, stderr] = output;
        let mut gateway =
            Gateway { child, scratch, stdout, stderr, listening: Vec::new(), admin: None, status: None };
        gateway.wait_ready(listeners, admin);
        gateway
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

    /// All TCP listeners.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.listening.iter().filter_map(|listening| listening.parse().ok()).collect()
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

    pub fn file(&self) -> PathBuf {
        self.scratch.path().join("gateway.yaml")
    }

    /// Rewrites the file, completed as in [`Run::start`].
    pub fn write(&self, yaml: &str) {
        std::fs::write(self.file(), completed(yaml)).expect("the file can be written");
    }

    /// Posts to `/reload`.
    #[track_caller]
    pub fn reload(&self) -> Response {
        self.ask_admin(&super::post("/reload", b"").header("Content-Type", "application/json"))
    }

    /// Rewrites the file and reloads it; returns the changes.
    #[track_caller]
    pub fn change(&self, yaml: &str) -> String {
        self.write(yaml);
        self.reload().expect(200).text()
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

    /// Sends a request to the admin port under the name of this host.
    #[track_caller]
    pub fn ask_admin(&self, ask: &Ask) -> Response {
        Client::connect(self.admin()).ask(&ask.clone().host("localhost"))
    }

    #[track_caller]
    pub fn admin_get(&self, target: &str) -> Response {
        self.ask_admin(&super::get(target))
    }

    #[track_caller]
    pub fn metrics(&self) -> String {
        self.admin_get("/metrics").expect(200).text()
    }

    /// The sum of the samples of one metric with all of `labels` in their lines.
    #[track_caller]
    pub fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        sum(&self.metrics(), name, labels)
    }

    /// The same with a token for the admin port.
    #[track_caller]
    pub fn metric_with(&self, token: &str, name: &str, labels: &[&str]) -> f64 {
        let ask = super::get("/metrics").header("Authorization", format!("Bearer {token}"));
        sum(&self.ask_admin(&ask).expect(200).text(), name, labels)
    }

    /// Waits until `count` requests stand in the queues.
    #[track_caller]
    pub fn wait_queued(&self, count: u32) {
        let queued = || self.metric("sluicegate_queue_depth", &[]);
        eventually(&format!("{count} waiting requests"), || queued() == f64::from(count));
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

    /// Waits for a text on stderr: a line may come after the response that belongs to it.
    #[track_caller]
    pub fn wait_stderr(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.stderr().contains(text) {
            assert!(Instant::now() < deadline, "no `{text}` on stderr:\n{}", self.stderr());
            thread::sleep(ms(3));
        }
    }

    /// Sends TERM.
    pub fn term(&self) {
        self.signal(Signal::TERM);
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("the gateway can be signalled");
    }

    /// Waits for the end of the gateway; returns the exit code.
    #[track_caller]
    pub fn wait_exit(&mut self) -> i32 {
        self.wait_exit_within(PATIENCE)
    }

    #[track_caller]
    pub fn wait_exit_within(&mut self, timeout: Duration) -> i32 {
        let deadline = Instant::now() + timeout;
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

    /// Does the same as [`Gateway::wait_exit`], if another process keeps writing to the same streams.
    #[track_caller]
    pub fn wait_left(&mut self) -> i32 {
        eventually("its end", || !self.is_running());
        let status = self.child.try_wait().expect("a child can be waited for");
        self.status = status;
        status.and_then(|status| status.code()).unwrap_or_else(|| panic!("{status:?}"))
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

fn sum(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let samples = metrics.lines().filter(|line| {
        let rest = line.strip_prefix(name).unwrap_or_default();
        rest.starts_with(['{', ' ']) && labels.iter().all(|label| line.contains(label))
    });
    samples.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

/// The address after `word`, in any log format.
fn announced(line: &str, word: &str) -> Option<String> {
    for scheme in ["http://", "https://", "redis://", "rediss://", "unix:"] {
        let mark = format!("{word}{scheme}");
        if let Some(at) = line.find(&mark) {
            let rest = &line[at + mark.len()..];
            let end =
                rest.find(|c: char| c.is_whitespace() || c == '"' || c == '\u{1b}').unwrap_or(rest.len());
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

/// The same under these `server.timeouts`.
#[track_caller]
pub fn with_timeouts(upstream: &super::Upstream, timeouts: &str) -> Gateway {
    forwarding(upstream, &format!("server: {{ timeouts: {{ {timeouts} }} }}"))
}
