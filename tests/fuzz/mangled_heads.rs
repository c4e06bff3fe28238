//! Nearly valid heads: their parts, and the ways to mangle them.

use crate::support::Dice;

const METHODS: &[&str] =
    &["GET", "GET", "GET", "POST", "HEAD", "OPTIONS", "OPTIONS", "PUT", "PURGE", "post", "CONNECT"];
const TARGETS: &[&str] = &[
    "/",
    "/a/b?c=d",
    "/a#f",
    "/#",
    "//x",
    "/a/../b",
    "/%2e%2e/x",
    "/?",
    "/?#",
    "*",
    "*#f",
    "?x",
    "#f",
    "http://b.test",
    "http://b.test#",
    "http://b.test#f",
    "http://b.test:80#x",
    "https://b.test#/x",
    "http://b.test?x=1",
    "http://b.test?#f",
    "http://b.test/x#y",
    "http://b.test:80/p?q",
    "http://b.test/strip#f",
    "http://b.test/strip?x",
    "HTTP://B.test/x",
    "http://u@b.test/",
    "http://b.test*",
    "http://[::1]:80#",
    "ftp://b.test/",
    "http://",
    "b.test:80",
    "/strip",
    "/strip/x?y",
    "/strip?x#y",
];
const FIELDS: &[(&str, &str)] = &[
    ("host", "c.test"),
    ("host", ""),
    ("content-length", "0"),
    ("content-length", "00"),
    ("content-length", "3"),
    ("content-length", "3"),
    ("content-length", "003"),
    ("content-length", "+3"),
    ("content-length", "3, 3"),
    ("transfer-encoding", "chunked"),
    ("transfer-encoding", "Chunked"),
    ("transfer-encoding", "identity"),
    ("connection", "close"),
    ("connection", "content-length, host"),
    ("connection", "upgrade"),
    ("upgrade", "websocket"),
    ("upgrade", "h2c"),
    ("te", "trailers"),
    ("trailer", "x-late"),
    ("cookie", "a=b"),
    ("cookie", "c=d"),
    ("content-type", "application/grpc"),
    ("x-forwarded-for", "192.0.2.1:80"),
    ("x-forwarded-for", "[2001:db8::1]:443, junk"),
    ("x-forwarded-host", "d.test"),
    ("x-request-id", "a b"),
    ("x-empty", ""),
];
/// Pseudo-fields and fields for HTTP/2 only, in place of those of an ordinary request or beside them.
const PSEUDO: &[(&str, &str)] = &[
    (":path", "#b"),
    (":path", "/#"),
    (":path", "*"),
    (":path", "?x"),
    (":path", "http://b.test/x"),
    (":path", ""),
    (":authority", ""),
    (":authority", "u@b.test"),
    (":authority", "b.test#f"),
    (":authority", "b.test/x"),
    (":authority", "*"),
    (":scheme", "https"),
    (":scheme", "ftp"),
    (":scheme", ""),
    (":method", "get"),
    (":method", ""),
    (":protocol", "connect-udp"),
    (":status", "200"),
];
const WORDS: &[&str] = &[
    "#", "?", "*", "/", "//", "..", "%", "%2f", "%00", ":", "@", ";", ",", "\\", " ", "\t", "\r", "\n",
    "\r\n", "\0", "[", "]", "http://", "b.test", "0", "3", "x", "X", "\u{7f}", "\u{e4}",
];

/// The random parts of a head.
trait Heads {
    fn mangle(&mut self, text: &mut String);
    fn target(&mut self) -> String;
    fn method(&mut self) -> String;
    fn fields(&mut self, once_in: usize) -> Vec<(String, String)>;
}

impl Heads for Dice {
    /// Changes `text` in a few places.
    fn mangle(&mut self, text: &mut String) {
        for _ in 0..1 + self.below(2) {
            let places: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            let (one, other) = (self.pick(&places), self.pick(&places));
            let (from, to) = (one.min(other), one.max(other));
            match self.below(4) {
                0 => drop(text.drain(from..to)),
                1 => {
                    let again = text[from..to].to_owned();
                    text.insert_str(to, &again);
                }
                _ => text.insert_str(from, self.pick(WORDS)),
            }
        }
    }

    fn target(&mut self) -> String {
        let mut target = self.pick(TARGETS).to_owned();
        if self.one_in(2) {
            self.mangle(&mut target);
        }
        target
    }

    fn method(&mut self) -> String {
        let mut method = self.pick(METHODS).to_owned();
        if self.one_in(40) {
            self.mangle(&mut method);
        }
        method
    }

    /// One in `once_in` fields is mangled.
    fn fields(&mut self, once_in: usize) -> Vec<(String, String)> {
        let count = self.below(4);
        let mut fields: Vec<(String, String)> = (0..count)
            .map(|_| self.pick(FIELDS))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        for (name, value) in &mut fields {
            if self.one_in(once_in) {
                self.mangle(value);
            } else if self.one_in(once_in * 4) {
                self.mangle(name);
            }
        }
        fields
    }
}

/// The body that a head announces, so that the server does not wait for it.
pub fn body_of(fields: &[(String, String)]) -> &'static [u8] {
    let tells = |name: &str| fields.iter().rfind(|(own, _)| own == name).map(|(_, value)| value.as_str());
    match (tells("transfer-encoding"), tells("content-length")) {
        (Some(_), _) => b"0\r\n\r\n",
        (None, Some(length)) if length.contains('3') => b"abc",
        _ => b"",
    }
}

/// A head of HTTP/1, and the same with the body that it announces.
pub fn http1_head(dice: &mut Dice) -> (String, Vec<u8>) {
    let method = dice.method();
    let target = dice.target();
    let mut fields = dice.fields(8);
    if !dice.one_in(20) {
        fields.insert(dice.below(fields.len() + 1), ("Host".to_owned(), "a.test".to_owned()));
    }
    let version =
        if dice.one_in(20) { dice.pick(&["HTTP/1.0", "HTTP/2.0", "http/1.1", ""]) } else { "HTTP/1.1" };
    let lines: Vec<String> = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("{method} {target} {version}\r\n{}\r\n", lines.concat());
    let bytes = [head.as_bytes(), body_of(&fields)].concat();
    (head, bytes)
}

/// The fields of a head of HTTP/2.
pub fn http2_head(dice: &mut Dice) -> Vec<(String, String)> {
    let path = if dice.one_in(2) { "/x?y".to_owned() } else { dice.target() };
    let mut fields = vec![
        (":method".to_owned(), dice.method()),
        (":scheme".to_owned(), "http".to_owned()),
        (":path".to_owned(), path),
        (":authority".to_owned(), "a.test".to_owned()),
    ];
    match dice.below(8) {
        0 => drop(fields.remove(dice.below(4))),
        1..4 => {
            let (name, value) = dice.pick(PSEUDO);
            let odd = (name.to_owned(), value.to_owned());
            match fields.iter().position(|(own, _)| own == name).filter(|_| !dice.one_in(6)) {
                Some(place) => fields[place] = odd,
                None => fields.push(odd),
            }
        }
        4 => {
            let place = dice.below(4);
            dice.mangle(&mut fields[place].1);
        }
        _ => {}
    }
    // Most malformed fields end the connection, and other streams with it.
    fields.extend(dice.fields(100));
    if dice.one_in(30) {
        let (one, other) = (dice.below(fields.len()), dice.below(fields.len()));
        fields.swap(one, other);
    }
    fields
}
