//! An upstream that records every byte of a request, strictly: whole ones, and what came of the others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::Text;
use crate::recorder::{Request, parse};
use crate::support::Headers;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Record {
    pub method: String,
    pub path: String,
    pub id: String,
    pub body: Text,
    pub is_whole: bool,
}

#[derive(Default)]
struct Book {
    records: Vec<Record>,
    /// Bytes that are no request.
    faults: Vec<String>,
}

pub struct Upstream {
    addr: SocketAddr,
    book: Arc<Mutex<Book>>,
}

impl Upstream {
    pub fn new() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let book = Arc::new(Mutex::new(Book::default()));
        let shared = book.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let book = shared.clone();
                thread::spawn(move || {
                    let mut rest = Vec::new();
                    let served = serve(stream, &book, &mut rest).and_then(|()| part_of(&rest));
                    match served {
                        Ok(part) => book.lock().unwrap().records.extend(part),
                        Err(fault) => {
                            let begin = rest[..rest.len().min(300)].escape_ascii();
                            book.lock().unwrap().faults.push(format!("{fault}: {begin}"));
                        }
                    }
                });
            }
        });
        Upstream { addr, book }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// All requests so far, and the faults in them.
    pub fn take(&self) -> (Vec<Record>, Vec<String>) {
        let mut book = self.book.lock().unwrap();
        (std::mem::take(&mut book.records), std::mem::take(&mut book.faults))
    }
}

/// Answers until the gateway closes; `rest` then holds the bytes of an unfinished request.
fn serve(mut stream: TcpStream, book: &Mutex<Book>, rest: &mut Vec<u8>) -> Result<(), String> {
    stream.set_nodelay(true).expect("nodelay can be set");
    let mut chunk = [0; 16 * 1024];
    let mut has_answered = false;
    loop {
        let head = head_of(rest)?;
        if let Some(head) = head.filter(|head| !has_answered && head.path.starts_with("/early/")) {
            has_answered = true;
            answer(&mut stream, &head);
        }
        if let Some((request, length)) = parse(rest)? {
            rest.drain(..length);
            let record = record(request, true);
            book.lock().unwrap().records.push(record.clone());
            if !std::mem::take(&mut has_answered) {
                if record.id.ends_with('0') {
                    thread::sleep(Duration::from_millis(30));
                }
                answer(&mut stream, &record);
            }
            continue;
        }
        match stream.read(&mut chunk) {
            Ok(length @ 1..) => rest.extend_from_slice(&chunk[..length]),
            _ => return Ok(()),
        }
    }
}

/// The gateway may have closed already.
fn answer(stream: &mut TcpStream, record: &Record) {
    let body = format!("at {}", record.path);
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
    let body = if record.method == "HEAD" { "" } else { &body };
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

fn record(request: Request, is_whole: bool) -> Record {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ids = request.all("x-id");
    Record {
        id: text(&ids.concat()),
        path: text(&request.target),
        method: request.method,
        body: Text(request.body),
        is_whole,
    }
}

/// The request without its body, once its head is whole.
fn head_of(bytes: &[u8]) -> Result<Option<Record>, String> {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
    let headers = Headers::parse(&bytes[..end + 2]);
    let length = headers.all("content-length").first().and_then(|text| text.parse().ok());
    let body =
        if headers.has("transfer-encoding") { b"0\r\n\r\n".to_vec() } else { vec![0; length.unwrap_or(0)] };
    let parsed = parse(&[&bytes[..end + 4], &body].concat())?;
    Ok(parsed.map(|(request, _)| record(request, false)))
}

/// What came of an unfinished request.
fn part_of(rest: &[u8]) -> Result<Option<Record>, String> {
    let Some(end) = rest.windows(4).position(|w| w == b"\r\n\r\n") else {
        return if rest.is_empty() { Ok(None) } else { Err("a part of a head".to_owned()) };
    };
    let body = &rest[end + 4..];
    let is_chunked = Headers::parse(&rest[..end + 2]).has("transfer-encoding");
    let body = Text(if is_chunked { chunks(body) } else { body.to_vec() });
    Ok(head_of(rest)?.map(|head| Record { body, ..head }))
}

/// The data in the chunks so far, which [`parse`] has read without a fault.
fn chunks(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(line) = bytes.windows(2).position(|w| w == b"\r\n") {
        let digits = String::from_utf8_lossy(&bytes[..line]);
        let size = usize::from_str_radix(&digits, 16).expect("parsed before");
        let data = &bytes[line + 2..];
        body.extend_from_slice(&data[..size.min(data.len())]);
        bytes = data.get(size + 2..).unwrap_or_default();
    }
    body
}
