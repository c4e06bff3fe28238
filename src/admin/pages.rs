//! The pages of the admin listener.

use std::convert::Infallible;
use std::hint::black_box;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::Service;

use super::{AdminState, control, explain, servers};
use crate::config::Secret;
use crate::metrics;

/// Answers admin requests; cheap to clone.
#[derive(Clone)]
pub struct Pages {
    state: AdminState,
    token: Option<Secret>,
}

impl Pages {
    pub(super) fn new(state: AdminState, token: Option<Secret>) -> Pages {
        Pages { state, token }
    }

    async fn answer(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (path, may_pass) = (request.uri().path(), self.may_pass(&request));
        match path {
            "/explain" if may_pass => explain::answer(&self.state, request).await,
            "/reload" if may_pass && request.method() == Method::POST => {
                control::reload(&self.state, request.headers()).await
            }
            _ => self.read(&request, may_pass),
        }
    }

    fn read<B>(&self, request: &Request<B>, may_pass: bool) -> Response<Full<Bytes>> {
        if !may_pass {
            let mut response = page(StatusCode::UNAUTHORIZED, "this page needs the admin token\n");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        let path = request.uri().path();
        if let Some(asked) = servers::Asked::of(path) {
            return servers::answer(&self.state, &asked, request);
        }
        let wrong_method = |allowed: &'static str, why: &'static str| {
            let mut response = page(StatusCode::METHOD_NOT_ALLOWED, why);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            response
        };
        if path == "/reload" {
            return wrong_method("POST", "post to reload\n");
        }
        if !["/healthz", "/readyz", "/metrics", "/status"].contains(&path) {
            let pages = "the admin pages are /healthz, /readyz, /metrics, /status, /upstreams and, to be posted to, \
                         /explain, /reload and /upstreams/NAME/servers/HOST:PORT/drain or undrain\n";
            return page(StatusCode::NOT_FOUND, pages);
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return wrong_method("GET, HEAD", "admin pages are only read\n");
        }
        match path {
            "/metrics" => {
                let mut response = page(StatusCode::OK, (self.state.metrics)());
                let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            "/status" => control::status(&self.state, request.headers()),
            "/readyz" if !self.state.is_ready() => page(StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
            "/readyz" if (self.state.degraded)() => page(StatusCode::OK, "ready\ndegraded: redis\n"),
            "/readyz" => page(StatusCode::OK, "ready\n"),
            _ => page(StatusCode::OK, "ok"),
        }
    }

    fn may_pass<B>(&self, request: &Request<B>) -> bool {
        let Some(Secret(token)) = &self.token else { return true };
        let sent = request.headers().get(AUTHORIZATION).map_or(&b""[..], HeaderValue::as_bytes);
        match sent.split_at_checked(7) {
            Some((scheme, sent)) if scheme.eq_ignore_ascii_case(b"bearer ") => {
                equal(sent.trim_ascii(), token.as_bytes())
            }
            _ => false,
        }
    }
}

/// Compares without telling by its time where the first difference is.
fn equal(sent: &[u8], token: &[u8]) -> bool {
    if sent.len() != token.len() {
        return false;
    }
    let different = sent.iter().zip(token).fold(0, |known, (a, b)| black_box(known | (a ^ b)));
    different == 0
}

pub(super) fn page(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Service<Request<Incoming>> for Pages {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let answer = self.clone().answer(request);
        Box::pin(async move { Ok(answer.await) })
    }
}
