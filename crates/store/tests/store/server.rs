//! The servers that the other tests start.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::Redis;

#[test]
fn a_server_of_its_own_answers() {
    let redis = Redis::start();
    let mut stream = TcpStream::connect(redis.addr()).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    assert!(redis.url().ends_with(&redis.addr().port().to_string()));
}
