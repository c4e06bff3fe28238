//! The pages of the admin listener.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::Service;

use super::authorize::{CallerPolicy, CallerRejection};
use super::{AdminState, control, explain, upstreams};
use crate::observe::metrics;

/// Pages that tell nothing but that the gateway lives: kubelets and balancers have no token, and call by any name.
const PUBLIC_PAGES: [&str; 2] = ["/healthz", "/readyz"];

/// Answers admin requests; cheap to clone.
#[derive(Clone)]
pub struct AdminService {
    state: AdminState,
    policy: CallerPolicy,
}

impl AdminService {
    pub(super) fn new(state: AdminState, callers: CallerPolicy) -> AdminService {
        AdminService { state, policy: callers }
    }

    async fn route_request(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let mut response = match self.policy.check_request(&request, PUBLIC_PAGES.contains(&path)) {
            Err(refused) => render_rejection(refused),
            Ok(()) if path == "/explain" => explain::post_explain(&self.state, request).await,
            Ok(()) if path == "/reload" && request.method() == Method::POST => {
                control::post_reload(&self.state, request.headers()).await
            }
            Ok(()) => self.read_page(&request),
        };
        // Strangers do not keep their connections.
        if response.status().is_client_error() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn read_page<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if let Some(asked) = upstreams::UpstreamsRequest::parse_path(path) {
            return upstreams::respond_upstreams(&self.state, &asked, request);
        }
        let wrong_method = |allowed: &'static str, why: &'static str| {
            let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, why);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            response
        };
        if path == "/reload" {
            return wrong_method("POST", "post to reload\n");
        }
        if !["/healthz", "/readyz", "/metrics", "/status"].contains(&path) {
            let pages = "the admin pages are /healthz, /readyz, /metrics, /status, /upstreams and, to be posted to, \
                         /explain, /reload and /upstreams/NAME/servers/HOST:PORT/drain or undrain\n";
            return text_response(StatusCode::NOT_FOUND, pages);
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return wrong_method("GET, HEAD", "admin pages are only read\n");
        }
        match path {
            "/metrics" => {
                let mut response = text_response(StatusCode::OK, (self.state.metrics)());
                let kind = HeaderValue::from_static(metrics::CONTENT_TYPE);
                response.headers_mut().insert(CONTENT_TYPE, kind);
                response
            }
            "/status" => control::get_status(&self.state, request.headers()),
            "/readyz" if !self.state.is_ready() => {
                text_response(StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
            }
            "/readyz" if (self.state.degraded)() => text_response(StatusCode::OK, "ready\ndegraded: redis\n"),
            "/readyz" => text_response(StatusCode::OK, "ready\n"),
            _ => text_response(StatusCode::OK, "ok"),
        }
    }
}

fn render_rejection(refused: CallerRejection) -> Response<Full<Bytes>> {
    let text = match refused {
        CallerRejection::Token => {
            let mut response = text_response(StatusCode::UNAUTHORIZED, "this page needs the admin token\n");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        CallerRejection::Host => {
            "the Host is neither an address, nor localhost, nor one of admin.hosts, and there is no token\n"
        }
        CallerRejection::Origin => "the Origin of the request is that of another page\n",
    };
    text_response(StatusCode::FORBIDDEN, text)
}

/// The refusal of a call that changes something and does not say that it is JSON: a form of a web page may send
/// anything else to other hosts.
pub(super) fn reject_non_json(headers: &HeaderMap) -> Option<Response<Full<Bytes>>> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return None;
    }
    let text = "say Content-Type: application/json to change something\n";
    Some(text_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}

pub(super) fn text_response(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl Service<Request<Incoming>> for AdminService {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>>>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let answer = self.clone().route_request(request);
        Box::pin(async move { Ok(answer.await) })
    }
}
