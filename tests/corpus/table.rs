//! Reads the tables of cases; `main.rs` describes their notation.

use std::iter::Peekable;
use std::str::Chars;

/// The demand of the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    Refused,
    Passed,
    Either,
}

/// One expected outcome of the bytes, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    Passed(Wanted),
    /// Answered with this status, or any status of a rejection, or closed without one.
    Refused(Option<u16>),
}

/// A request as the upstream must see it.
#[derive(Debug, PartialEq, Eq)]
pub struct Wanted {
    pub method: String,
    pub target: Vec<u8>,
    pub body: Option<Vec<u8>>,
    pub headers: Vec<(String, Vec<u8>)>,
    pub absent: Vec<String>,
}

#[derive(Debug)]
pub struct Case {
    pub name: String,
    pub demand: Demand,
    pub bytes: Vec<u8>,
    pub steps: Vec<Step>,
    /// Neither answered nor passed: the request is incomplete.
    pub waits: bool,
    pub closes: bool,
    /// A header that the first response must have.
    pub answers: Option<String>,
    /// The reason for a departure from the demand of the corpus.
    pub reason: Option<String>,
    /// The reason for more requests than nginx or HAProxy make of it.
    pub more: Option<String>,
}

impl Case {
    pub fn passed(&self) -> impl Iterator<Item = &Wanted> {
        self.steps.iter().filter_map(|step| match step {
            Step::Passed(wanted) => Some(wanted),
            Step::Refused(_) => None,
        })
    }

    /// Whether the gateway's behaviour is the demand of the corpus.
    pub fn meets_the_demand(&self) -> bool {
        let refuses = self.waits || matches!(self.steps[..], [Step::Refused(_)]);
        match self.demand {
            Demand::Refused => refuses,
            Demand::Passed => !refuses,
            Demand::Either => true,
        }
    }

    fn say(&mut self, words: &str) {
        let (word, rest) = words.split_once(' ').unwrap_or((words, ""));
        match word {
            "waits" => self.waits = true,
            "closes" => self.closes = true,
            "answers" => self.answers = Some(rest.to_owned()),
            "refused" => self.steps.push(Step::Refused((!rest.is_empty()).then(|| number(rest)))),
            "passed" => {
                let (method, target) = rest.split_once(' ').expect("a method and a target");
                self.steps.push(Step::Passed(Wanted {
                    method: method.to_owned(),
                    target: bytes(target),
                    body: None,
                    headers: Vec::new(),
                    absent: Vec::new(),
                }));
            }
            detail => self.detail(detail, rest),
        }
    }

    fn detail(&mut self, word: &str, rest: &str) {
        let Some(Step::Passed(wanted)) = self.steps.last_mut() else {
            panic!("{}: {word} says something of no request", self.name);
        };
        match word {
            "body" => wanted.body = Some(bytes(rest)),
            "absent" => wanted.absent.push(rest.to_owned()),
            "header" => {
                let (name, value) = rest.split_once(": ").expect("a name and a value");
                let name = String::from_utf8(bytes(name)).expect("names are text");
                wanted.headers.push((name, bytes(value)));
            }
            other => panic!("{}: no such word: {other}", self.name),
        }
    }
}

fn number(text: &str) -> u16 {
    text.parse().expect("a status")
}

/// All cases of one table.
pub fn read(table: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut demand = Demand::Either;
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (mark, text) = line.split_once(' ').unwrap_or((line, ""));
        let last = cases.last_mut();
        match (mark, last) {
            ("==", _) => {
                demand = match text {
                    "refused" => Demand::Refused,
                    "passed" => Demand::Passed,
                    "either" => Demand::Either,
                    other => panic!("no such demand: {other}"),
                }
            }
            ("@", _) => cases.push(Case {
                name: text.to_owned(),
                demand,
                bytes: Vec::new(),
                steps: Vec::new(),
                waits: false,
                closes: false,
                answers: None,
                reason: None,
                more: None,
            }),
            (">", Some(case)) => case.bytes.extend(bytes(text)),
            ("<", Some(case)) => case.say(text),
            ("~", Some(case)) => case.reason = Some(text.to_owned()),
            ("!", Some(case)) => case.more = Some(text.to_owned()),
            _ => panic!("no line of a table: {line}"),
        }
    }
    cases
}

/// The beginnings that many cases share.
const MACROS: [(&str, &str); 3] = [
    ("$get", "GET / HTTP/1.1|Host: a|"),
    ("$post", "POST / HTTP/1.1|Host: a|"),
    ("$chunked", "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||"),
];

/// The bytes that a text of a table stands for.
fn bytes(text: &str) -> Vec<u8> {
    let begins = MACROS.iter().find(|(name, _)| text.starts_with(name));
    let whole = match begins {
        Some((name, long)) => format!("{long}{}", &text[name.len()..]),
        None => text.to_owned(),
    };
    let mut bytes = Vec::new();
    let mut chars = whole.chars().peekable();
    while let Some(next) = chars.next() {
        match next {
            '|' => bytes.extend(b"\r\n"),
            '\\' => escape(&mut chars, &mut bytes),
            other => bytes.extend(other.to_string().bytes()),
        }
    }
    bytes
}

fn escape(chars: &mut Peekable<Chars<'_>>, out: &mut Vec<u8>) {
    match chars.next().expect("something behind the backslash") {
        'r' => out.push(b'\r'),
        'n' => out.push(b'\n'),
        't' => out.push(b'\t'),
        '0' => out.push(0),
        'x' => {
            let digits: String = chars.by_ref().take(2).collect();
            out.push(u8::from_str_radix(&digits, 16).expect("two hexadecimal digits"));
        }
        '{' => repeat(chars, out),
        plain @ ('\\' | '|') => out.push(plain as u8),
        other => panic!("no such escape: \\{other}"),
    }
}

/// `\{N*TEXT}`; the text may contain another one.
fn repeat(chars: &mut Peekable<Chars<'_>>, out: &mut Vec<u8>) {
    let count: String = chars.by_ref().take_while(|c| *c != '*').collect();
    let (mut text, mut depth) = (String::new(), 1);
    for next in chars.by_ref() {
        depth += i32::from(next == '{') - i32::from(next == '}');
        if depth == 0 {
            break;
        }
        text.push(next);
    }
    let once = bytes(&text);
    (0..count.parse().expect("a count")).for_each(|_| out.extend(&once));
}
