//! The place between two HTTP/1 requests, the only one at which a connection may be taken back from hyper.

use std::cell::Cell;

/// A body that hyper has handed out and that has not ended; dropped, it never ends.
#[derive(Debug)]
pub struct UnreadBody {
    number: u64,
}

/// The position of hyper in the requests of an HTTP/1 connection.
///
/// The bytes that hyper still holds are read again after its connection is taken back. In the middle of a body they
/// would be read as a request, so a connection is taken back only where [`RequestBoundary::is_reached`]. There the next
/// byte belongs to a head, by three facts of hyper 1.12 (`proto/h1/dispatch.rs`):
///
/// 1. It reads a head only after the body before it was read to its end and the response before it was given out.
/// 2. It takes a whole head out of its buffer at once, and calls the service with it and its body in the same step. A
///    head that it refuses ends the connection.
/// 3. A body yields its end only after its last byte or trailer left the buffer, with trailers perhaps as late as the
///    next head. One that hyper gives up yields an error first.
///
/// By 2, no head that left the buffer is unknown here. By 1, only the last body can still be incomplete. By 3, it is
/// complete once it has reported its own end. A body is read by other tasks than hyper's, so an earlier one may report
/// its end when hyper is already in the middle of the next: its number is no longer the last, and changes nothing.
#[derive(Debug, Default)]
pub(super) struct RequestBoundary {
    /// Requests without a complete response.
    in_flight: Cell<u32>,
    /// The number of the last request's body.
    last_body: Cell<u64>,
    /// The last body may have unread bytes.
    is_body_unread: Cell<bool>,
}

impl RequestBoundary {
    #[inline]
    pub(super) fn begin_request(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// True if it was the only request in flight.
    #[inline]
    pub(super) fn end_request(&self) -> bool {
        let left = self.in_flight.get().saturating_sub(1);
        self.in_flight.set(left);
        left == 0
    }

    /// hyper hands out the body of a request; `None` if it is empty.
    #[inline]
    pub(super) fn begin_body(&self, is_empty: bool) -> Option<UnreadBody> {
        let number = self.last_body.get() + 1;
        self.last_body.set(number);
        self.is_body_unread.set(!is_empty);
        (!is_empty).then_some(UnreadBody { number })
    }

    /// False if another body has begun since.
    pub(super) fn end_body(&self, body: UnreadBody) -> bool {
        let is_last = self.last_body.get() == body.number;
        if is_last {
            self.is_body_unread.set(false);
        }
        is_last
    }

    pub(super) fn leave_unread(&self) {
        self.is_body_unread.set(true);
    }

    #[inline]
    pub(super) fn is_body_unread(&self) -> bool {
        self.is_body_unread.get()
    }

    /// True if hyper stands between two requests. Only for HTTP/1: HTTP/2 hands out bodies without a number.
    #[inline]
    pub(super) fn is_reached(&self) -> bool {
        self.in_flight.get() == 0 && !self.is_body_unread.get()
    }
}
