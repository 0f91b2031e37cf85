//! Development only: what tests of the other crates and of the binary stand on.
//!
//! - [`acme`]: an authority that issues certificates, and does wrong what a test wants;
//! - [`disk`]: a FUSE file system in memory whose operations stall or fail on demand;
//! - [`server`]: the binary under test, with an inline configuration in a fresh prefix;
//! - [`application`]: scripted applications that speak FastCGI, uwsgi and SCGI;
//! - [`client`]: a scripted raw HTTP client;
//! - [`http2`]: clients of HTTP/2, with and without manners;
//! - [`http2_origin`]: servers of HTTP/2 behind the one under test, with and without manners;
//! - [`dns`]: a name server that says what a test wants it to say;
//! - [`left_out`]: what cannot be tested here says so;
//! - [`origin`]: a scripted server behind the one under test;
//! - [`random`]: numbers that look random and are the same every time;
//! - [`tls`]: certificates, and clients that believe in them;
//! - [`mp4`]: video files made by hand, and what is in them;
//! - [`wait`], [`temp`], [`ports`]: deadlines instead of sleeps, directories and ports that no other test has.
//!
//! Every function that waits has a deadline. Nothing here is ever linked into the product.

pub mod acme;
pub mod application;
pub mod client;
pub mod corpus;
pub mod disk;
pub mod dns;
pub mod http2;
pub mod http2_origin;
pub mod left_out;
pub mod mp4;
pub mod origin;
pub mod ports;
pub mod process;
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
