//! The backend behind every proxy: one thread, one fixed response, as little work as the sockets allow.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

use crate::child::Result;

/// The usual length of a body.
pub const BODY: usize = 128;
const LISTENER: Token = Token(usize::MAX);

struct Peer {
    stream: TcpStream,
    /// An incomplete request head.
    rest: Vec<u8>,
}

/// Serves bodies of `length` bytes until the process is ended. Handles only requests without a body.
pub fn serve(port: u16, length: usize) -> Result<()> {
    let mut poll = Poll::new()?;
    let mut listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let answer = answer(length);
    let mut peers: Vec<Option<Peer>> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut events = Events::with_capacity(1024);
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            if event.token() == LISTENER {
                accept_all(&poll, &listener, &mut peers, &mut free)?;
                continue;
            }
            let slot = event.token().0;
            let Some(peer) = &mut peers[slot] else { continue };
            if !talk(peer, &mut buffer, &answer) {
                peers[slot] = None;
                free.push(slot);
            }
        }
    }
}

fn answer(length: usize) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 200 OK\r\nServer: fixed\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\n\
         Content-Type: text/plain\r\nContent-Length: {length}\r\n\r\n"
    );
    let mut answer = head.into_bytes();
    answer.resize(answer.len() + length, b'x');
    answer
}

fn accept_all(
    poll: &Poll,
    listener: &TcpListener,
    peers: &mut Vec<Option<Peer>>,
    free: &mut Vec<usize>,
) -> Result<()> {
    loop {
        match listener.accept() {
            Ok((mut stream, _)) => {
                stream.set_nodelay(true)?;
                let slot = free.pop().unwrap_or(peers.len());
                poll.registry().register(&mut stream, Token(slot), Interest::READABLE)?;
                let peer = Some(Peer { stream, rest: Vec::new() });
                if slot == peers.len() { peers.push(peer) } else { peers[slot] = peer }
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Answers the requests that have arrived; `false` when the connection is over.
fn talk(peer: &mut Peer, buffer: &mut [u8], answer: &[u8]) -> bool {
    loop {
        let got = match peer.stream.read(buffer) {
            Ok(0) => return false,
            Ok(got) => got,
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        };
        for _ in 0..heads(&mut peer.rest, &buffer[..got]) {
            // A send buffer holds hundreds of these responses: a short write means a client that does not read.
            if !peer.stream.write(answer).is_ok_and(|sent| sent == answer.len()) {
                return false;
            }
        }
        // A short read has emptied the socket; the next bytes cause a new event.
        if got < buffer.len() {
            return true;
        }
    }
}

/// Returns the number of complete request heads in `rest` and `new`; keeps the remaining bytes.
fn heads(rest: &mut Vec<u8>, new: &[u8]) -> usize {
    const END: &[u8] = b"\r\n\r\n";
    rest.extend_from_slice(new);
    let mut complete = 0;
    let mut start = 0;
    while let Some(at) = rest[start..].windows(END.len()).position(|window| window == END) {
        complete += 1;
        start += at + END.len();
    }
    rest.drain(..start);
    complete
}
