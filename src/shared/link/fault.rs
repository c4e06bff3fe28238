//! Why a call brought no answer, read from what the server or the connection said.

use redis::{ErrorKind, RedisError, ServerError};

/// Why a call brought no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// Not asked: the store is known not to answer.
    Down,
    /// Not asked: too many calls are under way.
    Busy,
    /// No answer in time; the call may have run.
    Timeout,
    /// The connection broke; the call may have run.
    Broken,
    /// The server is not to be written to: a replica, loading, cut off from its primary.
    Unready,
    /// The server's memory is full.
    Full,
    /// User, password or permissions.
    Denied,
    /// Keys are moving between servers faster than they are found.
    Moving,
    /// An answer that is none.
    Garbled,
    /// Any other error of the server.
    Refused,
}

/// An error of the server, as far as what to do about it differs.
pub(super) enum Said {
    NoScript,
    /// The key has another owner for good.
    Moved(Address),
    /// This key, this time, has another owner.
    Ask(Address),
    /// A moment of a migration.
    TryAgain,
    Failed(Failure),
}

/// A host, empty where it is that of the server which said it, and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Address {
    pub host: String,
    pub port: u16,
}

/// A failure with the word for it that a log line may show: never text that could quote a secret.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub failure: Failure,
    pub word: String,
}

/// Longest code of a server's error that a log line shows.
const CODE_MAX: usize = 24;

// === impl Failure ===

impl Failure {
    pub const ALL: [Failure; 10] = [
        Failure::Down,
        Failure::Busy,
        Failure::Timeout,
        Failure::Broken,
        Failure::Unready,
        Failure::Full,
        Failure::Denied,
        Failure::Moving,
        Failure::Garbled,
        Failure::Refused,
    ];

    /// A label of metrics and a word of log lines.
    pub fn cause(self) -> &'static str {
        match self {
            Failure::Down => "down",
            Failure::Busy => "busy",
            Failure::Timeout => "timeout",
            Failure::Broken => "broken",
            Failure::Unready => "unready",
            Failure::Full => "full",
            Failure::Denied => "denied",
            Failure::Moving => "moving",
            Failure::Garbled => "garbled",
            Failure::Refused => "refused",
        }
    }

    /// Of an error that the client library made up, not the server.
    pub(super) fn of(error: &RedisError) -> Failure {
        match error.kind() {
            ErrorKind::Server(_) => error.code().map_or(Failure::Refused, Failure::of_code),
            ErrorKind::Extension => error.code().map_or(Failure::Refused, Failure::of_code),
            ErrorKind::AuthenticationFailed => Failure::Denied,
            ErrorKind::Io if error.is_timeout() => Failure::Timeout,
            ErrorKind::Io => Failure::Broken,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Failure::Garbled,
            _ => Failure::Refused,
        }
    }

    fn of_server(error: &ServerError) -> Failure {
        // A command within a script, which has no code of its own.
        let denied = ["The user executing the script ", "ACL failure in script"];
        let details = error.details().unwrap_or_default();
        if error.code() == "ERR" && denied.iter().any(|begin| details.starts_with(begin)) {
            return Failure::Denied;
        }
        Failure::of_code(error.code())
    }

    fn of_code(code: &str) -> Failure {
        match code {
            "LOADING" | "READONLY" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" => Failure::Unready,
            "OOM" => Failure::Full,
            "WRONGPASS" | "NOAUTH" | "NOPERM" => Failure::Denied,
            "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" => Failure::Moving,
            _ => Failure::Refused,
        }
    }
}

// === impl Said ===

impl Said {
    pub(super) fn of(error: &ServerError) -> Said {
        let target = || Address::of_redirect(error.details()?);
        match error.code() {
            "NOSCRIPT" => Said::NoScript,
            "TRYAGAIN" => Said::TryAgain,
            "MOVED" => target().map_or(Said::Failed(Failure::Garbled), Said::Moved),
            "ASK" => target().map_or(Said::Failed(Failure::Garbled), Said::Ask),
            _ => Said::Failed(Failure::of_server(error)),
        }
    }
}

// === impl Address ===

impl Address {
    /// Of `SLOT HOST:PORT`; the host may be empty, and of an IPv6 address the colons are its own.
    fn of_redirect(details: &str) -> Option<Address> {
        let (_slot, place) = details.split_once(' ')?;
        let (host, port) = place.trim().rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Address::checked(host, port.parse().ok()?)
    }

    /// What a server announced: a name nobody could mean is none, and `?` is a server that does not know its own.
    pub(super) fn checked(host: &str, port: u16) -> Option<Address> {
        let host = if host == "?" { "" } else { host };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        let sound = port != 0 && host.len() <= 253 && host.bytes().all(plain);
        sound.then(|| Address { host: host.to_owned(), port })
    }

    /// With the host of `sayer`, where the server that said it meant itself.
    pub(super) fn said_by(self, sayer: &Address) -> Address {
        let host = if self.host.is_empty() { sayer.host.clone() } else { self.host };
        Address { host, port: self.port }
    }
}

// === impl Fault ===

impl Fault {
    /// Nobody knows the address of the host; the system's error has no word for that.
    pub(super) fn of_name() -> Fault {
        Fault { failure: Failure::Broken, word: "host not found".to_owned() }
    }

    pub(super) fn of(error: &RedisError) -> Fault {
        Fault::with_code(Failure::of(error), error.code())
    }

    pub(super) fn of_server(error: &ServerError) -> Fault {
        Fault::with_code(Failure::of_server(error), Some(error.code()))
    }

    /// Whether its word says more than the kind of failure does.
    pub(super) fn is_specific(&self) -> bool {
        self.word != self.failure.cause()
    }

    /// The code says more, unless it is that of all errors without one.
    fn with_code(failure: Failure, code: Option<&str>) -> Fault {
        let code = code.filter(|code| *code != "ERR");
        Fault { failure, word: code.map_or_else(|| failure.cause().to_owned(), code_word) }
    }
}

impl From<&(String, u16)> for Address {
    fn from((host, port): &(String, u16)) -> Address {
        Address { host: host.clone(), port: *port }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Fault {
        Fault { failure, word: failure.cause().to_owned() }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Fault {
        let timeout = error.kind() == std::io::ErrorKind::TimedOut;
        let failure = if timeout { Failure::Timeout } else { Failure::Broken };
        // The text of a kind is a constant of the standard library; that of a certificate's error names no secret.
        let word = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => tls.to_string().chars().take(120).collect(),
            None => error.kind().to_string(),
        };
        Fault { failure, word }
    }
}

/// Codes are capitals; anything else in their place could be text of anybody.
fn code_word(code: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    let sound = !code.is_empty() && code.len() <= CODE_MAX && code.bytes().all(plain);
    if sound { code.to_owned() } else { Failure::Refused.cause().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_listed_once_and_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<_> =
            Failure::ALL.iter().map(|failure| failure.cause()).collect();
        assert_eq!(words.len(), Failure::ALL.len());
        for (place, failure) in Failure::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, place);
        }
    }

    #[test]
    fn redirects_name_a_host_or_the_server_itself() {
        let of = |text| Address::of_redirect(text).map(|address| (address.host, address.port));
        assert_eq!(of("3999 127.0.0.1:6381"), Some(("127.0.0.1".into(), 6381)));
        assert_eq!(of("3999 :6381"), Some((String::new(), 6381)));
        assert_eq!(of("3999 ?:6381"), Some((String::new(), 6381)));
        assert_eq!(of("3999 ::1:6381"), Some(("::1".into(), 6381)));
        assert_eq!(of("3999 [::1]:6381"), Some(("::1".into(), 6381)));
        assert_eq!(of("3999 host.example:6381"), Some(("host.example".into(), 6381)));
        let long = format!("1 {}:1", "h".repeat(254));
        for wrong in
            ["", "3999", "3999 host", "3999 host:0", "3999 host:70000", "1 ho st:1", "1 a/b:1", &long]
        {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_code_that_says_nothing_is_not_shown() {
        let word = |code| Fault::with_code(Failure::Refused, code).word;
        assert_eq!([word(None), word(Some("ERR")), word(Some("BUSY"))], ["refused", "refused", "BUSY"]);
    }

    #[test]
    fn a_log_line_shows_codes_and_nothing_else_that_a_server_says() {
        assert_eq!(code_word("WRONGPASS"), "WRONGPASS");
        for other in ["", "secret", "S3CRET", "A\nB", &"A".repeat(25)] {
            assert_eq!(code_word(other), "refused");
        }
    }
}
