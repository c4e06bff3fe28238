//! Connections that stand unused after one request.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use crate::child::Result;
use crate::facts;

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: bench.test\r\nUser-Agent: idle\r\nAccept: */*\r\n\r\n";

/// The longest time in which connections are asked again: those of a proxy that hangs take ten seconds each.
const ASKING_NS: u64 = 60_000_000_000;

/// Opens `count` connections, each of which sends one request.
pub fn connect(port: u16, count: usize) -> Result<Vec<TcpStream>> {
    (0..count)
        .map(|_| {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            stream.set_read_timeout(Some(Duration::from_secs(10)))?;
            Ok(ask(stream)?)
        })
        .collect()
}

/// The number of connections that do not answer another request, of those that can be asked in time.
pub fn lost(connections: Vec<TcpStream>) -> usize {
    let end = facts::now() + ASKING_NS;
    connections.into_iter().filter(|_| facts::now() < end).filter_map(|stream| ask(stream).err()).count()
}

/// Sends one request; the whole response comes in one piece.
fn ask(mut stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.write_all(GET)?;
    let mut answer = [0; 4096];
    if stream.read(&mut answer)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(stream)
}
