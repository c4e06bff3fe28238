//! The fields of `service`.

use crate::config::schema::field::section;
use crate::config::schema::kinds::{OneOrMoreOrWord, Special, Text};
use crate::config::value::scalars::Secret;

use super::listen::listen_shape;
use super::operation::parse_token;

section! {
    /// The rate-limit service: applications ask for limits by HTTP calls, and nothing is forwarded.
    mod service = "service";
    /// The addresses of the service, as in the section `listen`, or the name of one of the listeners there, which then
    /// takes calls alone.
    LISTEN: Special = Special(listen_shape), "listen", required, "127.0.0.1:9902";
    /// The token that calls must carry as `Authorization: Bearer TOKEN`, or several, any of which is accepted. An
    /// address that is neither a loopback address nor a unix socket requires one.
    TOKEN: OneOrMoreOrWord<Text<Secret>> =
        OneOrMoreOrWord("none", Text::new("visible ASCII without spaces", parse_token)),
        "token", "none", "\"${SERVICE_TOKEN}\"";
}
