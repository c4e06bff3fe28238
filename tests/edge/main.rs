//! The gateway at the edge: HTTP/2 frame by frame, tunnels, gRPC, endless streams, and real clients.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

mod bodiless;
mod caller;
mod clients;
mod deadlines;
mod floods;
mod frames;
mod frames_streams;
mod grpc;
mod grpc_real;
mod http2;
mod http2_tunnels;
mod overload;
mod queues;
mod shutdown;
mod streaming;
mod tunnels;
