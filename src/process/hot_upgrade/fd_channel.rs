//! The channel between the old and the new process of an upgrade: packets of text with sockets.
//!
//! Sources: unix(7) for SOCK_SEQPACKET and SCM_RIGHTS.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Sockets in one packet; the kernel takes 253.
pub(crate) const SOCKETS_MAX: usize = 64;
/// Bytes of text in one packet; more than the longest path.
const TEXT_MAX: usize = 8 * 1024;
/// Room for [`SOCKETS_MAX`] descriptors.
const RIGHTS_SPACE: usize = rustix::cmsg_space!(ScmRights(SOCKETS_MAX));

/// One end of the channel. Sending and receiving block.
pub(crate) struct FdChannel(OwnedFd);

/// The text and the sockets of a packet.
pub(crate) type FdMessage = (Vec<u8>, Vec<OwnedFd>);

impl FdChannel {
    /// One end for this process, and one for a child.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(crate) fn socket_pair() -> io::Result<(FdChannel, OwnedFd)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((FdChannel(ours), theirs))
    }

    /// The end that this process received as its standard input; `None` if that is something else.
    pub(crate) fn from_stdin() -> Option<FdChannel> {
        let end = io::stdin().as_fd().try_clone_to_owned().ok()?;
        let kind = rustix::net::sockopt::socket_type(&end).ok()?;
        if kind != SocketType::SEQPACKET {
            return None;
        }
        // No other code may read from it.
        let null = std::fs::File::open("/dev/null").ok()?;
        rustix::stdio::dup2_stdin(null).ok()?;
        Some(FdChannel(end))
    }

    /// Sets the timeout of every later send and receive.
    ///
    /// # Errors
    /// The timeout cannot be set.
    pub(crate) fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        set_socket_timeout(&self.0, Timeout::Recv, Some(timeout))?;
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(timeout))?)
    }

    /// Sends one packet: some text, and at most [`SOCKETS_MAX`] sockets.
    ///
    /// # Errors
    /// The other side is gone, or does not receive in time.
    pub(crate) fn send_message(&self, text: &[u8], sockets: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); RIGHTS_SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !sockets.is_empty() && !control.push(SendAncillaryMessage::ScmRights(sockets)) {
            return Err(io::Error::other("too many sockets for one packet"));
        }
        // With a timeout set the kernel does not restart the call after a signal.
        retry_on_intr(|| sendmsg(&self.0, &[IoSlice::new(text)], &mut control, SendFlags::NOSIGNAL))?;
        Ok(())
    }

    /// Receives the next packet.
    ///
    /// # Errors
    /// The other side is gone, or sends nothing in time.
    pub(crate) fn receive_message(&self) -> io::Result<FdMessage> {
        let mut space = [MaybeUninit::uninit(); RIGHTS_SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = vec![0; TEXT_MAX];
        let received = retry_on_intr(|| {
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut sockets = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(passed) = message {
                sockets.extend(passed);
            }
        }
        text.truncate(received.bytes);
        // No packet is empty, so this is the end of the channel.
        if text.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok((text, sockets)) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn sockets_arrive_with_their_packets() {
        let (one, other) = FdChannel::socket_pair().unwrap();
        let other = FdChannel(other);
        let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        one.send_message(b"two", &[listeners[0].as_fd(), listeners[1].as_fd()]).unwrap();
        one.send_message(b"none", &[]).unwrap();
        one.send_message(b"one", &[listeners[2].as_fd()]).unwrap();
        for (text, sockets) in [("two", &listeners[..2]), ("none", &[]), ("one", &listeners[2..])] {
            let packet = other.receive_message().unwrap();
            assert_eq!((packet.0.as_slice(), packet.1.len()), (text.as_bytes(), sockets.len()));
            for (fd, sent) in packet.1.into_iter().zip(sockets) {
                let again = TcpListener::from(fd);
                let _client = TcpStream::connect(sent.local_addr().unwrap()).unwrap();
                assert_eq!(again.local_addr().unwrap(), sent.local_addr().unwrap());
                again.accept().unwrap();
            }
        }
    }

    #[test]
    fn silence_and_a_closed_end_are_errors() {
        let (one, other) = FdChannel::socket_pair().unwrap();
        one.set_timeout(Duration::from_millis(20)).unwrap();
        assert!(one.receive_message().is_err());
        drop(other);
        assert!(one.receive_message().is_err());
        assert!(one.send_message(b"x", &[]).is_err());
    }
}
