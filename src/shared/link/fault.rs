//! Why a call brought no answer, read from what the server or the connection said.

use redis::{ErrorKind, RedisError, ServerError};

/// Why a call brought no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
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
    Unauthorized,
    /// Keys are moving between servers faster than they are found.
    Moving,
    /// An answer that is none.
    Garbled,
    /// Any other error of the server.
    CommandError,
}

/// An error of the server, as far as what to do about it differs.
pub(super) enum ErrorReply {
    NoScript,
    /// The key has another owner for good.
    Moved(StoreAddress),
    /// This key, this time, has another owner.
    Ask(StoreAddress),
    /// A moment of a migration.
    TryAgain,
    Failed(StoreFault),
}

/// A host, empty where it is that of the server which said it, and a port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoreAddress {
    pub host: String,
    pub port: u16,
}

/// A failure with the word for it that a log line may show: never text that could quote a secret.
#[derive(Debug, Clone)]
pub(super) struct DescribedFault {
    pub kind: StoreFault,
    pub word: String,
}

/// Longest code of a server's error that a log line shows.
const CODE_MAX: usize = 24;

// === impl Failure ===

impl StoreFault {
    pub const ALL: [StoreFault; 10] = [
        StoreFault::Down,
        StoreFault::Busy,
        StoreFault::Timeout,
        StoreFault::Broken,
        StoreFault::Unready,
        StoreFault::Full,
        StoreFault::Unauthorized,
        StoreFault::Moving,
        StoreFault::Garbled,
        StoreFault::CommandError,
    ];

    /// A label of metrics and a word of log lines.
    pub fn label(self) -> &'static str {
        match self {
            StoreFault::Down => "down",
            StoreFault::Busy => "busy",
            StoreFault::Timeout => "timeout",
            StoreFault::Broken => "broken",
            StoreFault::Unready => "unready",
            StoreFault::Full => "full",
            StoreFault::Unauthorized => "denied",
            StoreFault::Moving => "moving",
            StoreFault::Garbled => "garbled",
            StoreFault::CommandError => "refused",
        }
    }

    /// Of an error that the client library made up, not the server.
    pub(super) fn from_client_error(error: &RedisError) -> StoreFault {
        match error.kind() {
            ErrorKind::Server(_) => error.code().map_or(StoreFault::CommandError, StoreFault::from_code),
            ErrorKind::Extension => error.code().map_or(StoreFault::CommandError, StoreFault::from_code),
            ErrorKind::AuthenticationFailed => StoreFault::Unauthorized,
            ErrorKind::Io if error.is_timeout() => StoreFault::Timeout,
            ErrorKind::Io => StoreFault::Broken,
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreFault::Garbled,
            _ => StoreFault::CommandError,
        }
    }

    fn from_server_error(error: &ServerError) -> StoreFault {
        // A command within a script, which has no code of its own.
        let denied = ["The user executing the script ", "ACL failure in script"];
        let details = error.details().unwrap_or_default();
        if error.code() == "ERR" && denied.iter().any(|begin| details.starts_with(begin)) {
            return StoreFault::Unauthorized;
        }
        StoreFault::from_code(error.code())
    }

    fn from_code(code: &str) -> StoreFault {
        match code {
            "LOADING" | "READONLY" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF" => StoreFault::Unready,
            "OOM" => StoreFault::Full,
            "WRONGPASS" | "NOAUTH" | "NOPERM" => StoreFault::Unauthorized,
            "MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN" => StoreFault::Moving,
            _ => StoreFault::CommandError,
        }
    }
}

// === impl Said ===

impl ErrorReply {
    pub(super) fn from_server_error(error: &ServerError) -> ErrorReply {
        let target = || StoreAddress::parse_redirect(error.details()?);
        match error.code() {
            "NOSCRIPT" => ErrorReply::NoScript,
            "TRYAGAIN" => ErrorReply::TryAgain,
            "MOVED" => target().map_or(ErrorReply::Failed(StoreFault::Garbled), ErrorReply::Moved),
            "ASK" => target().map_or(ErrorReply::Failed(StoreFault::Garbled), ErrorReply::Ask),
            _ => ErrorReply::Failed(StoreFault::from_server_error(error)),
        }
    }
}

// === impl Address ===

impl StoreAddress {
    /// Of `SLOT HOST:PORT`; the host may be empty, and of an IPv6 address the colons are its own.
    fn parse_redirect(details: &str) -> Option<StoreAddress> {
        let (_slot, place) = details.split_once(' ')?;
        let (host, port) = place.trim().rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        StoreAddress::parse_announced(host, port.parse().ok()?)
    }

    /// What a server announced: a name nobody could mean is none, and `?` is a server that does not know its own.
    pub(super) fn parse_announced(host: &str, port: u16) -> Option<StoreAddress> {
        let host = if host == "?" { "" } else { host };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        let sound = port != 0 && host.len() <= 253 && host.bytes().all(plain);
        sound.then(|| StoreAddress { host: host.to_owned(), port })
    }

    /// With the host of `sayer`, where the server that said it meant itself.
    pub(super) fn resolve_from(self, sayer: &StoreAddress) -> StoreAddress {
        let host = if self.host.is_empty() { sayer.host.clone() } else { self.host };
        StoreAddress { host, port: self.port }
    }
}

// === impl Fault ===

impl DescribedFault {
    /// Nobody knows the address of the host; the system's error has no word for that.
    pub(super) fn unknown_host() -> DescribedFault {
        DescribedFault { kind: StoreFault::Broken, word: "host not found".to_owned() }
    }

    pub(super) fn from_client_error(error: &RedisError) -> DescribedFault {
        DescribedFault::with_code(StoreFault::from_client_error(error), error.code())
    }

    pub(super) fn from_server_error(error: &ServerError) -> DescribedFault {
        DescribedFault::with_code(StoreFault::from_server_error(error), Some(error.code()))
    }

    /// Whether its word says more than the kind of failure does.
    pub(super) fn is_specific(&self) -> bool {
        self.word != self.kind.label()
    }

    /// The code says more, unless it is that of all errors without one.
    fn with_code(failure: StoreFault, code: Option<&str>) -> DescribedFault {
        let code = code.filter(|code| *code != "ERR");
        DescribedFault { kind: failure, word: code.map_or_else(|| failure.label().to_owned(), code_word) }
    }
}

impl From<&(String, u16)> for StoreAddress {
    fn from((host, port): &(String, u16)) -> StoreAddress {
        StoreAddress { host: host.clone(), port: *port }
    }
}

impl From<StoreFault> for DescribedFault {
    fn from(failure: StoreFault) -> DescribedFault {
        DescribedFault { kind: failure, word: failure.label().to_owned() }
    }
}

impl From<std::io::Error> for DescribedFault {
    fn from(error: std::io::Error) -> DescribedFault {
        let timeout = error.kind() == std::io::ErrorKind::TimedOut;
        let failure = if timeout { StoreFault::Timeout } else { StoreFault::Broken };
        // The text of a kind is a constant of the standard library; that of a certificate's error names no secret.
        let word = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => tls.to_string().chars().take(120).collect(),
            None => error.kind().to_string(),
        };
        DescribedFault { kind: failure, word }
    }
}

/// Codes are capitals; anything else in their place could be text of anybody.
fn code_word(code: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_uppercase() || byte == b'_';
    let sound = !code.is_empty() && code.len() <= CODE_MAX && code.bytes().all(plain);
    if sound { code.to_owned() } else { StoreFault::CommandError.label().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_is_listed_once_and_has_a_word_of_its_own() {
        let words: std::collections::BTreeSet<_> =
            StoreFault::ALL.iter().map(|failure| failure.label()).collect();
        assert_eq!(words.len(), StoreFault::ALL.len());
        for (place, failure) in StoreFault::ALL.iter().enumerate() {
            assert_eq!(*failure as usize, place);
        }
    }

    #[test]
    fn redirects_name_a_host_or_the_server_itself() {
        let of = |text| StoreAddress::parse_redirect(text).map(|address| (address.host, address.port));
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
        let word = |code| DescribedFault::with_code(StoreFault::CommandError, code).word;
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
