//! Server faults: a closed set of reasons for the access log, the admin API and the process log. They contain nothing
//! that a client or a server sent.

use std::borrow::Cow;
use std::error::Error;
use std::{fmt, io};

use http::StatusCode;
use rustls::CertificateError;

/// The reason why a response is missing, unusable or an error. Faults of clients are not among these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerFault {
    // No connection was made.
    /// The name of the server was not found, or has no address.
    NameNotFound,
    /// The server refused the connection.
    ConnectRefused,
    /// The host or the network of the server is unreachable.
    NoRoute,
    /// The unix socket does not exist.
    NoSocket,
    /// The system does not permit the connection, as with a unix socket of another user.
    PermissionDenied,
    /// The connect, TLS included, took longer than its deadline.
    ConnectTimeout,
    /// The server reset the connection before it was ready.
    ConnectReset,
    /// The certificate of the server has expired.
    CertificateExpired,
    /// The certificate of the server is for other names.
    CertificateNameMismatch,
    /// The certificate of the server comes from an authority that is not trusted.
    UnknownAuthority,
    /// A server may not present the certificate of an authority, which most self-signed ones are.
    CaCertificate,
    /// The certificate of the server is invalid for another reason.
    BadCertificate,
    /// The server wants a certificate of the gateway, and there is none.
    CertificateRequired,
    /// The server rejected the certificate of the gateway.
    CertificateRejected,
    /// The server speaks no TLS.
    NoTls,
    /// The server and the gateway have no version of TLS, or no cipher suite, in common.
    TlsIncompatible,
    /// The TLS handshake failed for another reason than the certificate.
    TlsFailed,
    /// The server does not speak HTTP/2, which is required of it.
    NoHttp2,
    /// The connect failed for another reason.
    ConnectFailed,
    // No response came, or an invalid one.
    /// Two connections in turn did not take the request.
    RequestNotSent,
    /// The server closed the connection before a response.
    Closed,
    /// The server reset the connection, or the stream of HTTP/2.
    Reset,
    /// The connection ended within the response.
    ClosedMidResponse,
    /// The response did not come in time.
    Timeout,
    /// The response is not valid HTTP.
    BadResponse,
    /// A status that counts as an error or is retried.
    Status(StatusCode),
}

impl ServerFault {
    /// The words of the access log; connect faults come first.
    const WORDS: [(ServerFault, &'static str); 25] = [
        (ServerFault::NameNotFound, "name not found"),
        (ServerFault::ConnectRefused, "connection refused"),
        (ServerFault::NoRoute, "no route"),
        (ServerFault::NoSocket, "no such socket"),
        (ServerFault::PermissionDenied, "permission denied"),
        (ServerFault::ConnectTimeout, "connect timeout"),
        (ServerFault::ConnectReset, "connect reset"),
        (ServerFault::CertificateExpired, "certificate expired"),
        (ServerFault::CertificateNameMismatch, "certificate not valid for this name"),
        (ServerFault::UnknownAuthority, "certificate of an unknown authority"),
        (ServerFault::CaCertificate, "the certificate is for CA use only"),
        (ServerFault::BadCertificate, "bad certificate"),
        (ServerFault::CertificateRequired, "the server requires a certificate"),
        (ServerFault::CertificateRejected, "the server rejected our certificate"),
        (ServerFault::NoTls, "TLS not spoken"),
        (ServerFault::TlsIncompatible, "no TLS version or cipher in common"),
        (ServerFault::TlsFailed, "TLS handshake failed"),
        (ServerFault::NoHttp2, "HTTP/2 not spoken"),
        (ServerFault::ConnectFailed, "connect failed"),
        (ServerFault::RequestNotSent, "request not taken"),
        (ServerFault::Closed, "closed without an answer"),
        (ServerFault::Reset, "reset"),
        (ServerFault::ClosedMidResponse, "closed within the answer"),
        (ServerFault::Timeout, "response timeout"),
        (ServerFault::BadResponse, "broken answer"),
    ];
    /// The number of indices; all statuses share one.
    pub(super) const COUNT: usize = ServerFault::WORDS.len() + 1;

    pub(super) fn index(self) -> usize {
        let index = ServerFault::WORDS.iter().position(|(fault, _)| *fault == self);
        index.unwrap_or(ServerFault::WORDS.len())
    }

    /// The word of the access log.
    pub fn as_str(self) -> &'static str {
        ServerFault::WORDS.get(self.index()).map_or("status", |(_, word)| word)
    }

    /// The same, with the number of a status.
    pub(super) fn to_text(self) -> Cow<'static, str> {
        match self {
            ServerFault::Status(status) => format!("status {}", status.as_u16()).into(),
            _ => self.as_str().into(),
        }
    }

    /// True if no connection was made: then the server received nothing of the request.
    pub fn is_connect_fault(self) -> bool {
        self.index() <= ServerFault::ConnectFailed.index()
    }

    /// The fault of a failed connect.
    pub(super) fn from_connect(error: &io::Error) -> ServerFault {
        use io::ErrorKind;
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match (cause, error.kind()) {
            (Some(rustls::Error::InvalidCertificate(certificate)), _) => {
                ServerFault::from_certificate(certificate)
            }
            (Some(error), _) => ServerFault::from_tls(error),
            (None, ErrorKind::UnexpectedEof) => ServerFault::TlsFailed,
            (None, ErrorKind::ConnectionRefused) => ServerFault::ConnectRefused,
            (None, ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::NetworkDown) => {
                ServerFault::NoRoute
            }
            (None, ErrorKind::NotFound) => ServerFault::NoSocket,
            (None, ErrorKind::PermissionDenied) => ServerFault::PermissionDenied,
            (None, ErrorKind::TimedOut) => ServerFault::ConnectTimeout,
            (None, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => ServerFault::ConnectReset,
            (None, _) => ServerFault::ConnectFailed,
        }
    }

    fn from_tls(error: &rustls::Error) -> ServerFault {
        use rustls::AlertDescription as Alert;
        match error {
            rustls::Error::InvalidMessage(_) => ServerFault::NoTls,
            rustls::Error::PeerIncompatible(_) => ServerFault::TlsIncompatible,
            rustls::Error::AlertReceived(alert) => match alert {
                Alert::CertificateRequired => ServerFault::CertificateRequired,
                Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::AccessDenied => ServerFault::CertificateRejected,
                Alert::ProtocolVersion | Alert::InsufficientSecurity => ServerFault::TlsIncompatible,
                _ => ServerFault::TlsFailed,
            },
            _ => ServerFault::TlsFailed,
        }
    }

    /// The fault that an alert of the server names, which it may send after the handshake.
    pub(super) fn from_alert(error: &io::Error) -> Option<ServerFault> {
        let cause = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        matches!(cause, rustls::Error::AlertReceived(_)).then(|| ServerFault::from_tls(cause))
    }

    fn from_certificate(error: &CertificateError) -> ServerFault {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                ServerFault::CertificateExpired
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                ServerFault::CertificateNameMismatch
            }
            CertificateError::UnknownIssuer => ServerFault::UnknownAuthority,
            // The type of this cause is not exported.
            CertificateError::Other(cause) if cause.to_string() == "CaUsedAsEndEntity" => {
                ServerFault::CaCertificate
            }
            _ => ServerFault::BadCertificate,
        }
    }

    /// The fault of an exchange over HTTP/2 that broke, other than by its response.
    pub(super) fn from_http2(error: &hyper::Error) -> ServerFault {
        let cause = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>());
        match cause {
            Some(cause) if cause.is_reset() => ServerFault::Reset,
            Some(cause) if cause.get_io().is_some_and(is_reset) => ServerFault::Reset,
            Some(cause) => cause.get_io().and_then(ServerFault::from_alert).unwrap_or(ServerFault::Closed),
            None => ServerFault::Closed,
        }
    }
}

/// True if the peer reset the connection instead of closing it.
pub(super) fn is_reset(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionReset
}

impl fmt::Display for ServerFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_connects_are_distinguished() {
        let of = |kind: io::ErrorKind| ServerFault::from_connect(&kind.into()).as_str();
        assert_eq!(of(io::ErrorKind::ConnectionRefused), "connection refused");
        assert_eq!(of(io::ErrorKind::HostUnreachable), "no route");
        assert_eq!(of(io::ErrorKind::NotFound), "no such socket");
        assert_eq!(of(io::ErrorKind::PermissionDenied), "permission denied");
        assert_eq!(of(io::ErrorKind::AddrInUse), "connect failed");
        let tls = |error: CertificateError| {
            let error = rustls::Error::InvalidCertificate(error);
            ServerFault::from_connect(&io::Error::new(io::ErrorKind::InvalidData, error)).as_str()
        };
        assert_eq!(tls(CertificateError::Expired), "certificate expired");
        assert_eq!(tls(CertificateError::NotValidForName), "certificate not valid for this name");
        assert_eq!(tls(CertificateError::UnknownIssuer), "certificate of an unknown authority");
        assert_eq!(tls(CertificateError::BadSignature), "bad certificate");
        let alert = |alert| {
            let error = rustls::Error::AlertReceived(alert);
            ServerFault::from_connect(&io::Error::new(io::ErrorKind::InvalidData, error)).as_str()
        };
        use rustls::AlertDescription as Alert;
        assert_eq!(alert(Alert::CertificateRequired), "the server requires a certificate");
        assert_eq!(alert(Alert::UnknownCA), "the server rejected our certificate");
        assert_eq!(alert(Alert::ProtocolVersion), "no TLS version or cipher in common");
        assert_eq!(alert(Alert::InternalError), "TLS handshake failed");
    }

    #[test]
    fn reasons_of_connects_come_first() {
        assert_eq!(ServerFault::BadResponse.index() + 2, ServerFault::COUNT);
        assert_eq!(ServerFault::Status(StatusCode::BAD_GATEWAY).index() + 1, ServerFault::COUNT);
        assert!(ServerFault::NameNotFound.is_connect_fault() && ServerFault::NoHttp2.is_connect_fault());
        assert!(
            !ServerFault::RequestNotSent.is_connect_fault()
                && !ServerFault::Status(StatusCode::OK).is_connect_fault()
        );
        assert_eq!(ServerFault::Status(StatusCode::BAD_GATEWAY).to_string(), "status 502");
    }
}
