//! A question to the auth service of a location: one exchange of the gateway itself with an upstream.

use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use futures_util::future::LocalBoxFuture;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;

use super::exchange::Exchange;
use super::retry::NextTry;
use super::{ForwardFault, OutgoingRequest, balance_hash_for, count_outcome};
use crate::gateway::auth::{AuthOutcome, RouteAuth};
use crate::gateway::worker::Worker;
use crate::reject::header_edits::CompiledEdits;
use sluicegate_base::clock::Now;
use sluicegate_http::net::deadline::RequestWatch;
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_http::upstream::{PooledConnection, ServerBody, ServerFault};
use sluicegate_model::LocationId;

/// Bytes of the longest answer.
const ANSWER_MAX: u64 = 64 * 1024;

/// Asks the service of a location. Dropping the future ends the question.
pub fn ask_service(
    worker: Rc<Worker>,
    route: LocationId,
    question: Request<RequestBody>,
) -> LocalBoxFuture<'static, AuthOutcome> {
    Box::pin(async move {
        let Some(auth) = worker.gateway.routes[route.0].auth.as_deref() else {
            return AuthOutcome::Failed("the location has no auth service");
        };
        match exchange_question(&worker, auth, question).await {
            Ok(answer) => AuthOutcome::read_answer(&worker.gateway, route, answer),
            Err(reason) => AuthOutcome::Failed(reason),
        }
    })
}

/// Exchanges the question within its timeout, which counts against a server that does not answer.
async fn exchange_question(
    worker: &Worker,
    auth: &RouteAuth,
    question: Request<RequestBody>,
) -> Result<Response<Bytes>, &'static str> {
    let RouteAuth { config, upstream, .. } = auth;
    // The gateway itself reads the answer.
    let no_edits = CompiledEdits::default();
    let watch = RequestWatch::unswept(&worker.ticks);
    let outgoing = OutgoingRequest {
        balance_hash: balance_hash_for(&upstream.balance, &question, UNIX_CLIENT),
        is_host_of_server: true,
        ..OutgoingRequest::default()
    };
    let exchange = Exchange {
        worker,
        pools: &worker.pools,
        upstream,
        response_edits: &no_edits,
        connection: None,
        watch: &watch,
        outgoing: &outgoing,
        reading: None,
        pause_key: None,
    };
    let sent = Now::read_clock();
    upstream.count_request(worker.id, sent);
    let (mut server, mut tries, mut answer) = (None, 0, None);
    let exchanging = async {
        let hash = outgoing.balance_hash;
        let first = match NextTry::choose(upstream, hash, &[])? {
            NextTry::At(first) => first,
            NextTry::Wait => exchange.wait_for_server(&[], None, &question).await?,
        };
        let mut question = Some(question);
        let (status, pooled) =
            exchange.run_attempts(first, &mut question, &mut answer, &mut server, &mut tries).await?;
        let body = read_answer(answer.take(), pooled).await?;
        Ok::<_, ForwardFault>((status, body))
    };
    let exchanged = tokio::time::timeout(config.timeout, exchanging).await;
    let exchanged = exchanged.unwrap_or_else(|_| {
        if let Some(server) = server {
            upstream.record_fault(&worker.gateway.servers[server], ServerFault::Timeout);
        }
        Err(ForwardFault::ResponseTimeout)
    });
    let result = exchanged.as_ref().map(|(status, _)| *status).map_err(|fault| *fault);
    count_outcome(worker, upstream, server, result, Now::read_clock().ns_since(sent));
    match exchanged {
        Ok((_, answer)) => answer.ok_or("the answer of the auth service is too long"),
        Err(fault) => Err(describe_fault(fault)),
    }
}

/// Reads the whole answer; `None` = it is too long.
async fn read_answer(
    answer: Option<Response<ServerBody>>,
    pooled: PooledConnection,
) -> Result<Option<Response<Bytes>>, ForwardFault> {
    let (head, mut body) = answer.ok_or(ForwardFault::BadResponse)?.into_parts();
    let mut bytes = BytesMut::new();
    if body.size_hint().lower() > ANSWER_MAX {
        return Ok(None);
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|fault| ForwardFault::Broken(fault.server_fault()))?;
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
        if bytes.len() as u64 > ANSWER_MAX {
            return Ok(None);
        }
    }
    pooled.finish();
    Ok(Some(Response::from_parts(head, bytes.freeze())))
}

fn describe_fault(fault: ForwardFault) -> &'static str {
    match fault {
        ForwardFault::Unreachable(_) | ForwardFault::ConnectTimeout => "the auth service cannot be reached",
        ForwardFault::Down => "every server of the auth service is down",
        ForwardFault::Full | ForwardFault::QueueTimeout | ForwardFault::TooManyWaiting => {
            "the auth service takes no more questions"
        }
        ForwardFault::BadResponse => "the answer of the auth service is not valid HTTP",
        ForwardFault::Broken(_) | ForwardFault::Client(_) => "the auth service broke off its answer",
        ForwardFault::ResponseTimeout | ForwardFault::LocationTimeout => {
            "the auth service did not answer in time"
        }
    }
}
