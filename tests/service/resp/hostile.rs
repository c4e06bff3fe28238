//! Whatever a client sends, it is answered or the connection closes, and the next client is served.

use std::time::Instant;

use super::*;

/// Pieces of commands, good and bad, in any order.
fn mangled(random: &mut Random) -> Vec<u8> {
    let pieces: [&[u8]; 20] = [
        b"*1\r\n$4\r\nPING\r\n",
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\n1\r\n$1\r\n1\r\n",
        b"CL.THROTTLE a 9223372036854775806 1 9223372036\r\n",
        b"CL.THROTTLE a -1 0 x y\r\n",
        b"HELLO 3\r\n",
        b"HELLO 2 SETNAME x\r\n",
        b"CLIENT SETNAME\r\n",
        b"RESET\r\n",
        b"*3\r\n",
        b"$5\r\n",
        b"$0\r\n\r\n",
        b"\r\n",
        b"\n",
        b"\"\\x4",
        b"'",
        b"*-1\r\n",
        b"*1000\r\n",
        b"$65536\r\n",
        b"\x00\xff\x80",
        b"echo \"\\xffa\"\r\n",
    ];
    let mut bytes = Vec::new();
    for _ in 0..1 + random.below(12) {
        let piece = pieces[random.below(pieces.len())];
        let cut = if random.below(4) == 0 { random.below(piece.len() + 1) } else { piece.len() };
        bytes.extend(&piece[..cut]);
        if random.below(6) == 0 {
            bytes.extend((0..random.below(40)).map(|_| random.next() as u8).collect::<Vec<_>>());
        }
    }
    bytes
}

#[test]
fn any_bytes_are_answered_or_close_the_connection() {
    let gateway = start_resp("", "access_log: { output: none }");
    let mut random = Random(0x5eed);
    let started = Instant::now();
    for case in 0..3_000 {
        let bytes = match case % 3 {
            0 => (0..random.below(300)).map(|_| random.next() as u8).collect(),
            _ => mangled(&mut random),
        };
        let mut peer = Peer::connect(service(&gateway));
        let cut = random.below(bytes.len() + 1);
        // The gateway may have closed already.
        let _ = peer.0.get_mut().write_all(&bytes[..cut]);
        let _ = peer.0.get_mut().write_all(&bytes[cut..]);
        let _ = peer.0.get_mut().shutdown(std::net::Shutdown::Write);
        // Panics on anything that is no reply; ends with the connection.
        while peer.try_reply().is_some() {}
    }
    assert!(started.elapsed() < PATIENCE * 12, "{:?}", started.elapsed());
    assert_eq!(Peer::connect(service(&gateway)).ask(&["PING"]), Reply::Simple("PONG".to_owned()));
    let stderr = gateway.stderr();
    assert!(!stderr.contains("panic"), "{stderr}");
}
