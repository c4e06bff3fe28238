//! Error statuses of the gateway that are neither a rejection nor a fault with a prepared response.

use http::StatusCode;

/// The client left before the head of its response was ready: nginx's 499, which IANA does not list. It is logged and
/// counted, never sent.
pub const CLIENT_GONE: StatusCode = match StatusCode::from_u16(499) {
    Ok(status) => status,
    Err(_) => panic!("499 is within the range of status codes"),
};

/// A panic ended the request. It is logged and counted; the connection breaks without a response.
pub const PANICKED: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// The status of a local response to a CONNECT for a WebSocket. Any success would tell the client that its tunnel is
/// open, so a success becomes 503.
pub fn without_tunnel(status: StatusCode) -> StatusCode {
    if status.is_success() { StatusCode::SERVICE_UNAVAILABLE } else { status }
}
