//! The reverse proxy: `proxy_pass` and its kin, over HTTP/1, HTTP/2 and TLS, `mirror`, `tunnel_pass`
//! and `proxy_connect`.

mod allow_upstream;
mod bodies;
mod byte_counts;
mod connect_tunnel;
mod doc_examples;
mod early_hints;
mod early_responses;
mod failing_disks;
mod http2_upstream;
mod malformed_bodies;
mod mirror;
mod protocol_mismatch;
mod proxy_connect;
mod proxy_pass;
mod proxy_store;
mod request_dynamic;
mod response_rewriting;
mod subrequests;
mod timeouts;
mod torture;
mod upload_progress;
mod upstream_tls;
