//! The fields that the access log has only if they are configured.

/// A field that lines of the access log have only if it is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogField {
    UserAgent,
    /// The referer without its query.
    Referer,
    /// Attempts to get a response from the upstream.
    Tries,
    /// The time from sending the request to the head of the response.
    UpstreamMs,
    Scheme,
    /// The version of HTTP.
    Proto,
}
