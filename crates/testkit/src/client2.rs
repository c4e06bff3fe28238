//! A client that speaks HTTP/2 by prior knowledge.

use std::net::SocketAddr;

use bytes::Bytes;
use h2::client::{SendRequest, handshake};
use http::{HeaderMap, Request, StatusCode};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// One connection.
pub struct Client2 {
    runtime: Runtime,
    sender: SendRequest<Bytes>,
}

/// One answer, read to its end.
#[derive(Debug)]
pub struct Response2 {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

impl Client2 {
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Client2 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let sender = runtime.block_on(async {
            let stream = TcpStream::connect(addr).await.expect("the gateway accepts");
            let (sender, connection) = handshake(stream).await.expect("HTTP/2");
            tokio::spawn(connection);
            sender
        });
        Client2 { runtime, sender }
    }

    /// Sends the request with its body and optional trailers.
    pub fn ask(
        &mut self,
        request: Request<()>,
        body: &[u8],
        trailers: Option<HeaderMap>,
    ) -> Result<Response2, h2::Error> {
        let sender = self.sender.clone();
        let body = Bytes::copy_from_slice(body);
        self.runtime.block_on(async move {
            let mut sender = sender.ready().await?;
            let is_bare = body.is_empty() && trailers.is_none();
            let (response, mut stream) = sender.send_request(request, is_bare)?;
            if !is_bare {
                stream.send_data(body, trailers.is_none())?;
                if let Some(trailers) = trailers {
                    stream.send_trailers(trailers)?;
                }
            }
            let (head, mut incoming) = response.await?.into_parts();
            let mut body = Vec::new();
            while let Some(piece) = incoming.data().await {
                let piece = piece?;
                body.extend_from_slice(&piece);
                incoming.flow_control().release_capacity(piece.len())?;
            }
            let trailers = incoming.trailers().await?;
            Ok(Response2 { status: head.status, headers: head.headers, body, trailers })
        })
    }
}
