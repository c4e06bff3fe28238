//! An upstream that reads as strictly as possible: it records clear requests, and the reason for any other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// One whole request.
#[derive(Debug, Clone)]
pub struct Request {
    pub method: String,
    pub target: Vec<u8>,
    /// Lower-case names.
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn all(&self, name: &str) -> Vec<&[u8]> {
        let mine = self.headers.iter().filter(|(n, _)| n == name);
        mine.map(|(_, value)| &value[..]).collect()
    }
}

#[derive(Debug, Clone)]
pub enum Seen {
    Whole(Request),
    /// Bytes that two readers could read in two ways.
    Ambiguous(String),
}

pub struct Recorder {
    addr: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Recorder {
    pub fn new() -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let book = seen.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let book = book.clone();
                thread::spawn(move || serve(stream, &book));
            }
        });
        Recorder { addr, seen }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The requests since the last call.
    pub fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn serve(mut stream: TcpStream, book: &Mutex<Vec<Seen>>) {
    stream.set_nodelay(true).expect("nodelay can be set");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout can be set");
    let mut buffer = Vec::new();
    let mut chunk = [0; 16 * 1024];
    loop {
        match parse(&buffer) {
            Err(why) => {
                let begin = buffer[..buffer.len().min(300)].escape_ascii();
                book.lock().unwrap().push(Seen::Ambiguous(format!("{why}: {begin}")));
                return;
            }
            Ok(Some((request, length))) => {
                buffer.drain(..length);
                let to_head = request.method == "HEAD";
                book.lock().unwrap().push(Seen::Whole(request));
                let body = if to_head { "" } else { "ok" };
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{body}");
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
            Ok(None) => match stream.read(&mut chunk) {
                Ok(length @ 1..) => buffer.extend_from_slice(&chunk[..length]),
                _ => return,
            },
        }
    }
}

/// The first request of `bytes` and its length, once it is whole.
///
/// # Errors
/// The first violation of RFC 9112.
pub fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, String> {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return Ok(None) };
    let mut lines = bytes[..end].split(|&byte| byte == b'\n');
    let first = whole_line(lines.next().unwrap_or_default(), end, bytes)?;
    let (method, target) = request_line(first)?;
    let mut headers = Vec::new();
    for line in lines {
        headers.push(field(line.strip_suffix(b"\r").unwrap_or(line))?);
    }
    let mut request = Request { method, target, headers, body: Vec::new() };
    if request.all("host").len() != 1 {
        return Err("not one Host".to_owned());
    }
    let rest = &bytes[end + 4..];
    let length = match (&request.all("transfer-encoding")[..], &request.all("content-length")[..]) {
        ([], []) => Some(0),
        ([], [length]) => {
            let length = digits(length, 10)?;
            (rest.len() >= length).then(|| request.body = rest[..length].to_vec()).map(|()| length)
        }
        ([coding], []) if *coding == b"chunked" => chunks(rest, &mut request.body)?,
        _ => return Err("not one framing".to_owned()),
    };
    Ok(length.map(|length| (request, end + 4 + length)))
}

/// Line feeds follow carriage returns only, and carriage returns precede line feeds only.
fn whole_line<'a>(first: &'a [u8], end: usize, bytes: &[u8]) -> Result<&'a [u8], String> {
    let head = &bytes[..end + 2];
    let clean = (0..head.len()).all(|at| match head[at] {
        b'\n' => at > 0 && head[at - 1] == b'\r',
        b'\r' => head.get(at + 1) == Some(&b'\n'),
        _ => true,
    });
    if clean { Ok(first.strip_suffix(b"\r").unwrap_or(first)) } else { Err("a bare CR or LF".to_owned()) }
}

fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b))
}

fn request_line(line: &[u8]) -> Result<(String, Vec<u8>), String> {
    let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    match words[..] {
        [method, target, b"HTTP/1.1" | b"HTTP/1.0"]
            if is_token(method) && !target.is_empty() && target.iter().all(u8::is_ascii_graphic) =>
        {
            Ok((String::from_utf8_lossy(method).into_owned(), target.to_vec()))
        }
        _ => Err("no request line".to_owned()),
    }
}

fn field(line: &[u8]) -> Result<(String, Vec<u8>), String> {
    let colon = line.iter().position(|&byte| byte == b':').ok_or("no colon")?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    if !is_token(name) {
        return Err("no field name".to_owned());
    }
    if value.iter().any(|&byte| byte != b'\t' && byte.is_ascii_control()) {
        return Err("a control character in a value".to_owned());
    }
    Ok((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()))
}

fn digits(text: &[u8], radix: u32) -> Result<usize, String> {
    let clean = !text.is_empty() && text.iter().all(|&byte| char::from(byte).is_digit(radix));
    let number = usize::from_str_radix(&String::from_utf8_lossy(text), radix);
    number.ok().filter(|_| clean).ok_or_else(|| "no length".to_owned())
}

/// The length of a chunked body without trailers, once it is whole.
fn chunks(bytes: &[u8], body: &mut Vec<u8>) -> Result<Option<usize>, String> {
    let mut at = 0;
    loop {
        let Some(line) = bytes[at..].windows(2).position(|w| w == b"\r\n") else { return Ok(None) };
        let size = digits(&bytes[at..at + line], 16)?;
        at += line + 2;
        let Some(data) = bytes.get(at..at + size + 2) else { return Ok(None) };
        if !data.ends_with(b"\r\n") {
            return Err("no line end behind a chunk, or a trailer".to_owned());
        }
        body.extend_from_slice(&data[..size]);
        at += size + 2;
        if size == 0 {
            return Ok(Some(at));
        }
    }
}
