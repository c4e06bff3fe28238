//! Faults of calls to the store, read from the replies of the server or the state of the connection.

use redis::{ErrorKind, RedisError};

use sluicegate_base::labelled::labelled_enum;

labelled_enum! {
    /// The reason why a call brought no answer; `label` is its word in metrics and log lines.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StoreFault: label -> &'static str {
        /// Not asked: the store is known not to answer.
        Down = "down",
        /// Not asked: too many calls are in flight.
        Busy = "busy",
        /// No answer in time; the call may have run.
        Timeout = "timeout",
        /// The connection broke; the call may have run.
        Broken = "broken",
        /// The server takes no writes: it is a replica, loading, or cut off from its primary.
        Unready = "unready",
        /// The server's memory is full.
        Full = "full",
        /// User, password or permissions were not accepted.
        Unauthorized = "denied",
        /// Keys are moving between servers faster than they are found.
        Moving = "moving",
        /// A malformed answer.
        Garbled = "garbled",
        /// Any other error of the server.
        CommandError = "refused",
    }
}

/// A host and a port; the host is empty if the server that named it meant itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StoreAddress {
    pub host: String,
    pub port: u16,
}

/// A fault with the word for it in log lines: never text that could quote a secret.
#[derive(Debug, Clone)]
pub(super) struct DescribedFault {
    pub kind: StoreFault,
    pub word: String,
}

/// Maximum length of a server's error code in a log line.
const CODE_MAX: usize = 24;

// === impl StoreFault ===

impl StoreFault {
    /// Classifies an error reply, or an error of the client library.
    pub(super) fn from_error(error: &RedisError) -> StoreFault {
        // A denied command within a script has no code of its own.
        let denials = ["The user executing the script ", "ACL failure in script"];
        let is_denial = || denials.iter().any(|text| error.detail().unwrap_or_default().starts_with(text));
        match (error.kind(), error.code()) {
            (_, Some("ERR")) if is_denial() => StoreFault::Unauthorized,
            (_, Some("LOADING" | "READONLY" | "MASTERDOWN" | "NOREPLICAS" | "MISCONF")) => {
                StoreFault::Unready
            }
            (_, Some("OOM")) => StoreFault::Full,
            (_, Some("WRONGPASS" | "NOAUTH" | "NOPERM")) => StoreFault::Unauthorized,
            (_, Some("MOVED" | "ASK" | "TRYAGAIN" | "CLUSTERDOWN")) => StoreFault::Moving,
            (ErrorKind::AuthenticationFailed, _) => StoreFault::Unauthorized,
            (ErrorKind::Io, _) if error.is_timeout() => StoreFault::Timeout,
            (ErrorKind::Io, _) => StoreFault::Broken,
            (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => StoreFault::Garbled,
            _ => StoreFault::CommandError,
        }
    }
}

// === impl StoreAddress ===

impl StoreAddress {
    /// The server that a redirect names; the host may be empty, and an IPv6 address has colons of its own.
    pub(super) fn from_redirect(error: &RedisError) -> Option<StoreAddress> {
        let (address, _slot) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        StoreAddress::parse_announced(host, port.parse().ok()?)
    }

    /// An address that a server announced; `None` if the name is impossible. `?` stands for a server that does not
    /// know its own name.
    pub(super) fn parse_announced(host: &str, port: u16) -> Option<StoreAddress> {
        let host = if host == "?" { "" } else { host };
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:%".contains(&byte);
        let sound = port != 0 && host.len() <= 253 && host.bytes().all(plain);
        sound.then(|| StoreAddress { host: host.to_owned(), port })
    }

    /// Fills in the host of `origin`, if the server that named the address meant itself.
    pub(super) fn resolve_from(self, origin: &StoreAddress) -> StoreAddress {
        let host = if self.host.is_empty() { origin.host.clone() } else { self.host };
        StoreAddress { host, port: self.port }
    }
}

// === impl DescribedFault ===

impl DescribedFault {
    /// The host name has no address; the system's error has no word for that.
    pub(super) fn unknown_host() -> DescribedFault {
        DescribedFault { kind: StoreFault::Broken, word: "host not found".to_owned() }
    }

    /// True if its word says more than the kind of fault does.
    pub(super) fn is_specific(&self) -> bool {
        self.word != self.kind.label()
    }

    /// The code is the word, unless it is the generic `ERR`.
    fn with_code(fault: StoreFault, code: Option<&str>) -> DescribedFault {
        let code = code.filter(|code| *code != "ERR");
        DescribedFault { kind: fault, word: code.map_or_else(|| fault.label().to_owned(), code_word) }
    }
}

impl From<&(String, u16)> for StoreAddress {
    fn from((host, port): &(String, u16)) -> StoreAddress {
        StoreAddress { host: host.clone(), port: *port }
    }
}

impl From<RedisError> for DescribedFault {
    fn from(error: RedisError) -> DescribedFault {
        DescribedFault::with_code(StoreFault::from_error(&error), error.code())
    }
}

impl From<StoreFault> for DescribedFault {
    fn from(fault: StoreFault) -> DescribedFault {
        DescribedFault { kind: fault, word: fault.label().to_owned() }
    }
}

impl From<std::io::Error> for DescribedFault {
    fn from(error: std::io::Error) -> DescribedFault {
        let timeout = error.kind() == std::io::ErrorKind::TimedOut;
        let fault = if timeout { StoreFault::Timeout } else { StoreFault::Broken };
        // The text of a kind is a constant of the standard library; that of a certificate's error names no secret.
        let word = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(tls) => tls.to_string().chars().take(120).collect(),
            None => error.kind().to_string(),
        };
        DescribedFault { kind: fault, word }
    }
}

/// Codes are upper case; anything else in their place could be arbitrary text.
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
            StoreFault::ALL.iter().map(|fault| fault.label()).collect();
        assert_eq!(words.len(), StoreFault::ALL.len());
        for (index, fault) in StoreFault::ALL.iter().enumerate() {
            assert_eq!(*fault as usize, index);
        }
    }

    #[test]
    fn redirects_name_a_host_or_the_server_itself() {
        let of = |text: &str| {
            let reply = redis::parse_redis_value(format!("-MOVED {text}\r\n").as_bytes()).unwrap();
            let address = StoreAddress::from_redirect(&reply.extract_error().unwrap_err());
            address.map(|address| (address.host, address.port))
        };
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
