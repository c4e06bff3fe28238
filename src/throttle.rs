//! The first door: identify → locate → judge → wait. What passes is forwarded; the rest is answered here.

mod judge;
mod refuse;
mod wait;

use std::convert::Infallible;
use std::rc::Rc;

use http::{Request, Response};
use hyper::body::Incoming;
use tower::Service;

use crate::clock::Now;
use crate::forward::{self, Admitted, AnswerBody, Forwarded};
use crate::visit::Visit;
use crate::worker::{Connection, Worker};
use judge::{Passed, judge};

/// The door of one connection: a tower service from raw requests to answers. It never fails.
pub fn door(
    worker: Rc<Worker>,
    connection: Rc<Connection>,
) -> impl Service<Request<Incoming>, Response = Response<AnswerBody>, Error = Infallible, Future: 'static> + Clone
{
    let forward = forward::door(worker.clone());
    tower::service_fn(move |request| throttle(worker.clone(), connection.clone(), forward.clone(), request))
}

async fn throttle<F>(
    worker: Rc<Worker>,
    connection: Rc<Connection>,
    mut forward: F,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody>, Infallible>
where
    F: Service<Admitted, Response = Forwarded, Error = Infallible>,
{
    let last = connection.count_request(&worker);
    let now = Now::read();
    let mut visit = Visit::open(&worker, &connection, now);
    let mut response = match judge(&worker, &request, &mut visit, now) {
        Ok(passed) => pass(&worker, &mut forward, request, visit, passed).await?,
        Err(response) => {
            refuse::settle_body(&connection, request);
            forward::rendered(*response, visit)
        }
    };
    if last || connection.watch.closing() {
        forward::close(response.headers_mut());
    }
    Ok(response)
}

/// Waits if told to, takes the concurrency slots, and forwards.
async fn pass<F>(
    worker: &Rc<Worker>,
    forward: &mut F,
    request: Request<Incoming>,
    mut visit: Box<Visit>,
    passed: Passed,
) -> Result<Response<AnswerBody>, Infallible>
where
    F: Service<Admitted, Response = Forwarded, Error = Infallible>,
{
    let connection = visit.connection.clone();
    let Passed { route, client, target, decisions } = passed;
    if let Err(rejection) = wait::wait_and_enter(&mut visit).await {
        let mut response = refuse::answer(worker, &request, &mut visit, Some(client), &rejection);
        judge::tell(&worker.gateway, Some(route), &decisions, response.headers_mut());
        refuse::settle_body(&connection, request);
        return Ok(forward::rendered(response, visit));
    }
    let gateway = worker.gateway.clone();
    let told = refuse::Told::of(&request);
    let admitted = Admitted { request, visit, route, client, target };
    let mut response = match forward.call(admitted).await? {
        Forwarded::Answered(response) => response,
        Forwarded::Failed(fault, mut visit) => {
            let response = told.answer(worker, &mut visit, client, fault);
            forward::rendered(response, visit)
        }
    };
    judge::tell(&gateway, Some(route), &decisions, response.headers_mut());
    Ok(response)
}
