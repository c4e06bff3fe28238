//! The typed model of keys: the facts of a request that are counted apart.

use std::sync::LazyLock;

use http::HeaderName;

use sluicegate_base::json_pointer::JsonPointer;

/// One part of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address, by the prefix lengths of [`crate::ServerConfig`].
    Ip,
    /// The account of the caller.
    Account,
    /// The tier of the caller.
    Tier,
    /// The path without its query.
    Uri,
    /// The location that takes the request.
    Location,
    /// The host without its port.
    Host,
    /// The request method.
    Method,
    /// The urgency that a trusted proxy tells in `Priority`.
    Priority,
    /// All requests together.
    Global,
    /// A value of the request.
    Source(ValueSource),
    /// A value of the MCP message that the body is.
    Mcp(McpPart),
    /// The SHA-256 of the body.
    BodyHash,
}

/// A value of an MCP message, which a header may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum McpPart {
    /// The method.
    Method,
    /// The name of a tool or a prompt, or the URI of a resource.
    Name,
}

impl KeyPart {
    /// True if each counter of a key of these parts is of one caller: the address or the account is among them, and
    /// nothing of the request.
    pub fn count_callers(parts: &[KeyPart]) -> bool {
        let is_own = |part: &KeyPart| matches!(part, KeyPart::Ip | KeyPart::Account);
        parts.iter().any(is_own) && parts.iter().all(|part| is_own(part) || *part == KeyPart::Tier)
    }

    /// The words of the file: the kind of the key, and the name of its source, if it has one.
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            KeyPart::Ip => ("ip", ""),
            KeyPart::Account => ("account", ""),
            KeyPart::Tier => ("tier", ""),
            KeyPart::Uri => ("uri", ""),
            KeyPart::Location => ("location", ""),
            KeyPart::Host => ("host", ""),
            KeyPart::Method => ("method", ""),
            KeyPart::Priority => ("priority", ""),
            KeyPart::Global => ("global", ""),
            KeyPart::Source(source) => source.words(),
            KeyPart::Mcp(McpPart::Method) => ("mcp:", "method"),
            KeyPart::Mcp(McpPart::Name) => ("mcp:", "name"),
            KeyPart::BodyHash => ("body:", "hash"),
        }
    }
}

/// A part of a request that carries a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ValueSource {
    /// The value of that header.
    Header(HeaderName),
    /// The value of the cookie with that name.
    Cookie(String),
    /// The value of the query parameter with that name.
    Query(String),
    /// A claim of a verified token.
    Jwt(String),
    /// A value in the JSON of its body.
    Json(JsonPointer),
    /// A header in the answer of the auth service; of accounts alone.
    Auth(HeaderName),
}

impl ValueSource {
    /// The words of the file: the kind with its colon, and the name.
    pub fn words(&self) -> (&'static str, &str) {
        match self {
            ValueSource::Header(name) => ("header:", name.as_str()),
            ValueSource::Cookie(name) => ("cookie:", name),
            ValueSource::Query(name) => ("query:", name),
            ValueSource::Jwt(claim) => ("jwt:", claim),
            ValueSource::Json(pointer) => ("json:", pointer.as_str()),
            ValueSource::Auth(name) => ("auth:", name.as_str()),
        }
    }

    /// The kind and the name, equal for sources that are read as one.
    pub fn folded_words(&self) -> (&'static str, Vec<u8>) {
        let (kind, name) = self.words();
        match self {
            ValueSource::Cookie(_) | ValueSource::Query(_) => (kind, name.bytes().map(fold_name).collect()),
            _ => (kind, name.into()),
        }
    }
}

/// A byte in the name of a cookie or parameter, equal for bytes that some server takes for one. PHP takes a dot, a
/// space and a bracket for an underscore; nginx and ASP.NET ignore case.
#[inline]
pub fn fold_name(byte: u8) -> u8 {
    if b". [".contains(&byte) { b'_' } else { byte.to_ascii_lowercase() }
}

/// The places of the values in an MCP message: of the method, of the name of a tool or a prompt, and of the URI of a
/// resource.
pub fn mcp_pointers() -> &'static [JsonPointer; 3] {
    static POINTERS: LazyLock<[JsonPointer; 3]> = LazyLock::new(|| {
        // Cannot fail: each text begins with a slash.
        let pointer = |text| JsonPointer::parse(text).expect("the text is a pointer");
        ["/method", "/params/name", "/params/uri"].map(pointer)
    });
    &POINTERS
}
