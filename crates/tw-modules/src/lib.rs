//! Every module, one file each, and THE LIST.
//!
//! The order of [`MODULES`] is the order in which handlers of one phase run, and in which header filters see a response.

mod access;
mod addition;
mod altered;
mod auth_basic;
mod autoindex;
mod block;
mod brotli;
mod browser;
mod charset;
mod coding;
mod dav;
mod empty_gif;
mod flv;
mod forwarded;
mod geo;
mod gunzip;
mod gzip;
mod headers;
mod index;
mod limit_conn;
mod limit_req;
mod log;
mod map;
pub mod metrics;
mod mp4;
mod precompressed;
mod random_index;
mod real_ip;
mod referer;
mod refusal;
mod rewrite;
mod secret;
mod secure_link;
mod split_clients;
mod ssi;
mod static_files;
mod status_page;
mod status_zone;
mod stub_status;
mod sub;
#[cfg(debug_assertions)]
mod trap;
mod try_files;
mod types;
mod userid;
mod zone;
mod zstd;

use tw_server::module::Module;

pub use auth_basic::password_line;

/// A module that only tests have, and no documentation.
pub const TRAP: &str = "trap";

/// All modules of the http context. A new module is a new file and one line here.
pub static MODULES: &[Module] = &[
    // Variables.
    Module::http::<map::Map>("map"),
    Module::http::<geo::Geo>("geo"),
    Module::http::<split_clients::SplitClients>("split_clients"),
    Module::http::<browser::Browsers>("browser"),
    Module::http::<referer::Referers>("referer"),
    Module::http::<secure_link::SecureLink>("secure_link"),
    // Rewrite phases.
    Module::http::<rewrite::Rewrite>("rewrite"),
    // Post-read and preaccess.
    Module::http::<real_ip::RealIp>("real_ip"),
    Module::http::<limit_req::LimitReq>("limit_req"),
    Module::http::<limit_conn::LimitConn>("limit_conn"),
    // Access.
    Module::http::<access::Access>("access"),
    Module::http::<auth_basic::AuthBasic>("auth_basic"),
    // Precontent.
    Module::http::<try_files::TryFiles>("try_files"),
    // Content: the first that does not pass answers.
    Module::http::<metrics::Metrics>("metrics"),
    Module::http::<stub_status::StubStatus>("stub_status"),
    Module::http::<status_page::StatusPage>("status_page"),
    Module::http::<mp4::Mp4>("mp4"),
    Module::http::<flv::Flv>("flv"),
    Module::http::<empty_gif::EmptyGif>("empty_gif"),
    Module::http::<random_index::RandomIndex>("random_index"),
    Module::http::<index::Index>("index"),
    Module::http::<autoindex::Autoindex>("autoindex"),
    Module::http::<dav::Dav>("dav"),
    Module::http::<precompressed::Precompressed<precompressed::Brotli>>("brotli_static"),
    Module::http::<precompressed::Precompressed<precompressed::Zstd>>("zstd_static"),
    Module::http::<precompressed::Precompressed<precompressed::Gzip>>("gzip_static"),
    Module::http::<static_files::Static>("static"),
    #[cfg(debug_assertions)]
    Module::http::<trap::Trap>(TRAP),
    // Header filters.
    Module::http::<headers::Headers>("headers"),
    Module::http::<userid::UserId>("userid"),
    // Unpacks first, so that others can read the body. Whoever changes a body stands between it and those that compress:
    // of these the first one that the client accepts does it.
    Module::http::<gunzip::Gunzip>("gunzip"),
    Module::http::<sub::Sub>("sub"),
    Module::http::<charset::Charset>("charset"),
    Module::http::<ssi::Ssi>("ssi"),
    // What comes before and after a body has been through its own filters.
    Module::http::<addition::Addition>("addition"),
    Module::http::<brotli::Brotli>("brotli"),
    Module::http::<zstd::Zstd>("zstd"),
    Module::http::<gzip::Gzip>("gzip"),
    // Log handlers.
    Module::http::<status_zone::StatusZone>("status_zone"),
    Module::http::<log::AccessLog>("log"),
];
