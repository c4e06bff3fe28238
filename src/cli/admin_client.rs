//! Sends one request to the admin listener of a running gateway, with bounds on time and size.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use sluicegate_model::{AdminConfig, AdminRights, Secret};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest pause between two pieces of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The same while a scan of Redis may find nothing for long.
const LIST_TIMEOUT: Duration = Duration::from_secs(3600);
/// The kind of an answer that does not end.
const EVENTS: &str = "text/event-stream";
const RESPONSE_MAX: usize = 8 << 20;
const HEAD_MAX: usize = 16 << 10;

/// Why there is no usable answer.
pub(super) enum AdminFault {
    /// The gateway rejected the request as invalid.
    Rejected(String),
    Unreachable(String),
}

impl AdminFault {
    pub(super) fn why(&self) -> &str {
        let (AdminFault::Rejected(why) | AdminFault::Unreachable(why)) = self;
        why
    }
}

/// A request of an operator to the admin API, and its body in JSON.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OperatorRequest {
    pub method: &'static str,
    pub path: String,
    pub body: String,
}

impl OperatorRequest {
    pub(super) fn get(path: impl Into<String>) -> OperatorRequest {
        OperatorRequest::with_body("GET", path, String::new())
    }

    pub(super) fn with_body(method: &'static str, path: impl Into<String>, body: String) -> OperatorRequest {
        OperatorRequest { method, path: path.into(), body }
    }

    /// The status and the text of the answer; 401, 404 and 405 count as faults of the connection.
    pub(super) fn send(&self, admin: &AdminConfig, accept: &str) -> Result<(u16, String), AdminFault> {
        match self.exchange(admin, accept)? {
            (404 | 405, _) => Err(describe_unreachable(admin, UNKNOWN_REQUEST)),
            response => Ok(response),
        }
    }

    /// The text of a success. A refusal is [`AdminFault::Rejected`] with the message of the gateway.
    pub(super) fn send_for_text(&self, admin: &AdminConfig, accept: &str) -> Result<String, AdminFault> {
        read_success(admin, self.exchange(admin, accept)?)
    }

    /// The first of a stream of events; `None` = the gateway has no room for a reader.
    pub(super) fn read_event(&self, admin: &AdminConfig) -> Result<Option<Value>, AdminFault> {
        let (_, text) = self.exchange(admin, EVENTS)?;
        let data = text.lines().find_map(|line| line.strip_prefix("data: "));
        Ok(data.and_then(|data| serde_json::from_str(data).ok()))
    }

    /// Copies the body of a success to `out` while it comes, however long it is. A refusal is as of
    /// [`OperatorRequest::send_for_text`].
    pub(super) fn copy_answer(&self, admin: &AdminConfig, out: &mut impl Write) -> Result<(), AdminFault> {
        let (status, mut body) = self.open(admin, "application/json", LIST_TIMEOUT)?;
        if status != 200 {
            return read_success(admin, (status, read_text(admin, body, false)?)).map(drop);
        }
        let failed = |error| describe_unreachable(admin, &format!("broke off: {error}"));
        copy_chunks(&mut body, out).map_err(failed)
    }

    fn exchange(&self, admin: &AdminConfig, accept: &str) -> Result<(u16, String), AdminFault> {
        let (status, body) = self.open(admin, accept, READ_TIMEOUT)?;
        Ok((status, read_text(admin, body, accept == EVENTS)?))
    }

    /// Sends the request. Returns the status of the answer, and the body as it comes.
    fn open(
        &self,
        admin: &AdminConfig,
        accept: &str,
        timeout: Duration,
    ) -> Result<(u16, impl BufRead), AdminFault> {
        let OperatorRequest { method, path, body } = self;
        let address = reachable_address(admin.listen);
        if address.port() == 0 {
            let why = "has a port that the kernel picks: write one into the file";
            return Err(describe_unreachable(admin, why));
        }
        let authorization = match strongest_token(admin) {
            Some(Secret(token)) => format!("Authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\n{authorization}\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        let send = || {
            let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(READ_TIMEOUT))?;
            stream.write_all(request.as_bytes())?;
            let mut answer = BufReader::new(stream);
            Ok((read_status(&mut answer)?, answer))
        };
        match send().map_err(|error| describe_silence(admin, &error))? {
            (None, _) => Err(describe_unreachable(admin, "did not answer with HTTP")),
            (Some(401), _) => Err(describe_unreachable(admin, "does not accept the file's token")),
            (Some(status), body) => Ok((status, body)),
        }
    }
}

/// The text of a success.
fn read_success(admin: &AdminConfig, (status, text): (u16, String)) -> Result<String, AdminFault> {
    match status {
        200..=299 => Ok(text),
        405 => Err(describe_unreachable(admin, UNKNOWN_REQUEST)),
        _ => {
            let json: Option<Value> = serde_json::from_str(&text).ok();
            let message = json.as_ref().and_then(|json| json["error"].as_str()).unwrap_or(text.trim_end());
            Err(AdminFault::Rejected(reword_message(message)))
        }
    }
}

/// Copies a body in chunks (RFC 9112, section 7.1) to its end.
fn copy_chunks(body: &mut impl BufRead, out: &mut impl Write) -> io::Result<()> {
    loop {
        let mut line = String::new();
        body.take(18).read_line(&mut line)?;
        let size = u64::from_str_radix(line.trim_end(), 16).map_err(|_| io::ErrorKind::UnexpectedEof)?;
        if io::copy(&mut body.take(size), out)? < size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        body.read_exact(&mut [0; 2])?;
        if size == 0 {
            return out.flush();
        }
    }
}

/// The message in words of the command line: without advice on requests of HTTP, and with names of options.
fn reword_message(message: &str) -> String {
    let advice = ["; post e.g. {", "; use ?"].into_iter().filter_map(|begin| message.find(begin)).min();
    message[..advice.unwrap_or(message.len())].replace("`for`: ", "--for: ")
}

const UNKNOWN_REQUEST: &str = "does not know this request: its version may differ";

fn describe_unreachable(admin: &AdminConfig, why: &str) -> AdminFault {
    AdminFault::Unreachable(format!("the admin listener {} {why}", reachable_address(admin.listen)))
}

fn describe_silence(admin: &AdminConfig, error: &io::Error) -> AdminFault {
    describe_unreachable(admin, &format!("does not answer: {error}; is the gateway running?"))
}

/// The first token that allows all, else the first one.
fn strongest_token(admin: &AdminConfig) -> Option<&Secret> {
    let all = admin.tokens.iter().find(|token| token.allow == AdminRights::All);
    all.or(admin.tokens.first()).map(|token| &token.token)
}

/// The address to connect to: a listener on all addresses is reached on this host.
fn reachable_address(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Reads the head of an answer to its end, and returns the status; `None` = it is not one of HTTP.
fn read_status(answer: &mut impl BufRead) -> io::Result<Option<u16>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let room = HEAD_MAX.saturating_sub(head.len()) as u64;
        if answer.take(room).read_until(b'\n', &mut head)? == 0 {
            return Ok(None);
        }
    }
    let status = head.strip_prefix(b"HTTP/1.1 ").and_then(|rest| str::from_utf8(rest.get(..3)?).ok());
    Ok(status.and_then(|status| status.parse().ok()))
}

/// The body to its end; of `events` the first one, behind which there is an empty line and the end of its chunk.
fn read_text(admin: &AdminConfig, mut body: impl BufRead, events: bool) -> Result<String, AdminFault> {
    let (mut text, mut piece) = (Vec::new(), [0; 16 << 10]);
    let has_event = |text: &[u8]| text.ends_with(b"\n\n") || text.ends_with(b"\n\n\r\n");
    while text.len() < RESPONSE_MAX && !(events && has_event(&text)) {
        match body.read(&mut piece).map_err(|error| describe_silence(admin, &error))? {
            0 => break,
            count => text.extend_from_slice(&piece[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

// === The text of answers, made safe for a terminal: a client chooses parts of it. ===

/// Control characters, and invisible ones that reorder text, are escaped.
pub(super) fn escape_controls(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\'' | '\\' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

/// The same for every line.
pub(super) fn escape_lines(text: &str) -> String {
    text.split('\n').map(escape_controls).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_parsed() {
        let mut answer = &b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nbody\r\n\r\n"[..];
        assert_eq!(read_status(&mut answer).unwrap(), Some(200));
        assert_eq!(answer, b"body\r\n\r\n");
        let long = [&b"HTTP/1.1 200 OK\r\nA: "[..], &[b'a'; HEAD_MAX], b"\r\n\r\n"].concat();
        for mut broken in
            [&b""[..], b"HTTP/1.1 200 OK\r\n", b"SSH-2.0\r\n\r\n", b"HTTP/1.1 \xff\r\n\r\n", &long]
        {
            assert_eq!(read_status(&mut broken).unwrap(), None);
        }
    }

    #[test]
    fn messages_are_in_words_of_the_command_line() {
        let shown = "`for`: `never` is not a duration; post e.g. {\"ip\": \"192.0.2.7\"}";
        assert_eq!(reword_message(shown), "--for: `never` is not a duration");
        let shown = "its requests would be answered 503; use ?force=true to drain it anyway";
        assert_eq!(reword_message(shown), "its requests would be answered 503");
        assert_eq!(reword_message("it is not banned"), "it is not banned");
    }

    #[test]
    fn a_listener_on_all_addresses_is_reached_on_this_host() {
        let reached = |listen: &str| reachable_address(listen.parse().unwrap()).to_string();
        assert_eq!(reached("0.0.0.0:9901"), "127.0.0.1:9901");
        assert_eq!(reached("[::]:9901"), "[::1]:9901");
        assert_eq!(reached("127.0.0.2:9901"), "127.0.0.2:9901");
    }

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(
            escape_controls("a\u{1b}[2J\r\u{9b}1m\u{202e}b\n"),
            "a\\u{1b}[2J\\r\\u{9b}1m\\u{202e}b\\n"
        );
        assert_eq!(escape_controls("uri=/a?b='c' \"é\" \\ \u{2026}"), "uri=/a?b='c' \"é\" \\ \u{2026}");
        assert_eq!(escape_lines("a\tb\nc\u{7}\n"), "a\\tb\nc\\u{7}\n");
    }
}
