//! The first door: identify → locate → judge → wait. What passes becomes an [`Admitted`]; the rest is answered here.

use std::borrow::Cow;
use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use http::header::{CONTENT_LENGTH, EXPECT, HeaderMap, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use smallvec::SmallVec;
use tower::Service;

use crate::chain::{Ask, Judged, Judgement, Passage, Refusal, Verdict};
use crate::client::Client;
use crate::clock::Now;
use crate::deadline::Due;
use crate::forward::{self, Admitted, AnswerBody};
use crate::gateway::{Gateway, Route};
use crate::hop_by_hop;
use crate::key::{KeyOutcome, Subject};
use crate::limit::{Limit, Outcome};
use crate::location::{self, Located};
use crate::record;
use crate::reject::Rejection;
use crate::visit::{Notes, Visit};
use crate::worker::{Connection, Worker};

/// Bytes of an unread body that are drained to keep the connection of a refused request.
const DRAIN_BYTES_MAX: u64 = 64 * 1024;
const DRAIN_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(2);

/// The door of one connection: a tower service from raw requests to answers.
pub fn door(
    worker: Rc<Worker>,
    connection: Rc<Connection>,
) -> impl Service<Request<Incoming>, Response = Response<AnswerBody>, Error = Infallible, Future: 'static> + Clone {
    let forward = forward::door(worker.clone());
    tower::service_fn(move |request| {
        let (worker, connection, forward) = (worker.clone(), connection.clone(), forward.clone());
        async move {
            let last = connection.count_request(&worker);
            let mut response = throttle(&worker, &connection, forward, request).await?;
            if last || connection.watch.closing() {
                forward::close(response.headers_mut());
            }
            Ok(response)
        }
    })
}

/// What judging a request's head came to.
enum Judged {
    Refused(Response<Bytes>),
    Passed { route: usize, client: Client, target: Option<PathAndQuery>, fields: Fields },
}

async fn throttle<F>(
    worker: &Rc<Worker>,
    connection: &Rc<Connection>,
    mut forward: F,
    mut request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible>
where
    F: Service<Admitted, Response = Response<AnswerBody>, Error = Infallible>,
{
    let now = Now::read();
    let mut visit = Visit::open(worker, connection, now);
}

/// Waits until every queue lets the request go; the body is not read meanwhile.
///
/// # Errors
/// The request's own deadline. A client that hangs up ends the whole future instead.
async fn wait(connection: &Connection, visit: &mut Visit) -> Result<(), Left> {
    let Some(passage) = &mut visit.passage else { return Ok(()) };
    let mut waiting = pin!(passage.wait());
    let mut hung_up = pin!(connection.socket.hung_up());
    let watch = &connection.watch;
    std::future::poll_fn(|cx| {
        if waiting.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if watch.fired() == Some(Due::Request) {
            return Poll::Ready(Err(Left::TimedOut));
        }
        hung_up.as_mut().poll(cx).map(|()| Err(Left::HungUp))
    })
    .await
}

/// Why a request left its queue before its turn.
enum Left {
    TimedOut,
    HungUp,
}

/// A refused request's body: drained a little so that the connection can be kept, or left unread for a lingering close.
fn settle_body(connection: &Connection, request: Request<Incoming>) {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return;
    }
    connection.watch.leave_body_unread();
    let small = body.size_hint().upper().is_none_or(|bytes| bytes <= DRAIN_BYTES_MAX);
    // A client that waits for 100 Continue sends nothing until it is asked to, and reading asks.
    if small && !head.headers.contains_key(EXPECT) {
        tokio::task::spawn_local(drain(body, connection.watch.clone()));
    }
}

async fn drain(mut body: Incoming, watch: Rc<Watch>) {
    let mut left = DRAIN_BYTES_MAX;
    let drained = async {
        while let Some(Ok(frame)) = body.frame().await {
            let read = frame.data_ref().map_or(0, |data| data.len() as u64);
            left = left.checked_sub(read)?;
        }
        body.is_end_stream().then_some(())
    };
    if let Ok(Some(())) = tokio::time::timeout(DRAIN_TIME_MAX, drained).await {
        watch.body_was_read();
    }
}
