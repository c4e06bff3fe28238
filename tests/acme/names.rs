//! A name server on loopback: every name leads to this machine, until it is told to know none.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::ms;

const HEADER: usize = 12;
const TYPE_A: [u8; 2] = [0, 1];

/// Answers the questions of pebble; dropping it ends it.
pub struct Names {
    addr: SocketAddr,
    lost: Arc<AtomicBool>,
    ended: Arc<AtomicBool>,
}

impl Names {
    pub fn start() -> Names {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        socket.set_read_timeout(Some(ms(100))).expect("a timeout can be set");
        let addr = socket.local_addr().expect("an address");
        let (lost, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (none, end) = (lost.clone(), ended.clone());
        thread::spawn(move || {
            let mut question = [0; 512];
            while !end.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut question) else { continue };
                if let Some(answer) = answer(&question[..length], none.load(Ordering::Relaxed)) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Names { addr, lost, ended }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether no name exists from now on.
    pub fn lose(&self, lost: bool) {
        self.lost.store(lost, Ordering::Relaxed);
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// The answer to one question (RFC 1035): 127.0.0.1 for an address of IPv4, no record for other types.
fn answer(message: &[u8], lost: bool) -> Option<Vec<u8>> {
    let name = message.get(HEADER..)?.iter().position(|&byte| byte == 0)?;
    let question = message.get(HEADER..HEADER + name + 5)?;
    let found = !lost && question[name + 1..name + 3] == TYPE_A;
    let code = if lost { 3 } else { 0 };
    let mut answer = message[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    answer.extend(question);
    if found {
        // The name of the question, an address of the Internet, no time to live, four bytes.
        answer.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}
