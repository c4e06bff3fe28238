//! The stable codes of all errors and warnings about a configuration file.

/// The file is missing, unreadable or too large.
pub const UNREADABLE: &str = "E001";
/// The file is not UTF-8 text.
pub const NOT_UTF8: &str = "E002";
/// The YAML itself is broken, too deep, or grows without bound.
pub const SYNTAX: &str = "E003";
/// The same key twice in one mapping.
pub const DUPLICATE_KEY: &str = "E004";
/// The file is empty.
pub const EMPTY: &str = "E005";
/// A field that the section does not have.
pub const UNKNOWN_FIELD: &str = "E006";
/// A field or value that this version does not support yet.
pub const UNSUPPORTED: &str = "E007";
/// A mapping where a list or a value is needed, or the other way round.
pub const SHAPE: &str = "E008";
/// A required field or value is missing.
pub const MISSING: &str = "E009";
/// A word that is not allowed here.
pub const WORD: &str = "E010";
/// Not a whole number, or out of its range.
pub const NUMBER: &str = "E011";
/// Not a duration such as `5s`.
pub const DURATION: &str = "E012";
/// Not a size such as `64KiB`.
pub const SIZE: &str = "E013";
/// Not a percentage such as `20%`.
pub const PERCENT: &str = "E014";
/// Not a rate such as `10/s`.
pub const RATE: &str = "E015";
/// Not an address of a listener, a server or a collector.
pub const ADDRESS: &str = "E016";
/// Not an address or network such as `10.0.0.0/8`.
pub const NETWORK: &str = "E017";
/// Not a header name or header value.
pub const HEADER: &str = "E018";
/// Not a host name.
pub const HOST: &str = "E019";
/// Not a request method.
pub const METHOD: &str = "E020";
/// Not a status code that may be sent here.
pub const STATUS: &str = "E021";
/// Not a path, or one that can never match.
pub const PATH: &str = "E022";
/// Not a regular expression.
pub const REGEX: &str = "E023";
/// A name that is used but not defined.
pub const UNDEFINED: &str = "E024";
/// A name that may not be given, or that is given twice.
pub const NAME: &str = "E025";
/// A field that the limit's algorithm does not have.
pub const FOREIGN_FIELD: &str = "E026";
/// Numbers of a limit that do not fit together.
pub const LIMIT_NUMBERS: &str = "E027";
/// None, or more than one, of upstream, respond and redirect.
pub const ACTION: &str = "E028";
/// The same host, path, methods, scheme, listener and conditions twice.
pub const SAME_LOCATION: &str = "E029";
/// A header that the gateway itself must write.
pub const PROTECTED_HEADER: &str = "E030";
/// A `${NAME}` or `${file:PATH}` that cannot be replaced.
pub const SUBSTITUTION: &str = "E031";
/// A template variable that does not exist or is not allowed here.
pub const TEMPLATE: &str = "E032";
/// The admin listener would be open to the network without a token.
pub const OPEN_ADMIN: &str = "E033";
/// Tokens cannot be verified with these settings.
pub const TOKEN: &str = "E034";
/// Not a file that a snapshot can be written to.
pub const SNAPSHOT: &str = "E035";
/// Not the URL of a Redis or Valkey.
pub const REDIS: &str = "E036";
/// A limit with settings that cannot be shared.
pub const SHARED: &str = "E037";
/// A certificate, key or TLS setting that cannot be used.
pub const TLS: &str = "E038";
/// Something is defined and never used (a warning).
pub const UNUSED: &str = "W001";
/// A limit counts by a value that any client can choose (a warning).
pub const SPOOFABLE: &str = "W002";
/// A location that no request can reach (a warning).
pub const UNREACHABLE: &str = "W003";
/// A burst below the units of one second (a warning).
pub const SMALL_BURST: &str = "W004";
/// A queue that takes longer to drain than any client waits (a warning).
pub const LONG_QUEUE: &str = "W005";
/// A wait, in a queue or for Redis, that may exceed its location's timeout (a warning).
pub const LONG_WAIT: &str = "W006";
/// A cost from a header that no client may set (a warning).
pub const COST_IGNORED: &str = "W007";
/// A secret or connection that is easy to guess or forge (a warning).
pub const WEAK: &str = "W008";
/// A setting without effect (a warning).
pub const NO_EFFECT: &str = "W009";
/// A part of a shared limit that each gateway handles alone (a warning).
pub const NOT_SHARED: &str = "W010";
/// A certificate that clients reject or never see (a warning).
pub const CERTIFICATE: &str = "W011";
/// A value that means something else than it seems to (a warning).
pub const MISREAD: &str = "W012";
/// A host name of a server that does not resolve where `check` runs (a warning, never an error).
pub const UNRESOLVED: &str = "W013";
/// A header in the access log that carries secrets of clients (a warning).
pub const LOGGED_SECRET: &str = "W014";
/// A limit that one request can reserve as a whole (a warning).
pub const WHOLE_CLAIM: &str = "W015";
/// A folder that is to be written, and cannot be (a warning).
pub const UNWRITABLE: &str = "W016";
/// A quota that a restart forgets (a warning).
pub const FORGOTTEN: &str = "W017";
/// Turns that the wrong clients take (a warning).
pub const TURNS: &str = "W018";
