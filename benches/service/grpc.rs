//! One call of Envoy's rate limit service: its bytes, and what an answer says.

use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use h2::client::SendRequest;
use http::HeaderValue;
use tokio::net::TcpStream;

use crate::child::Result;

pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The framed message of a call in `domain` with one descriptor of one entry: `remote_address`, 192.0.2.7.
pub fn call(domain: &str) -> Vec<u8> {
    let entry = [field(1, b"remote_address"), field(2, b"192.0.2.7")].concat();
    let descriptor = field(1, &entry);
    let message = [field(1, domain.as_bytes()), field(2, &descriptor)].concat();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0], &length[..], &message].concat()
}

/// A field with fewer than 128 bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
}

/// Makes calls one after the other on one connection, and counts the answers that say OK and over the limit.
pub fn ask(port: u16, domain: &str, calls: usize) -> Result<(usize, usize)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        let (mut client, connection) = h2::client::handshake(stream).await?;
        let connection = tokio::spawn(connection);
        let (mut admitted, mut rejected) = (0, 0);
        for _ in 0..calls {
            client = client.ready().await?;
            match exchange(&mut client, port, call(domain)).await? {
                1 => admitted += 1,
                2 => rejected += 1,
                other => return Err(format!("overall_code {other}").into()),
            }
        }
        connection.abort();
        Ok((admitted, rejected))
    })
}

/// The `overall_code` of an answer, of which the value of `grpc-status` is `status`.
fn read_code(data: &[u8], status: Option<&HeaderValue>) -> Result<u8> {
    let status = status.ok_or("no grpc-status")?.as_bytes();
    let length = data.get(1..5).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    let (Some(length), b"0", Some(0)) = (length, status, data.first()) else {
        return Err(format!("grpc-status {}", String::from_utf8_lossy(status)).into());
    };
    if data.len() as u64 != u64::from(length) + 5 {
        return Err(format!("{} bytes for a message of {length}", data.len()).into());
    }
    // `overall_code` is the first field, a number.
    match data[5..] {
        [8, code, ..] => Ok(code),
        _ => Err("no overall_code".into()),
    }
}

/// Sends one message, and returns the `overall_code` of its answer.
async fn exchange(client: &mut SendRequest<Bytes>, port: u16, message: Vec<u8>) -> Result<u8> {
    let request = http::Request::post(format!("http://127.0.0.1:{port}{PATH}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (response, mut body) = client.send_request(request, false)?;
    body.send_data(Bytes::from(message), true)?;
    let response = response.await?;
    let early = response.headers().get("grpc-status").cloned();
    let mut answer = response.into_body();
    let mut data = Vec::new();
    while let Some(piece) = answer.data().await {
        let piece = piece?;
        answer.flow_control().release_capacity(piece.len())?;
        data.extend_from_slice(&piece);
    }
    let trailers = answer.trailers().await?;
    let status = trailers.as_ref().and_then(|trailers| trailers.get("grpc-status"));
    read_code(&data, status.or(early.as_ref()))
}
