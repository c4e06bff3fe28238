//! Limitador's counters behind gRPC (tonic) and HTTP (actix-web), the servers of its own program, which no registry
//! has. Its metrics and traces are left out, which favours it. `limitador-rival GRPC_PORT HTTP_PORT`.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use actix_web::{App, HttpResponse, HttpServer, web};
use limitador::RateLimiter;
use limitador::limit::{Context as Facts, Limit};
use tonic::body::BoxBody;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, UnaryService};

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Ask {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answer {
    /// 1 = OK, 2 = over the limit.
    #[prost(int32, tag = "1")]
    overall_code: i32,
}

#[derive(Clone)]
struct Calls(Arc<RateLimiter>);

impl Calls {
    fn is_limited(&self, domain: String, facts: Vec<HashMap<String, String>>, hits: u64) -> bool {
        let mut context = Facts::default();
        context.list_binding("descriptors".to_owned(), facts);
        self.0
            .check_rate_limited_and_update(&domain.into(), &context, hits)
            .expect("counters in memory")
            .limited
    }
}

impl UnaryService<Ask> for Calls {
    type Response = Answer;
    type Future = Ready<Result<tonic::Response<Answer>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Ask>) -> Self::Future {
        let Ask { domain, descriptors, hits_addend } = request.into_inner();
        let facts = |one: Descriptor| one.entries.into_iter().map(|entry| (entry.key, entry.value)).collect();
        let facts = descriptors.into_iter().map(facts).collect();
        let limited = self.is_limited(domain, facts, hits_addend.max(1).into());
        ready(Ok(tonic::Response::new(Answer { overall_code: 1 + i32::from(limited) })))
    }
}

impl NamedService for Calls {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl Service<http::Request<BoxBody>> for Calls {
    type Response = http::Response<BoxBody>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<BoxBody>) -> Self::Future {
        let calls = self.clone();
        Box::pin(async move {
            let codec = tonic::codec::ProstCodec::default();
            Ok(Grpc::new(codec).unary(calls, request).await)
        })
    }
}

/// The body of `/check_and_report`.
#[derive(serde::Deserialize)]
struct Report {
    namespace: String,
    values: HashMap<String, String>,
    delta: u64,
}

async fn check_and_report(calls: web::Data<Calls>, report: web::Json<Report>) -> HttpResponse {
    let Report { namespace, values, delta } = report.into_inner();
    match calls.is_limited(namespace, vec![values], delta) {
        true => HttpResponse::TooManyRequests().finish(),
        false => HttpResponse::Ok().json(()),
    }
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut ports = std::env::args().skip(1);
    let mut port = || ports.next().ok_or("limitador-rival GRPC_PORT HTTP_PORT");
    let (grpc_port, http_port) = (port()?, port()?);
    let limiter = RateLimiter::new(1_000_000);
    // One that never rejects, and one that rejects nearly all.
    for (domain, most, seconds) in [("calls", 1_000_000_000, 3600), ("full", 1000, 1)] {
        let key = vec!["descriptors[0].remote_address".try_into()?];
        limiter.add_limit(Limit::new(domain, most, seconds, vec![], key));
    }
    let calls = Calls(Arc::new(limiter));
    let data = web::Data::new(calls.clone());
    let app = move || {
        App::new().app_data(data.clone()).route("/check_and_report", web::post().to(check_and_report))
    };
    let http = HttpServer::new(app).workers(1).bind(format!("127.0.0.1:{http_port}"))?.run();
    let address = format!("127.0.0.1:{grpc_port}").parse()?;
    let grpc = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime
            .block_on(tonic::transport::Server::builder().tcp_nodelay(true).add_service(calls).serve(address))
    });
    http.await?;
    Ok(grpc.join().map_err(|_| "the thread of gRPC panicked")??)
}
