//! One HTTP/2 connection between two ends of a pipe, on a paused clock.

use std::time::Duration;

use bytes::Bytes;
use h2::server;
use http::Response;
use hyper_util::rt::TokioIo;
use tokio::io::{DuplexStream, duplex};
use tokio::task::LocalSet;
use tokio::time::Instant;

use super::*;
use sluicegate_config as config;
use sluicegate_model::{ServerId, UpstreamKind};

fn a_server() -> Server {
    let text = "upstreams:\n  app:\n    servers: [\"http://a:1\"]\n    protocol: http2\n    \
                  timeouts: { response: 40s, body: 10s }\n\
                locations: [{ path: /, upstream: app }]\n";
    let config = config::parse(text, "gateway.yaml").unwrap().config;
    let upstream = &config.upstreams[0];
    let UpstreamKind::Servers(servers) = &upstream.kind else { panic!("servers") };
    Server::new(0, ServerId(0), &servers[0], upstream, None)
}

fn request() -> Option<Request<RequestBody>> {
    let request = Request::get("/").header(http::header::HOST, "a.test").body(RequestBody::Empty);
    Some(request.unwrap())
}

type DuplexServer = server::Connection<DuplexStream, Bytes>;

/// A connection, and the server's end of it.
async fn both_ends(builder: server::Builder) -> (Rc<Http2Connection>, DuplexServer) {
    let (ours, theirs) = duplex(64 * 1024);
    let accepting = tokio::task::spawn_local(async move { builder.handshake(theirs).await.unwrap() });
    let server = a_server();
    let connection = Http2Connection::from_socket(TokioIo::new(ours), &server, 0);
    let (connection, accepted) = tokio::join!(connection, accepting);
    (connection.unwrap(), accepted.unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_pinged() {
    LocalSet::new()
        .run_until(async {
            let (connection, mut accepted) = both_ends(server::Builder::new()).await;
            let start = Instant::now();
            let sender = connection.clone();
            let outcome = tokio::task::spawn_local(async move {
                sender
                    .send_request(
                        &mut request(),
                        &AddedFields::default(),
                        &mut None,
                        &SweepCounter::default(),
                    )
                    .await
            });
            let (_, responder) = accepted.accept().await.unwrap().unwrap();
            // From here on the server reads nothing.
            assert!(matches!(outcome.await.unwrap(), SendOutcome::Failed(_)));
            let took = start.elapsed();
            let planned = Duration::from_secs(20) + PING_TIMEOUT;
            assert!(took >= planned && took < planned + Duration::from_secs(2), "{took:?}");
            assert!(!connection.is_open());
            drop((responder, accepted));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_request_of_a_living_server_may_take_its_time() {
    LocalSet::new()
        .run_until(async {
            let (connection, mut accepted) = both_ends(server::Builder::new()).await;
            tokio::task::spawn_local(async move {
                while let Some(Ok((_, mut respond))) = accepted.accept().await {
                    tokio::task::spawn_local(async move {
                        tokio::time::sleep(Duration::from_secs(300)).await;
                        respond.send_response(Response::new(()), true).unwrap();
                    });
                }
            });
            let sent = connection
                .send_request(&mut request(), &AddedFields::default(), &mut None, &SweepCounter::default())
                .await;
            assert!(matches!(sent, SendOutcome::Responded(_)));
            assert!(connection.is_open());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_stream_limit_is_known_from_the_first_request_on() {
    LocalSet::new()
        .run_until(async {
            let mut builder = server::Builder::new();
            builder.max_concurrent_streams(2);
            let (connection, _accepted) = both_ends(builder).await;
            for count in [1, 2] {
                assert!(connection.has_capacity(0));
                connection.stream_count.set(count);
            }
            assert!(!connection.has_capacity(0) && !connection.is_idle());
            connection.stream_count.set(1);
            assert!(connection.has_capacity(0) && !connection.is_idle());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_speaks_something_else_is_no_server() {
    LocalSet::new()
        .run_until(async {
            for words in ["HTTP/1.1 400 Bad Request\r\n\r\n", ""] {
                let (ours, mut theirs) = duplex(64 * 1024);
                tokio::io::AsyncWriteExt::write_all(&mut theirs, words.as_bytes()).await.unwrap();
                drop(theirs);
                assert!(
                    Http2Connection::from_socket(TokioIo::new(ours), &a_server(), 0).await.is_err(),
                    "{words}"
                );
            }
        })
        .await;
}
