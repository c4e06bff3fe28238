//! A request body that was read to its end before the request was judged: it can be sent, and sent again.

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};

/// A body of which all bytes are here.
#[derive(Clone)]
pub struct WholeBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// The head told the length; otherwise the end of the body is marked in the stream, to the upstream as well.
    has_length: bool,
    is_taken: bool,
}

impl WholeBody {
    pub(super) fn new(data: Bytes, trailers: Option<HeaderMap>, has_length: bool) -> WholeBody {
        WholeBody { data, trailers, has_length, is_taken: false }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(super) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    /// Lets `filter` remove trailers; without one there are none.
    pub(super) fn filter_trailers(&mut self, filter: Option<impl Fn(&mut HeaderMap)>) {
        match (&mut self.trailers, filter) {
            (Some(trailers), Some(filter)) => filter(trailers),
            (trailers, _) => *trailers = None,
        }
    }

    pub(super) fn next_frame(&mut self) -> Option<Frame<Bytes>> {
        self.is_taken = true;
        let data = std::mem::take(&mut self.data);
        if !data.is_empty() {
            return Some(Frame::data(data));
        }
        self.trailers.take().map(Frame::trailers)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        // An empty body without a length is still a body.
        self.data.is_empty() && self.trailers.is_none() && (self.is_taken || self.has_length)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        if self.has_length { SizeHint::with_exact(self.len()) } else { SizeHint::default() }
    }
}
