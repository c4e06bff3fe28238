//! Random requests: in volleys of almost the same one, so that limits are met.

use crate::support::Dice;

/// One request of the test.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Its address is 127.0.0.N.
    pub client: u8,
    /// The first or the second listener.
    pub port: usize,
    pub host: String,
    pub method: &'static str,
    pub target: String,
    pub headers: Vec<(String, String)>,
    /// The length of its body.
    pub body: usize,
    /// Stays at the backend until the next release.
    pub holds: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Ask(Request),
    /// Every held request is answered.
    Release,
}

/// What requests can aim at.
pub struct Aims {
    pub hosts: Vec<String>,
    pub paths: Vec<String>,
    /// Whether there is a second listener.
    pub two_ports: bool,
    /// Whether requests are held open.
    pub holds: bool,
    /// Whether fields come twice.
    pub doubles: bool,
    /// Whether paths are written in other ways.
    pub odd: bool,
    /// Whether values are empty, encoded or in other forms.
    pub forms: bool,
    /// Whether bodies are long.
    pub sizes: bool,
}

pub const HEADERS: [&str; 6] = ["X-Key", "X_Key", "X-Api-Key", "Api_Key", "X-Group", "User-Agent"];
const METHODS: [&str; 8] = ["GET", "GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD"];

pub fn roll_steps(aims: &Aims, dice: &mut Dice) -> Vec<Step> {
    let mut steps = Vec::new();
    while steps.len() < 56 {
        let base = roll_request(aims, dice);
        let held = aims.holds && dice.one_in(2);
        for _ in 0..2 + dice.below(6) {
            let mut request = base.clone();
            request.holds = held;
            if dice.one_in(3) {
                let other = roll_request(aims, dice);
                match dice.below(5) {
                    0 => request.client = other.client,
                    1 => request.target = other.target,
                    2 => request.method = other.method,
                    3 => request.headers = other.headers,
                    _ => request.host = other.host,
                }
            }
            request.headers.iter_mut().for_each(|(name, _)| *name = change_case(name, dice));
            steps.push(Step::Ask(request));
        }
        if held {
            steps.push(Step::Release);
        }
    }
    steps
}

fn roll_request(aims: &Aims, dice: &mut Dice) -> Request {
    let mut headers = Vec::new();
    for name in HEADERS {
        if dice.one_in(3) {
            let values: &[&str] = if aims.forms { &["k1", "K1", "k2", "", "bot k3"] } else { &["k1", "k2"] };
            headers.push((name.to_owned(), dice.pick(values).to_owned()));
            if aims.doubles && dice.one_in(4) {
                headers.push((name.to_owned(), dice.pick(values).to_owned()));
            }
        }
    }
    if dice.one_in(2) {
        let plain = ["a=1", "a=2", "a=1; b=2", "b=1"];
        let odd = ["a=1; a=2", "A=1", "a=", "b=2;a=1", "a=\"1\"", "b=1; a=2; c=3", "a", " a = 1 "];
        let value = if aims.forms && dice.one_in(2) { dice.pick(&odd) } else { dice.pick(&plain) };
        headers.push(("Cookie".to_owned(), value.to_owned()));
        if aims.doubles && dice.one_in(3) {
            headers.push(("Cookie".to_owned(), dice.pick(&plain).to_owned()));
        }
    }
    for (name, values) in [("X-Auth", ["yes", "no"]), ("Authorization", ["Basic dTpwdw==", "Basic dTp4"])] {
        if dice.one_in(2) {
            headers.push((name.to_owned(), dice.pick(&values).to_owned()));
        }
    }
    let mut target = dice.pick(&aims.paths.iter().map(String::as_str).collect::<Vec<_>>()).to_owned();
    if aims.odd && dice.one_in(3) {
        target = write_otherwise(&target, dice);
    }
    if dice.one_in(3) {
        let plain = ["?a=1", "?a=2", "?b=1&a=1", "?b=2"];
        let odd = ["?a=1&a=2", "?A=1", "?a=", "?a", "?a=%31", "?%61=1", "?a=+1", "?b&a=1", "?", "?aa=1&a=2"];
        target += if aims.forms && dice.one_in(2) { dice.pick(&odd) } else { dice.pick(&plain) };
    }
    Request {
        client: 1 + dice.below(5) as u8,
        port: usize::from(aims.two_ports && dice.one_in(3)),
        host: aims.hosts[dice.below(aims.hosts.len())].clone(),
        method: dice.pick(&METHODS),
        target,
        headers,
        body: if aims.sizes { dice.pick(&[0, 1024, 1025, 2048, 2049]) } else { 0 },
        holds: false,
    }
}

fn change_case(name: &str, dice: &mut Dice) -> String {
    match dice.below(3) {
        0 => name.to_ascii_lowercase(),
        1 => name.to_ascii_uppercase(),
        _ => name.to_owned(),
    }
}

/// The same path in another spelling, or one near to it.
fn write_otherwise(path: &str, dice: &mut Dice) -> String {
    let slash = path.rfind('/').unwrap_or(0);
    let (start, end) = path.split_at(slash);
    match dice.below(8) {
        0 => format!("{start}/{end}"),
        1 => format!("/{path}"),
        2 => format!("{start}/.{end}"),
        3 => format!("{start}/q/..{end}"),
        4 => path.replacen('a', "%61", 1),
        5 => path.to_ascii_uppercase(),
        6 => format!("{start}%2F{}", end.trim_start_matches('/')),
        _ => format!("{path}/"),
    }
}
