//! A backend that answers every request with a mebibyte, with one thread per connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use crate::child::Result;

const BODY: usize = 1 << 20;
const END: &[u8] = b"\r\n\r\n";

/// Serves until the process is ended. Handles only requests without a body.
pub fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {BODY}\r\n\r\n");
    let answer = [head.as_bytes(), &vec![b'x'; BODY]].concat();
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = stream?;
            let answer = &answer;
            // A client that goes away ends its thread.
            scope.spawn(move || drop(answer_all(stream, answer)));
        }
        Ok(())
    })
}

fn answer_all(mut stream: TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let mut rest = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let got = stream.read(&mut buffer)?;
        if got == 0 {
            return Ok(());
        }
        rest.extend_from_slice(&buffer[..got]);
        while let Some(at) = rest.windows(END.len()).position(|window| window == END) {
            rest.drain(..at + END.len());
            stream.write_all(answer)?;
        }
    }
}
