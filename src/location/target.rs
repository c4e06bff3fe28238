//! The request target: origin form, absolute form, or the `*` of OPTIONS; nothing else passes.

use std::borrow::Cow;
use std::fmt;

use http::{Method, Uri};

use super::path::{PathError, normalise};

/// A target that may be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// The path as it was sent.
    Path(&'a str),
    /// `OPTIONS *`: judged as the path `/`, forwarded as it is.
    Asterisk,
}

impl<'a> Target<'a> {
    /// The normalised path that a location is looked up by.
    #[inline]
    pub fn path(self) -> Result<Cow<'a, [u8]>, PathError> {
        match self {
            Target::Path(path) => normalise(path),
            Target::Asterisk => Ok(Cow::Borrowed(b"/")),
        }
    }
}

/// Why a target is refused: 405 for the method, 400 for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetError {
    /// CONNECT or TRACE.
    Method,
    /// `*` from another method than OPTIONS.
    Asterisk,
    /// Neither a path nor an absolute URL, as `admin` and `a.test:80`.
    NotAPath,
    /// An absolute URL that is neither http nor https.
    Scheme,
    /// An absolute URL with a user name in it.
    UserInfo,
    /// A letter that a URI spells with percent escapes; upstreams read it in different ways.
    NotAscii,
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TargetError::Method => "CONNECT and TRACE are not served here",
            TargetError::Asterisk => "the target * belongs to OPTIONS alone",
            TargetError::NotAPath => "the target is neither a path nor an http URL",
            TargetError::Scheme => "the target's scheme is neither http nor https",
            TargetError::UserInfo => "the target carries a user name",
            TargetError::NotAscii => "the target contains a byte above ASCII",
        })
    }
}

impl std::error::Error for TargetError {}

/// Checks the form of the target; the path in it is checked by [`Target::path`], the authority by
/// [`super::host`].
///
/// Raw control characters and bytes that are no UTF-8 never come this far: the parser of heads refuses them.
#[inline]
pub fn check_target<'a>(method: &Method, uri: &'a Uri) -> Result<Target<'a>, TargetError> {
    if *method == Method::CONNECT || *method == Method::TRACE {
        return Err(TargetError::Method);
    }
    if !uri.path().is_ascii() || !uri.query().is_none_or(str::is_ascii) {
        return Err(TargetError::NotAscii);
    }
    match (uri.scheme_str(), uri.authority()) {
        (None, None) => {}
        (Some("http" | "https"), Some(authority)) if authority.as_str().contains('@') => {
            return Err(TargetError::UserInfo);
        }
        (Some("http" | "https"), Some(_)) => {}
        (Some(_), _) => return Err(TargetError::Scheme),
        (None, Some(_)) => return Err(TargetError::NotAPath),
    }
    match uri.path() {
        "*" if *method == Method::OPTIONS && uri.query().is_none() => Ok(Target::Asterisk),
        "*" => Err(TargetError::Asterisk),
        path if path.starts_with('/') => Ok(Target::Path(path)),
        _ => Err(TargetError::NotAPath),
    }
}

#[cfg(test)]
mod tests;
