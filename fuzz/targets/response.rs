//! An HTTP/1 response of a server: head, framing, chunks and trailers say the same in any pieces, and again once
//! written anew.
//!
//! The reader is private to its crate, so its own files are compiled here.

#![no_main]

mod pieces;

mod upstream {
    pub mod http1 {
        #[allow(dead_code, reason = "one of its functions is not needed")]
        #[path = "../../../../crates/http/src/upstream/http1/framing.rs"]
        pub mod framing;
        #[allow(dead_code, reason = "it writes requests as well")]
        #[path = "../../../../crates/http/src/upstream/http1/head.rs"]
        pub mod head;
        #[allow(dead_code, reason = "requests are not written")]
        pub mod upload {
            #[derive(Debug, Clone, Copy, PartialEq, Eq)]
            pub enum RequestFraming {
                Length(u64),
                Chunked,
            }
        }

        pub mod reading;
    }
}

use libfuzzer_sys::fuzz_target;
// The files name it by its place in their crate.
use sluicegate_http::request;
use upstream::http1::reading;

fuzz_target!(|bytes: &[u8]| {
    for is_head in [false, true] {
        let whole = reading::read(is_head, &[bytes]);
        for pieces in pieces::cuts(bytes) {
            assert_eq!(reading::read(is_head, &pieces), whole);
        }
        reading::check_again(&whole, is_head);
    }
});
