//! A real Redis server for one test: started, paused, killed, queried.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Instant, SystemTime};

use ::redis::{Connection, FromRedisValue, Value};
use rustix::process::{Pid, Signal, kill_process};

use super::PATIENCE;
use super::ports::free_addr;
use super::run::{Lines, Scratch};
use super::timing::{eventually, ms};

const FILE: &str = "redis.conf";
/// The file with the step of the clock.
const CLOCK: &str = "clock";

/// A running server with its own directory; dropping it kills it.
pub struct Redis {
    /// `None` after [`Redis::kill`].
    child: Option<Child>,
    log: Lines,
    addr: SocketAddr,
    options: Vec<String>,
    has_own_clock: bool,
    scratch: Scratch,
}

impl Redis {
    #[track_caller]
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// `options` are arguments of the server's command line.
    #[track_caller]
    pub fn start_with(options: &[&str]) -> Redis {
        let plain = ["--bind", "127.0.0.1", "--save", ""];
        Redis::start_from("", &[&plain[..], options].concat())
    }

    /// Starts with a configuration file, which the server may rewrite, and options over it, on the first free port.
    #[track_caller]
    pub fn start_from(file: &str, options: &[&str]) -> Redis {
        Redis::start_on_a_port(file, options, false)
    }

    /// Starts a server whose clock can be stepped, by libfaketime.
    #[track_caller]
    pub fn start_with_clock() -> Redis {
        Redis::start_on_a_port("", &["--bind", "127.0.0.1", "--save", ""], true)
    }

    #[track_caller]
    fn start_on_a_port(file: &str, options: &[&str], has_own_clock: bool) -> Redis {
        let options: Vec<_> = options.iter().map(|&word| word.to_owned()).collect();
        let mut last = String::new();
        for _ in 0..20 {
            let addr = free_addr();
            let scratch = Scratch::new();
            scratch.file(FILE, file);
            scratch.file(CLOCK, "+0\n");
            match spawn(addr, &options, has_own_clock, &scratch) {
                Ok((child, log)) => {
                    return Redis { child: Some(child), log, addr, options, has_own_clock, scratch };
                }
                Err(why) => last = why,
            }
        }
        panic!("redis-server starts on none of 20 ports; the last one said:\n{last}");
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// The log of the server since its last start.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// Stops the server as if its machine had frozen: connections stay, no reply comes.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("a server that was not killed");
        let pid = Pid::from_raw(child.id() as i32).expect("a process id");
        kill_process(pid, signal).expect("the server can be signalled");
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Kills it at once (`kill -9`).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again, empty, on its previous port.
    #[track_caller]
    pub fn restart(&mut self) {
        self.kill();
        let deadline = Instant::now() + PATIENCE;
        loop {
            match spawn(self.addr, &self.options, self.has_own_clock, &self.scratch) {
                Ok((child, log)) => {
                    (self.child, self.log) = (Some(child), log);
                    return;
                }
                Err(why) => assert!(Instant::now() < deadline, "redis-server does not start again:\n{why}"),
            }
            thread::sleep(ms(20));
        }
    }

    /// Sets the clock of [`Redis::start_with_clock`] to the true time and so many seconds.
    #[track_caller]
    pub fn set_clock_ahead(&self, seconds: f64) {
        // Renamed, because the server may read it at any time.
        let new = self.scratch.file("clock.new", &format!("{seconds:+}\n"));
        std::fs::rename(new, self.scratch.path().join(CLOCK)).expect("the file of the clock");
        eventually("a clock that steps; the Debian package faketime has what is needed", || {
            let [whole, micros]: [f64; 2] = self.ask(&["TIME"]);
            let true_time = SystemTime::UNIX_EPOCH.elapsed().expect("a time after 1970").as_secs_f64();
            (whole + micros / 1e6 - true_time - seconds).abs() < 0.03
        });
    }

    #[track_caller]
    pub fn connect(&self) -> Connection {
        self.try_connect().expect("the server accepts")
    }

    fn try_connect(&self) -> ::redis::RedisResult<Connection> {
        let client = ::redis::Client::open(self.url())?;
        let connection = client.get_connection_with_timeout(PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        Ok(connection)
    }

    /// The reply to one command; panics on an error.
    #[track_caller]
    pub fn ask<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_ask(words).unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    pub fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> ::redis::RedisResult<T> {
        ask(&mut self.try_connect()?, words)
    }

    /// Runs a command and ignores its reply.
    #[track_caller]
    pub fn command(&self, words: &[&str]) {
        let _: Value = self.ask(words);
    }

    /// One field of INFO, e.g. `("replication", "role")`; empty while the server does not answer, as during a change of
    /// that role.
    pub fn info(&self, section: &str, field: &str) -> Option<String> {
        let text: String = self.try_ask(&["INFO", section]).ok()?;
        let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.map(|value| value.trim().to_owned())
    }

    /// The number of runs of a command since the start or since CONFIG RESETSTAT, e.g. `calls("evalsha")`.
    #[track_caller]
    pub fn calls(&self, command: &str) -> u64 {
        calls_in(&self.ask::<String>(&["INFO", "commandstats"]), command)
    }

    /// The number of runs of a gateway's script for a request, by its calls of TIME: beats and reports are recognised
    /// by their trims of a sorted set by score, and changes of operators by their reads of one by rank.
    #[track_caller]
    pub fn judgements(&self) -> u64 {
        let stats: String = self.ask(&["INFO", "commandstats"]);
        calls_in(&stats, "time") - calls_in(&stats, "zremrangebyscore") - calls_in(&stats, "zrange")
    }

    /// All keys and the milliseconds until they expire; −1 = never.
    #[track_caller]
    pub fn keys(&self) -> Vec<(Vec<u8>, i64)> {
        let mut connection = self.connect();
        let names: Vec<Vec<u8>> = ask(&mut connection, &["KEYS", "*"]).expect("KEYS answers");
        let mut ttl =
            |name: &[u8]| ::redis::cmd("PTTL").arg(name).query(&mut connection).expect("PTTL answers");
        let with_ttl = names.into_iter().map(|name| (ttl(&name), name));
        // −2: it expired between the two commands.
        with_ttl.filter(|&(ttl, _)| ttl != -2).map(|(ttl, name)| (name, ttl)).collect()
    }

    /// The keys of the counters of limits, with their milliseconds: without the list of gateways, their reports and
    /// strikes.
    #[track_caller]
    pub fn counters(&self) -> Vec<(Vec<u8>, i64)> {
        let others = [&b"sg:{nodes."[..], b"sg:{operator}", b"sg:{bans}"];
        let is_counter = |name: &[u8]| !others.iter().any(|begin| name.starts_with(begin));
        self.keys().into_iter().filter(|(name, _)| is_counter(name)).collect()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        if thread::panicking() {
            let log = self.log.all();
            let end = log[log.len().saturating_sub(20)..].join("\n");
            eprintln!("--- end of the log of redis-server on {}\n{end}\n---", self.addr);
        }
    }
}

/// True if a gateway holds slots, as far as the store knows.
pub fn has_slots(keys: &[(Vec<u8>, i64)]) -> bool {
    keys.iter().any(|(key, _)| key.windows(3).any(|part| part == b":C:"))
}

fn calls_in(stats: &str, command: &str) -> u64 {
    let mark = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&mark)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number of calls"))
}

fn ask<T: FromRedisValue>(connection: &mut Connection, words: &[&str]) -> ::redis::RedisResult<T> {
    ::redis::cmd(words[0]).arg(&words[1..]).query(connection)
}

/// Starts a server and waits until its own log reports that it serves; another process on that port does not count.
fn spawn(
    addr: SocketAddr,
    options: &[String],
    has_own_clock: bool,
    scratch: &Scratch,
) -> Result<(Child, Lines), String> {
    let mut command = Command::new("redis-server");
    if has_own_clock {
        // The C library before jemalloc, which asks for the time before libfaketime is ready.
        command.env("LD_PRELOAD", "/usr/$LIB/faketime/libfaketime.so.1:libc.so.6");
        command.env("FAKETIME_TIMESTAMP_FILE", scratch.path().join(CLOCK));
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
    let mut child = command
        .arg(scratch.path().join(FILE))
        .args(options)
        .args(["--port", &addr.port().to_string(), "--dir"])
        .arg(scratch.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server starts: the Debian package redis-server has it");
    let log = Lines::follow(child.stdout.take().expect("piped"));
    if serves(&log) {
        return Ok((child, log));
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(log.text())
}

/// Waits until `log` reports that its server serves; false when it ended or never reported it.
fn serves(log: &Lines) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !log.ended() && Instant::now() < deadline {
        let text = log.text();
        if text.contains("Ready to accept connections") || text.contains("Sentinel ID is") {
            return true;
        }
        thread::sleep(ms(2));
    }
    false
}
