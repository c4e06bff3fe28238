//! Reads answers over HTTP/1.

use std::io;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The status of an answer that is read to its end, and whether the connection stays open.
pub async fn read_answer(stream: &mut TcpStream) -> io::Result<(u16, bool)> {
    let mut bytes = Vec::with_capacity(512);
    let head = loop {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let Some(length) = length.map(|length: usize| head + length) else {
        // The body ends with the connection.
        while stream.read_buf(&mut bytes).await? > 0 {}
        return Ok((status, false));
    };
    while bytes.len() < length {
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((status, !text.contains("connection: close") && text.starts_with("http/1.1")))
}
