//! Routes admin requests to their pages.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use tower::Service;

use super::authorize::{CallerPolicy, CallerRejection};
use super::response::{reject_method, text_response};
use super::{AdminState, control, explain, upstreams};
use crate::observe::metrics;

/// Pages that show only health, for kubelets and load balancers: these have no token and use any host name.
const PUBLIC_PAGES: [&str; 2] = ["/healthz", "/readyz"];

/// Answers admin requests; cheap to clone.
#[derive(Clone)]
pub struct AdminService {
    state: AdminState,
    policy: CallerPolicy,
}

impl AdminService {
    pub(super) fn new(state: AdminState, policy: CallerPolicy) -> AdminService {
        AdminService { state, policy }
    }

    async fn route_request(self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let mut response = match self.policy.check_request(&request, PUBLIC_PAGES.contains(&path)) {
            Err(rejection) => render_rejection(rejection),
            Ok(()) if path == "/explain" => explain::post_explain(&self.state, request).await,
            Ok(()) if path == "/reload" && request.method() == Method::POST => {
                control::post_reload(&self.state, request.headers()).await
            }
            Ok(()) => self.read_page(&request),
        };
        // Rejected callers do not keep their connections.
        if response.status().is_client_error() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    fn read_page<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if let Some(target) = upstreams::UpstreamsRequest::parse_path(path) {
            return upstreams::respond_upstreams(&self.state, &target, request);
        }
        if path == "/reload" {
            return reject_method("POST", "use POST to reload\n");
        }
        if !["/healthz", "/readyz", "/metrics", "/status"].contains(&path) {
            let pages = "the admin pages are /healthz, /readyz, /metrics, /status, /upstreams and, for POST, \
                         /explain, /reload and /upstreams/NAME/servers/HOST:PORT/drain or undrain\n";
            return text_response(StatusCode::NOT_FOUND, pages);
        }
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return reject_method("GET, HEAD", "this page accepts only GET and HEAD\n");
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

fn render_rejection(rejection: CallerRejection) -> Response<Full<Bytes>> {
    let text = match rejection {
        CallerRejection::Token => {
            let mut response = text_response(StatusCode::UNAUTHORIZED, "this page needs the admin token\n");
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return response;
        }
        CallerRejection::Host => {
            "the Host is neither an address, nor localhost, nor one of admin.hosts, and there is no token\n"
        }
        CallerRejection::Origin => "the Origin of the request is another site\n",
    };
    text_response(StatusCode::FORBIDDEN, text)
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
