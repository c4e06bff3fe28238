//! What goes wrong between the gateway and a server: a closed set of reasons, in the words of the access log, the
//! admin API and the process's log. Nothing that a client or a server sent is part of them.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

use http::StatusCode;
use rustls::CertificateError;

/// Why a server gave no answer that could be passed on, or why its answer counts against it. A client's failing is
/// none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    // No connection came about.
    NameNotFound,
    Refused,
    NoRoute,
    NoSocket,
    Forbidden,
    ConnectTimeout,
    ConnectReset,
    CertificateExpired,
    CertificateForOther,
    UnknownAuthority,
    BadCertificate,
    TlsFailed,
    NoHttp2,
    ConnectFailed,
    // No answer came, or none that is HTTP.
    NotTaken,
    Closed,
    Reset,
    ClosedWithin,
    Timeout,
    BadAnswer,
    /// One of `eject.status`.
    Status(StatusCode),
}

impl Trouble {
    /// In the words of the access log; first those of connects.
    const WORDS: [(Trouble, &'static str); 20] = [
        (Trouble::NameNotFound, "name not found"),
        (Trouble::Refused, "connection refused"),
        (Trouble::NoRoute, "no route"),
        (Trouble::NoSocket, "no such socket"),
        (Trouble::Forbidden, "permission denied"),
        (Trouble::ConnectTimeout, "connect timeout"),
        (Trouble::ConnectReset, "connect reset"),
        (Trouble::CertificateExpired, "certificate expired"),
        (Trouble::CertificateForOther, "certificate not valid for this name"),
        (Trouble::UnknownAuthority, "certificate of an unknown authority"),
        (Trouble::BadCertificate, "bad certificate"),
        (Trouble::TlsFailed, "TLS handshake failed"),
        (Trouble::NoHttp2, "HTTP/2 not spoken"),
        (Trouble::ConnectFailed, "connect failed"),
        (Trouble::NotTaken, "request not taken"),
        (Trouble::Closed, "closed without an answer"),
        (Trouble::Reset, "reset"),
        (Trouble::ClosedWithin, "closed within the answer"),
        (Trouble::Timeout, "response timeout"),
        (Trouble::BadAnswer, "broken answer"),
    ];
    /// Places of reasons: all statuses share one.
    pub(super) const COUNT: usize = Trouble::WORDS.len() + 1;

    /// Its place among the reasons.
    pub(super) fn index(self) -> usize {
        let place = Trouble::WORDS.iter().position(|(trouble, _)| *trouble == self);
        place.unwrap_or(Trouble::WORDS.len())
    }

    /// As the access log has it.
    pub fn as_str(self) -> &'static str {
        Trouble::WORDS.get(self.index()).map_or("status", |(_, word)| word)
    }

    /// The same, with the status that an answer had.
    pub(super) fn told(self) -> Cow<'static, str> {
        match self {
            Trouble::Status(status) => format!("status {}", status.as_u16()).into(),
            _ => self.as_str().into(),
        }
    }

    /// Whether no connection came about: then the server had nothing of the request.
    pub fn is_of_connect(self) -> bool {
        self.index() <= Trouble::ConnectFailed.index()
    }

    /// Why a connect failed.
    pub(super) fn of_connect(error: &io::Error) -> Trouble {
        use io::ErrorKind;
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match (cause, error.kind()) {
            (Some(rustls::Error::InvalidCertificate(certificate)), _) => Trouble::of_certificate(certificate),
            (Some(_), _) | (None, ErrorKind::UnexpectedEof) => Trouble::TlsFailed,
            (None, ErrorKind::ConnectionRefused) => Trouble::Refused,
            (None, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown) => {
                Trouble::NoRoute
            }
            (None, ErrorKind::NotFound) => Trouble::NoSocket,
            (None, ErrorKind::PermissionDenied) => Trouble::Forbidden,
            (None, ErrorKind::TimedOut) => Trouble::ConnectTimeout,
            (None, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => Trouble::ConnectReset,
            (None, _) => Trouble::ConnectFailed,
        }
    }

    fn of_certificate(error: &CertificateError) -> Trouble {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                Trouble::CertificateExpired
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Trouble::CertificateForOther
            }
            CertificateError::UnknownIssuer => Trouble::UnknownAuthority,
            _ => Trouble::BadCertificate,
        }
    }

    /// Why an exchange over HTTP/2 broke, if it was no answer that did it.
    pub(super) fn of_http2(error: &hyper::Error) -> Trouble {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
        match cause {
            Some(cause) if cause.is_reset() => Trouble::Reset,
            Some(cause) if cause.get_io().is_some_and(is_reset) => Trouble::Reset,
            _ => Trouble::Closed,
        }
    }
}

/// Whether the other side broke the connection off instead of closing it.
pub(super) fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_connects_are_told_apart() {
        let of = |kind: io::ErrorKind| Trouble::of_connect(&kind.into()).as_str();
        assert_eq!(of(io::ErrorKind::ConnectionRefused), "connection refused");
        assert_eq!(of(io::ErrorKind::HostUnreachable), "no route");
        assert_eq!(of(io::ErrorKind::NotFound), "no such socket");
        assert_eq!(of(io::ErrorKind::PermissionDenied), "permission denied");
        assert_eq!(of(io::ErrorKind::AddrInUse), "connect failed");
        let tls = |error: CertificateError| {
            let error = rustls::Error::InvalidCertificate(error);
            Trouble::of_connect(&io::Error::new(io::ErrorKind::InvalidData, error)).as_str()
        };
        assert_eq!(tls(CertificateError::Expired), "certificate expired");
        assert_eq!(tls(CertificateError::NotValidForName), "certificate not valid for this name");
        assert_eq!(tls(CertificateError::UnknownIssuer), "certificate of an unknown authority");
        assert_eq!(tls(CertificateError::BadSignature), "bad certificate");
    }

    #[test]
    fn reasons_of_connects_come_first() {
        assert_eq!(Trouble::BadAnswer.index() + 2, Trouble::COUNT);
        assert_eq!(Trouble::Status(StatusCode::BAD_GATEWAY).index() + 1, Trouble::COUNT);
        assert!(Trouble::NameNotFound.is_of_connect() && Trouble::NoHttp2.is_of_connect());
        assert!(!Trouble::NotTaken.is_of_connect() && !Trouble::Status(StatusCode::OK).is_of_connect());
        assert_eq!(Trouble::Status(StatusCode::BAD_GATEWAY).to_string(), "status 502");
    }
}
