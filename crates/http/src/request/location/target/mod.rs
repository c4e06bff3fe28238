//! The request target: origin form, absolute form, or the `*` of OPTIONS; every other form is rejected.
//!
//! [`take_authority`] leaves exactly the target that is judged and forwarded: it is parsed only once.

use std::borrow::Cow;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{Method, Uri};

use super::path::{PathError, normalise_path};

/// A target that may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestTarget<'a> {
    /// The path as it was sent.
    Path(&'a str),
    /// `OPTIONS *`: judged as the path `/`, forwarded as it is.
    Asterisk,
}

impl<'a> RequestTarget<'a> {
    /// The normalised path that a location is looked up by.
    #[inline]
    pub fn normalised_path(self) -> Result<Cow<'a, [u8]>, PathError> {
        match self {
            RequestTarget::Path(path) => normalise_path(path),
            RequestTarget::Asterisk => Ok(Cow::Borrowed(b"/")),
        }
    }
}

/// The reason why a target is rejected: 405 for the method, 400 for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetError {
    /// CONNECT or TRACE.
    Method,
    /// A method with a lower-case letter: `post` must not evade a rule for `POST`.
    MethodCase,
    /// `*` with another method than OPTIONS.
    Asterisk,
    /// Neither a path nor an absolute URL, as `admin` and `a.test:80`.
    NotAPath,
    /// An absolute URL that is neither http nor https.
    Scheme,
    /// An absolute URL with a user name in it.
    UserInfo,
    /// A byte that a URI must percent-encode; upstreams read it in different ways.
    NotAscii,
}

/// Takes the authority out of an absolute http target and leaves the rest in origin form. A target that
/// [`check_target`] rejects for its scheme or its user name stays whole.
#[inline]
pub fn take_authority(uri: &mut Uri) -> Option<Authority> {
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    if !is_http || uri.authority()?.as_str().contains('@') {
        return None;
    }
    let parts = std::mem::take(uri).into_parts();
    // Cannot be absent: the target has a scheme.
    *uri = parts.path_and_query.map(with_slash).unwrap_or_else(|| PathAndQuery::from_static("/")).into();
    parts.authority
}

/// Rewrites `?x=1`, which may follow the authority of an absolute target, to `/?x=1`.
fn with_slash(target: PathAndQuery) -> PathAndQuery {
    if !target.as_str().starts_with('?') {
        return target;
    }
    // One that becomes too long stays as it is and is rejected, since it has no path.
    PathAndQuery::from_maybe_shared(Bytes::from(["/", target.as_str()].concat())).unwrap_or(target)
}

/// Checks the form of a target after [`take_authority`]. [`RequestTarget::normalised_path`] checks its path, and
/// [`super::host`] the authority.
///
/// Raw control characters and invalid UTF-8 do not occur here: the parser of heads rejects them.
#[inline]
pub fn check_target<'a>(method: &Method, uri: &'a Uri) -> Result<RequestTarget<'a>, TargetError> {
    match *method {
        Method::GET | Method::HEAD | Method::POST | Method::PUT | Method::PATCH | Method::DELETE => {}
        Method::CONNECT | Method::TRACE => return Err(TargetError::Method),
        _ if method.as_str().bytes().any(|byte| byte.is_ascii_lowercase()) => {
            return Err(TargetError::MethodCase);
        }
        _ => {}
    }
    let target = uri.path_and_query().map_or("", PathAndQuery::as_str);
    if !target.is_ascii() {
        return Err(TargetError::NotAscii);
    }
    match (uri.scheme_str(), uri.authority()) {
        (None, None) => {}
        (Some("http" | "https"), _) => return Err(TargetError::UserInfo),
        (Some(_), _) => return Err(TargetError::Scheme),
        (None, Some(_)) => return Err(TargetError::NotAPath),
    }
    // The path is empty if only a fragment followed the authority. The target begins with its query if it was too long
    // for a slash.
    match uri.path() {
        path if path.starts_with('/') && target.starts_with('/') => Ok(RequestTarget::Path(path)),
        "*" if *method == Method::OPTIONS && uri.query().is_none() => Ok(RequestTarget::Asterisk),
        "*" => Err(TargetError::Asterisk),
        _ => Err(TargetError::NotAPath),
    }
}

#[cfg(test)]
mod tests;
