//! A test server behind a unix socket.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;

use super::run::Scratch;

/// Forwards every connection to a TCP server.
pub struct UnixServer {
    scratch: Scratch,
}

impl UnixServer {
    pub fn before(server: SocketAddr) -> UnixServer {
        let unix = UnixServer { scratch: Scratch::new() };
        unix.listen(server);
        unix
    }

    /// Listens again on its path, after [`UnixServer::remove`].
    pub fn listen(&self, server: SocketAddr) {
        let listener = UnixListener::bind(self.path()).expect("a socket");
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(server) else { return };
                let _ = far.set_nodelay(true);
                let (near_too, far_too) =
                    (near.try_clone().expect("a handle"), far.try_clone().expect("a handle"));
                thread::spawn(move || pass(near, far, |far| drop(far.shutdown(Shutdown::Write))));
                thread::spawn(move || pass(far_too, near_too, |near| drop(near.shutdown(Shutdown::Write))));
            }
        });
    }

    /// Removes the socket's file, so that no client finds it.
    pub fn remove(&self) {
        std::fs::remove_file(self.path()).expect("a file");
    }

    pub fn path(&self) -> PathBuf {
        self.scratch.path().join("app.sock")
    }

    /// The name in the gateway's file, in logs and in metrics.
    pub fn name(&self) -> String {
        format!("unix:{}", self.path().display())
    }
}

fn pass<T: Write>(mut from: impl Read, mut to: T, ended: impl Fn(&T)) {
    let mut chunk = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        if to.write_all(&chunk[..count]).is_err() {
            break;
        }
    }
    ended(&to);
}

/// Listens, but accepts nothing: its queue is full.
pub struct FullSocket {
    scratch: Scratch,
    listener: UnixListener,
    _filling: Vec<UnixStream>,
}

impl FullSocket {
    pub fn new() -> FullSocket {
        let scratch = Scratch::new();
        let path = scratch.path().join("app.sock");
        let socket =
            socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&socket2::SockAddr::unix(&path).expect("a path")).expect("a socket");
        socket.listen(0).expect("it can listen");
        let one = || {
            let client = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
            client.set_nonblocking(true)?;
            client.connect(&socket2::SockAddr::unix(&path)?)?;
            Ok::<_, std::io::Error>(UnixStream::from(client))
        };
        let mut filling = Vec::new();
        while let Ok(stream) = one() {
            filling.push(stream);
            assert!(filling.len() < 100, "the queue never fills");
        }
        FullSocket { scratch, listener: socket.into(), _filling: filling }
    }

    pub fn name(&self) -> String {
        format!("unix:{}", self.scratch.path().join("app.sock").display())
    }

    /// Accepts every connection from now on, and answers each request with 200 `late`.
    pub fn accept(&self) {
        let listener = self.listener.try_clone().expect("a handle");
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    while stream.read(&mut [0; 4096]).is_ok_and(|count| count > 0) {
                        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate");
                    }
                });
            }
        });
    }
}
