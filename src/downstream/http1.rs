//! HTTP/1 on a client connection: one request after the other, served by hyper.

use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use tower::Service;

use crate::config;
use crate::net::socket::Wire;
use crate::proxy::judge;
use crate::proxy::reject::Fault;
use crate::proxy::worker::{Connection, Home, Takeover};

/// hyper's own default, which sizes its header array at compile time.
const HYPER_MAX_HEADERS: usize = 100;

/// How serving a connection ended.
pub enum Ended {
    Closed,
    /// It stands unused: what it takes to serve it was given back, and is taken anew with the next bytes.
    Rested(Wire),
    /// It speaks something else from now on.
    TakenOver(Takeover, Wire),
}

/// What stopped hyper.
enum Stop {
    /// It has nothing left to do.
    Done,
    /// Nobody waits for more, or somebody else has to be asked.
    HungUp,
    Rest,
}

/// Serves until the connection ends, or stands unused for a while.
pub async fn serve(home: &Rc<Home>, connection: &Rc<Connection>, wire: Wire) -> Ended {
    let worker = home.worker();
    let watch = &connection.watch;
    let _end = End(connection);
    let mut hung_up = pin!(connection.socket.hung_up());
    let door = judge::door(home.clone(), connection.clone());
    // The door is always ready: hyper asks for the next request only when the last one is answered.
    let service = hyper::service::service_fn(move |request| door.clone().call(request));
    let gathers = watch.has_large_answers();
    let builder = builder(&worker.gateway.server, gathers);
    let mut served = builder.serve_connection(TokioIo::new(wire), service);
    drop(worker);
    let mut asked_to_close = false;
    let stopped = std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        let left = home.has_left() || watch.is_revoked();
        // Also over half a head: hyper would go on to the end of it.
        if left && !watch.is_busy() && !watch.is_write_blocked() && !watch.is_parting() {
            return Poll::Ready(Ok(Stop::HungUp));
        }
        let may_close = || left || watch.may_leave() && (watch.is_busy() || !connection.socket.has_unread());
        if (left || watch.closing()) && !asked_to_close && may_close() {
            asked_to_close = true;
            Pin::new(&mut served).graceful_shutdown();
        }
        let polled = Pin::new(&mut served).poll(cx);
        if polled.is_pending() {
            // hyper misses a client that leaves behind bytes it has not read; nobody waits for the answer any more.
            if connection.is_slow() && hung_up.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(Stop::HungUp));
            }
            // hyper is told only in the beginning how to write.
            let shall_gather = watch.has_large_answers() && !gathers && watch.is_unused();
            if watch.may_rest() || shall_gather {
                return Poll::Ready(Ok(Stop::Rest));
            }
        }
        polled.map_ok(|()| Stop::Done)
    })
    .await;
    let takeover = connection.takeover.take();
    match (stopped, takeover) {
        (Ok(Stop::Done), Some(takeover)) => Ended::TakenOver(takeover, taken_apart(served.into_parts())),
        (Ok(Stop::Rest), _) => Ended::Rested(taken_apart(served.into_parts())),
        (Ok(Stop::Done | Stop::HungUp), _) => Ended::Closed,
        (Err(error), _) => {
            tell(home, &error);
            Ended::Closed
        }
    }
}

/// What is left to do whatever ends the serving of a connection.
struct End<'a>(&'a Connection);

impl Drop for End<'_> {
    fn drop(&mut self) {
        // Who waits to take the connection over holds it, too.
        drop(self.0.takeover.take());
        if self.0.watch.is_within_answer() {
            self.0.socket.reset_on_close();
        }
    }
}

fn taken_apart<S>(parts: http1::Parts<TokioIo<Wire>, S>) -> Wire {
    let mut wire = parts.io.into_inner();
    wire.put_back(parts.read_buf);
    wire
}

fn tell(home: &Home, error: &hyper::Error) {
    if let Some(fault) = head_fault(error) {
        let worker = home.worker();
        worker.gateway.metrics.fault(worker.id, fault.index());
    }
    tracing::debug!(%error, "a client connection ended");
}

/// What was wrong with a head that hyper answered by itself.
fn head_fault(error: &hyper::Error) -> Option<Fault> {
    if error.is_parse_too_large() {
        Some(Fault::HeadTooLarge)
    } else if error.is_parse() {
        Some(Fault::BadHead)
    } else {
        None
    }
}

/// `gathers`: head and body are written from where they are. For the small bodies that most answers have, one write
/// of copies is cheaper.
fn builder(server: &config::Server, gathers: bool) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.writev(gathers).max_header_size(server.max_header_size);
    if server.max_headers != HYPER_MAX_HEADERS {
        builder.max_headers(server.max_headers);
    }
    builder
}
