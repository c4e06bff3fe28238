//! Support for the tests of the link: a supervised store, calls that echo, servers that are stopped and killed.

use std::future::Future;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sluicegate_model::{self as model, RedisServers};
use sluicegate_store::{KeyGroup, Link, LuaScript, PackedCall, Store, StoreFault};

use crate::support::{PATIENCE, Scratch, eventually, free_addr, ms};

/// Echoes its argument, and counts its runs.
pub const ECHO: &str = "redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], 60000) return ARGV[1]";

/// The margin for a busy machine.
pub const MARGIN: Duration = Duration::from_millis(3000);

pub fn config(servers: RedisServers) -> model::RedisConfig {
    model::RedisConfig {
        servers,
        tls: false,
        tls_files: Default::default(),
        user: None,
        password: None,
        database: 0,
        prefix: "test".into(),
        timeout: ms(2000),
        nodes_at_least: 1,
        home: None,
    }
}

pub fn single(addr: SocketAddr) -> model::RedisConfig {
    config(RedisServers::Single(addr.ip().to_string(), addr.port()))
}

/// Runs `test` on a runtime like a worker's, with a supervised store.
pub fn with_store<F: Future<Output = ()>>(config: &model::RedisConfig, test: impl FnOnce(Arc<Store>) -> F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_all().build_local(Default::default()).unwrap();
    let store = Store::new(config, None);
    runtime.block_on(async {
        let supervisor = tokio::spawn(store.clone().supervise());
        test(store).await;
        assert!(!supervisor.is_finished(), "supervision never ends");
        supervisor.abort();
    });
}

/// Waits until `done`; panics with `what` if it never comes.
pub async fn until(what: &str, mut done: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < 2 * PATIENCE, "never came: {what}");
        tokio::time::sleep(ms(2)).await;
    }
    began.elapsed()
}

pub async fn settled(store: &Store) -> Duration {
    until("a store that is used as usual", || !store.is_degraded()).await
}

pub fn echo() -> LuaScript {
    LuaScript::new(ECHO)
}

pub fn packed(key: &str, body: &str) -> PackedCall {
    PackedCall { keys: [key.as_bytes().to_vec()].into_iter().collect(), body: body.as_bytes().to_vec() }
}

/// One call that must echo its own argument, if it is answered.
pub async fn ask(link: &Link, script: &LuaScript, body: &str) -> Result<(), StoreFault> {
    ask_in(link, KeyGroup(0), "k", script, body).await
}

pub async fn ask_in(
    link: &Link,
    group: KeyGroup,
    key: &str,
    script: &LuaScript,
    body: &str,
) -> Result<(), StoreFault> {
    let answer = link.call_script(group, script, &packed(key, body)).await?;
    assert_eq!(String::from_utf8_lossy(&answer), body, "an answer to another call");
    Ok(())
}

/// A real server that can be stopped, killed and restarted on its port.
pub struct RedisProcess {
    child: Child,
    pub addr: SocketAddr,
    words: Vec<String>,
    scratch: Scratch,
}

impl RedisProcess {
    /// `words` are arguments of the server's command line.
    #[track_caller]
    pub fn start(words: &[&str]) -> RedisProcess {
        RedisProcess::start_at(free_addr(), words)
    }

    #[track_caller]
    pub fn start_at(addr: SocketAddr, words: &[&str]) -> RedisProcess {
        let port = addr.port().to_string();
        let plain = ["--port", &port, "--bind", "127.0.0.1", "--save", ""];
        let plain = if words.contains(&"--port") { &plain[2..] } else { &plain[..] };
        let words: Vec<String> = plain.iter().chain(words).map(|&word| word.to_owned()).collect();
        let scratch = Scratch::new();
        let child = spawn(&words, &scratch);
        let server = RedisProcess { child, addr, words, scratch };
        server.wait();
        server
    }

    /// A sentinel that watches `primary` as `name`.
    #[track_caller]
    pub fn sentinel(primary: SocketAddr, name: &str) -> RedisProcess {
        let (addr, scratch) = (free_addr(), Scratch::new());
        let text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor {name} {} {} 1\n\
             sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 3000\n",
            addr.port(),
            primary.ip(),
            primary.port()
        );
        let file = scratch.file("sentinel.conf", &text);
        let words = vec![file.display().to_string(), "--sentinel".to_owned()];
        let child = spawn(&words, &scratch);
        let server = RedisProcess { child, addr, words, scratch };
        server.wait();
        server
    }

    #[track_caller]
    fn wait(&self) {
        eventually(&format!("redis-server on {}", self.addr), || {
            TcpStream::connect_timeout(&self.addr, Duration::from_secs(1)).is_ok()
        });
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the server of this test takes signals");
    }

    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Restarts after [`RedisProcess::kill`]: empty, on the same port.
    pub fn restart(&mut self) {
        self.child = spawn(&self.words, &self.scratch);
        self.wait();
    }

    /// An argument of its command line.
    #[track_caller]
    pub fn word_behind(&self, option: &str) -> &str {
        let index = self.words.iter().position(|word| word == option).expect("the option was given");
        &self.words[index + 1]
    }

    pub fn command(&self, words: &[&str]) -> String {
        command(self.addr, words)
    }
}

impl Drop for RedisProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(words: &[String], scratch: &Scratch) -> Child {
    Command::new("redis-server")
        .args(words)
        .current_dir(scratch.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("redis-server starts: the Debian package redis-server has it")
}

/// The raw answer to one command, or the reason why there is none.
pub fn command(addr: SocketAddr, words: &[&str]) -> String {
    try_command(addr, words).unwrap_or_else(|error| error.to_string())
}

fn try_command(addr: SocketAddr, words: &[&str]) -> io::Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if let Some(length) = line.strip_prefix('$').and_then(|length| length.trim().parse::<usize>().ok()) {
        let mut text = vec![0; length];
        reader.read_exact(&mut text)?;
        line = String::from_utf8_lossy(&text).into_owned();
    }
    Ok(line.trim_end().to_owned())
}
