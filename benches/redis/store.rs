//! The benchmark's own redis-server, and a client that keeps many calls in flight.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::child::{self, Child, Result};
use crate::facts::Cpu;

pub struct Redis {
    pub port: u16,
    child: Child,
    line: Line,
}

/// The work of a server so far.
#[derive(Clone, Copy)]
pub struct Work {
    pub calls: u64,
    /// Time in scripts, as the server reports it.
    pub script_us: u64,
    /// Processor time of the whole process, in nanoseconds.
    pub cpu: u64,
    /// Connections accepted.
    pub connections: u64,
}

/// One connection.
pub struct Line {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// The start of the next reply in `inbox`.
    next: usize,
}

const PATIENCE: Duration = Duration::from_secs(10);

// === impl Redis ===

impl Redis {
    /// Starts a server without persistence on `core`.
    pub fn start(core: usize, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let port = child::free_port()?;
        let (number, directory) = (port.to_string(), folder.display().to_string());
        let argv =
            ["redis-server", "--port", &number, "--bind", "127.0.0.1", "--save", "", "--dir", &directory];
        let mut child = child::spawn(core, &argv, &folder.join("redis.log"))?;
        child.wait_port(port, PATIENCE)?;
        Ok(Self { port, child, line: Line::connect(port)? })
    }

    pub fn work(&mut self) -> Result<Work> {
        let text = self.info("commandstats")?;
        let line = text.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).unwrap_or_default();
        let of = |name: &str| {
            let value = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        let (calls, script_us, cpu) = (of("calls"), of("usec"), Cpu::of(self.child.pid()).total);
        let connections = self.number("stats", "total_connections_received:")?;
        Ok(Work { calls, script_us, cpu, connections })
    }

    /// Bytes of all data and buffers, without the allocator's overhead.
    pub fn used_memory(&mut self) -> Result<u64> {
        self.number("memory", "used_memory:")
    }

    /// Bytes of one key.
    pub fn key_memory(&mut self, key: &str) -> Result<u64> {
        Ok(self.ask(&[b"MEMORY", b"USAGE", key.as_bytes()])?.trim_start_matches(':').trim().parse()?)
    }

    pub fn keys(&mut self) -> Result<u64> {
        Ok(self.ask(&[b"DBSIZE"])?.trim_start_matches(':').trim().parse()?)
    }

    pub fn clear(&mut self) -> Result<()> {
        self.ask(&[b"FLUSHALL", b"SYNC"]).map(drop)
    }

    pub fn load(&mut self, code: &str) -> Result<()> {
        self.ask(&[b"SCRIPT", b"LOAD", code.as_bytes()]).map(drop)
    }

    fn number(&mut self, section: &str, name: &str) -> Result<u64> {
        let text = self.info(section)?;
        let value =
            text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name}"))?;
        Ok(value.trim().parse()?)
    }

    fn info(&mut self, section: &str) -> Result<String> {
        self.ask(&[b"INFO", section.as_bytes()])
    }

    fn ask(&mut self, words: &[&[u8]]) -> Result<String> {
        self.line.send(&command(words))?;
        Ok(String::from_utf8_lossy(self.line.answer()?).into_owned())
    }
}

// === impl Work ===

impl Work {
    pub fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls - before.calls,
            script_us: self.script_us - before.script_us,
            cpu: self.cpu - before.cpu,
            connections: self.connections - before.connections,
        }
    }
}

// === impl Line ===

impl Line {
    pub fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, inbox: Vec::new(), next: 0 })
    }

    /// Sends any number of commands; all replies together must fit the sockets' buffers.
    pub fn send(&mut self, commands: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(commands)?)
    }

    /// Reads the next reply.
    ///
    /// # Errors
    /// If the server reports that the command failed.
    pub fn answer(&mut self) -> Result<&[u8]> {
        let end = loop {
            if let Some(length) = length(&self.inbox[self.next..])? {
                break self.next + length;
            }
            self.inbox.drain(..self.next);
            self.next = 0;
            let mut buffer = [0; 16 * 1024];
            let got = self.stream.read(&mut buffer)?;
            if got == 0 {
                return Err("redis-server closed the connection".into());
            }
            self.inbox.extend_from_slice(&buffer[..got]);
        };
        let start = std::mem::replace(&mut self.next, end);
        let answer = &self.inbox[start..end];
        match answer.first() {
            Some(b'-') => Err(String::from_utf8_lossy(answer).into_owned().into()),
            _ => Ok(answer),
        }
    }
}

/// A command in RESP.
pub fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The length of the first reply in `bytes`, once it is complete.
fn length(bytes: &[u8]) -> Result<Option<usize>> {
    let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else { return Ok(None) };
    let head = end + 2;
    let number = || -> Result<i64> { Ok(std::str::from_utf8(&bytes[1..end])?.parse()?) };
    let length = match bytes[0] {
        b'$' => usize::try_from(number()?).map_or(head, |length| head + length + 2),
        b'*' => {
            let mut length = head;
            for _ in 0..number()?.max(0) {
                let Some(part) = self::length(bytes.get(length..).unwrap_or_default())? else {
                    return Ok(None);
                };
                length += part;
            }
            length
        }
        b'+' | b'-' | b':' => head,
        other => return Err(format!("no RESP: byte {other}").into()),
    };
    Ok((length <= bytes.len()).then_some(length))
}
