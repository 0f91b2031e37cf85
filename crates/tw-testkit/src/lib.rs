//! Support for the tests of the other crates and of the binary; development only.
//!
//! - [`acme`]: scripted certificate authority;
//! - [`disk`]: FUSE file system in memory whose operations stall or fail on demand;
//! - [`server`]: the binary under test, with an inline configuration in a fresh prefix;
//! - [`application`]: scripted applications that speak FastCGI, uwsgi and SCGI;
//! - [`client`]: scripted raw HTTP client;
//! - [`http2`]: HTTP/2 clients, correct and incorrect;
//! - [`http2_origin`]: HTTP/2 upstream servers, correct and incorrect;
//! - [`dns`]: scripted DNS server;
//! - [`jwt`]: keys and JSON Web Tokens;
//! - [`left_out`]: reports of tests that cannot run on this machine;
//! - [`origin`]: scripted upstream server; [`otlp`]: scripted OpenTelemetry collectors;
//! - [`quic`]: QUIC client with an engine of others; [`quic_raw`]: one that sends any frame;
//! - [`random`]: reproducible pseudo-random numbers;
//! - [`tls`]: certificates, and clients that trust them;
//! - [`mmdb`]: databases of addresses in the MaxMind DB format;
//! - [`nats`]: scripted NATS server;
//! - [`mp4`]: hand-made video files, and a reader of their samples;
//! - [`wait`], [`temp`], [`ports`]: deadlines instead of sleeps, directories and ports that no other test has.
//!
//! Every function that waits has a deadline. Nothing here is ever linked into the product.

pub mod acme;
pub mod application;
pub mod client;
pub mod corpus;
pub mod disk;
pub mod dns;
pub mod etcd;
pub mod http2;
pub mod http2_origin;
pub mod jwt;
pub mod left_out;
pub mod mmdb;
pub mod mp4;
pub mod nats;
pub mod origin;
pub mod otlp;
pub mod ports;
pub mod process;
pub mod quic;
pub mod quic_raw;
pub mod random;
pub mod server;
pub mod temp;
pub mod tls;
pub mod wait;

pub use client::{Client, Response};
pub use left_out::{Lacks, leave_out};
pub use random::Random;
pub use rustix::io::Errno;
pub use rustix::process::Signal;
pub use server::Server;
pub use temp::TempDir;
