//! A scripted server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::support::ms;

/// The fake's answer to a call or a heartbeat.
#[derive(Clone)]
pub enum Mood {
    /// As a real server would.
    Good,
    /// Echoes, but every nth call only after a while.
    Slow(usize, Duration),
    /// These bytes, and then nothing more.
    Says(Vec<u8>),
    /// These bytes, and then more and more of the last one.
    Floods(Vec<u8>),
    /// Closes the connection.
    Closes,
    /// Stays silent on the first connections, and answers as a real server on the others.
    Deaf(usize),
}

pub struct Fake {
    pub addr: SocketAddr,
    mood: Arc<Mutex<Mood>>,
    connects: Arc<AtomicUsize>,
    /// Accepts no more connections.
    pub full: Arc<AtomicBool>,
    /// Milliseconds until a new connection is greeted.
    pub greeting: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
}

impl Fake {
    pub fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake = Fake {
            addr: listener.local_addr().unwrap(),
            mood: Arc::new(Mutex::new(Mood::Good)),
            connects: Arc::default(),
            full: Arc::default(),
            greeting: Arc::default(),
            over: Arc::default(),
        };
        let (mood, connects) = (fake.mood.clone(), fake.connects.clone());
        let (full, greeting, over) = (fake.full.clone(), fake.greeting.clone(), fake.over.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let index = connects.fetch_add(1, Ordering::Relaxed);
                if full.load(Ordering::Relaxed) {
                    continue;
                }
                let (mood, stream) = (mood.clone(), stream.unwrap());
                let greeting = greeting.load(Ordering::Relaxed) as u64;
                thread::spawn(move || {
                    thread::sleep(ms(greeting));
                    serve(stream, index, &mood)
                });
            }
        });
        fake
    }

    pub fn is(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub fn connects(&self) -> usize {
        self.connects.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.addr);
    }
}

/// The words of one command, or nothing at the end of the connection.
fn read_command(reader: &mut impl BufRead) -> Option<Vec<Vec<u8>>> {
    let mut number = |mark: char| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let length = line.strip_prefix(mark)?.trim().parse::<usize>().ok()?;
        if mark == '*' {
            return Some((length, Vec::new()));
        }
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(length);
        Some((length, word))
    };
    let (words, _) = number('*')?;
    (0..words).map(|_| number('$').map(|(_, word)| word)).collect()
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Ends with the connection.
fn serve(mut stream: TcpStream, index: usize, mood: &Mutex<Mood>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut calls = 0;
    loop {
        let words = read_command(&mut reader)?;
        if words[0] == b"SCRIPT" {
            stream.write_all(&bulk(&[b'a'; 40])).ok()?;
            continue;
        }
        let beat = words[3].starts_with(b"test:{nodes.");
        let mood = mood.lock().unwrap().clone();
        match mood {
            Mood::Slow(each, pause) if !beat => {
                calls += 1;
                if calls % each == 0 {
                    thread::sleep(pause);
                }
                stream.write_all(&bulk(words.last()?)).ok()?;
            }
            Mood::Says(bytes) => stream.write_all(&bytes).ok()?,
            Mood::Floods(bytes) => {
                stream.write_all(&bytes).ok()?;
                let more = vec![*bytes.last()?; 64 * 1024];
                loop {
                    stream.write_all(&more).ok()?;
                }
            }
            Mood::Closes => return None,
            Mood::Deaf(many) if !beat && index < many => {}
            _ if beat => stream.write_all(b"*2\r\n:3\r\n$0\r\n\r\n").ok()?,
            _ => stream.write_all(&bulk(words.last()?)).ok()?,
        }
    }
}
