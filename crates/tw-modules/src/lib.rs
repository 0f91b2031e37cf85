//! Every module, one file each, and THE LISTS: one for each protocol.
//!
//! The order of [`MODULES`] and of [`STREAM_MODULES`] is the order in which handlers of one phase run, and in which header filters see a response.

mod access;
mod access_refusal;
mod addition;
mod address_source;
mod api;
mod auth_basic;
mod auth_jwt;
mod auth_oidc;
mod auth_request;
mod auth_require;
mod autoindex;
mod block;
mod brotli;
mod browser;
mod cached_files;
mod cgi;
mod challenge;
mod changed_body;
mod charset;
mod coding;
mod date_format;
mod dav;
mod dav_ext;
mod deny_request;
mod echo;
mod empty_gif;
mod fancyindex;
mod fastcgi;
mod flv;
mod forwarded;
mod geo;
mod geoip2;
mod grpc;
mod gunzip;
mod gzip;
mod headers;
mod headers_more;
mod health_check;
mod hls;
mod image_filter;
mod index;
mod internal_redirect;
mod jose;
mod json;
mod keyval;
mod limit_conn;
mod limit_rate;
mod limit_req;
mod log;
mod map;
mod mapped_values;
mod memcached;
pub mod metrics;
mod mirror;
mod mp4;
mod num_map;
mod otel;
mod overload;
mod pass_module;
mod precompressed;
mod proxy;
mod random_index;
mod real_ip;
mod referer;
mod refusal;
mod required_values;
mod rewrite;
mod scgi;
#[cfg(test)]
mod second_protocol;
mod secret;
mod secure_link;
mod session_log;
mod slice;
mod small_body;
mod split_clients;
mod ssi;
mod static_files;
mod status_page;
mod status_zone;
mod stream_health_check;
mod stream_mqtt;
mod stream_pass;
mod stream_proxy;
mod stream_real_ip;
mod stream_return;
mod stream_set;
mod stream_ssl_preread;
mod stream_status_zone;
mod stub_status;
mod sub;
mod subs_filter;
#[cfg(debug_assertions)]
mod trap;
mod trusted_proxies;
mod try_files;
mod tunnel;
mod turn_queue;
mod types;
mod upload_progress;
mod userid;
mod uwsgi;
mod verified_tls;
mod vts;
mod zone;
mod zstd;

use tw_server::http::request::Request;
use tw_server::load::Module;
use tw_stream::load::Module as StreamModule;
use tw_stream::session::StreamSession;

pub use auth_basic::{PasswordError, password_hash, password_line};
pub use auth_oidc::directives as oidc_provider_directives;
pub use status_page::numbers_of_process;
pub use tw_server::http::cache::{FormattedDevice, check_device, format_device};

/// A module that only tests have, and no documentation.
pub const TRAP: &str = "trap";

/// All modules of the http context. A new module is a new file and one line here.
pub static MODULES: &[Module] = &[
    // Variables.
    Module::of::<map::Map>("map"),
    Module::of::<num_map::NumMap>("num_map"),
    Module::of::<geo::Geo>("geo"),
    Module::of::<geoip2::GeoIp2>("geoip2"),
    Module::of::<split_clients::SplitClients>("split_clients"),
    Module::of::<json::Json>("json"),
    Module::of::<keyval::Keyval>("keyval"),
    Module::of::<browser::Browsers>("browser"),
    Module::of::<referer::Referers>("referer"),
    Module::of::<secure_link::SecureLink>("secure_link"),
    // Rewrite phases. Traces begin before a rewrite can answer.
    Module::of::<otel::Otel>("otel"),
    Module::of::<rewrite::Rewrite>("rewrite"),
    // Before everything that reads fields of requests or adds to those of responses.
    Module::of::<headers_more::HeadersMore>("headers_more"),
    // Post-read and preaccess.
    Module::of::<real_ip::RealIp>("real_ip"),
    Module::of::<slice::Slice>("slice"),
    // Before the limits, so that a request that is refused uses none of their rates.
    Module::of::<overload::Overload>("overload"),
    Module::of::<limit_req::LimitReq>("limit_req"),
    Module::of::<limit_conn::LimitConn<Request>>("limit_conn"),
    Module::of::<limit_rate::LimitRate>("limit_rate"),
    Module::of::<upload_progress::UploadProgress>("upload_progress"),
    // Access.
    Module::of::<access::Access>("access"),
    Module::of::<deny_request::DenyRequest>("deny_request"),
    Module::of::<auth_basic::AuthBasic>("auth_basic"),
    Module::of::<auth_request::AuthRequest>("auth_request"),
    // Before tokens and values that are those of its users.
    Module::of::<auth_oidc::AuthOidc>("auth_oidc"),
    Module::of::<auth_jwt::AuthJwt>("auth_jwt"),
    // It decides by variables of the others.
    Module::of::<auth_require::AuthRequire>("auth_require"),
    // Last: a client that may not come in is not challenged.
    Module::of::<challenge::Challenge>("challenge"),
    // Precontent.
    Module::of::<internal_redirect::InternalRedirect>("internal_redirect"),
    Module::of::<try_files::TryFiles>("try_files"),
    Module::of::<mirror::Mirror>("mirror"),
    // Content: the first that does not pass answers.
    Module::of::<metrics::Metrics>("metrics"),
    Module::of::<stub_status::StubStatus>("stub_status"),
    Module::of::<status_page::StatusPage>("status_page"),
    Module::of::<api::Api>("api"),
    Module::of::<mp4::Mp4>("mp4"),
    Module::of::<flv::Flv>("flv"),
    Module::of::<hls::Hls>("hls"),
    Module::of::<empty_gif::EmptyGif>("empty_gif"),
    Module::of::<random_index::RandomIndex>("random_index"),
    Module::of::<proxy::Proxy>("proxy"),
    Module::of::<fastcgi::FastCgiPass>("fastcgi"),
    Module::of::<uwsgi::UwsgiPass>("uwsgi"),
    Module::of::<scgi::ScgiPass>("scgi"),
    Module::of::<grpc::Grpc>("grpc"),
    Module::of::<memcached::MemcachedPass>("memcached"),
    Module::of::<tunnel::TunnelPass>("tunnel"),
    Module::of::<index::Index>("index"),
    Module::of::<fancyindex::FancyIndex>("fancyindex"),
    Module::of::<autoindex::Autoindex>("autoindex"),
    Module::of::<dav_ext::DavExt>("dav_ext"),
    Module::of::<dav::Dav>("dav"),
    Module::of::<precompressed::Precompressed<precompressed::BrotliStatic>>("brotli_static"),
    Module::of::<precompressed::Precompressed<precompressed::ZstdStatic>>("zstd_static"),
    Module::of::<precompressed::Precompressed<precompressed::GzipStatic>>("gzip_static"),
    Module::of::<static_files::Static>("static"),
    #[cfg(debug_assertions)]
    Module::of::<trap::Trap>(TRAP),
    Module::of::<echo::Echo>("echo"),
    // Whole bodies, before all header filters.
    Module::of::<image_filter::ImageFilter>("image_filter"),
    // Header filters.
    Module::of::<headers::Headers>("headers"),
    Module::of::<userid::UserId>("userid"),
    // Unpacks first, so that others can read the body. Filters that change a body stand between it and those that compress:
    // of these the first one that the client accepts does it.
    Module::of::<gunzip::Gunzip>("gunzip"),
    Module::of::<subs_filter::SubsFilter>("subs_filter"),
    Module::of::<sub::Sub>("sub"),
    Module::of::<charset::Charset>("charset"),
    Module::of::<ssi::Ssi>("ssi"),
    // What comes before and after a body has been through its own filters.
    Module::of::<addition::Addition>("addition"),
    Module::of::<brotli::Brotli>("brotli"),
    Module::of::<zstd::Zstd>("zstd"),
    Module::of::<gzip::Gzip>("gzip"),
    // Log handlers.
    Module::of::<status_zone::StatusZone>("status_zone"),
    Module::of::<vts::Vts>("vts"),
    Module::of::<log::AccessLog<Request>>("log"),
    Module::of::<session_log::SessionLog>("session_log"),
    // Beside requests; after those that pass them on.
    Module::of::<health_check::HealthChecks>("health_check"),
];

/// All modules of the stream context. A module of every protocol is one line in each list.
pub static STREAM_MODULES: &[StreamModule] = &[
    // Variables.
    StreamModule::of::<map::Map>("map"),
    StreamModule::of::<num_map::NumMap>("num_map"),
    StreamModule::of::<geo::Geo>("geo"),
    StreamModule::of::<geoip2::GeoIp2>("geoip2"),
    StreamModule::of::<split_clients::SplitClients>("split_clients"),
    StreamModule::of::<keyval::Keyval>("keyval"),
    // Post-accept.
    StreamModule::of::<stream_real_ip::StreamRealIp>("stream_real_ip"),
    // Preaccess.
    StreamModule::of::<stream_set::StreamSet>("stream_set"),
    StreamModule::of::<limit_conn::LimitConn<StreamSession>>("limit_conn"),
    // Access.
    StreamModule::of::<access::Access>("access"),
    // Preread.
    StreamModule::of::<stream_ssl_preread::StreamSslPreread>("stream_ssl_preread"),
    StreamModule::of::<stream_mqtt::Mqtt>("stream_mqtt"),
    // Content: of several in one block the last holds.
    StreamModule::of::<stream_return::StreamReturn>("stream_return"),
    StreamModule::of::<stream_pass::StreamPass>("stream_pass"),
    StreamModule::of::<stream_proxy::StreamProxy>("stream_proxy"),
    // Counters of sessions.
    StreamModule::of::<stream_status_zone::StreamStatusZone>("stream_status_zone"),
    // Log.
    StreamModule::of::<log::AccessLog<StreamSession>>("log"),
    // Beside sessions; after the module that passes them on.
    StreamModule::of::<stream_health_check::StreamHealthChecks>("stream_health_check"),
];

/// Tests measure how much memory something takes.
#[cfg(test)]
#[global_allocator]
static HEAP: tw_rt::CountingHeap = tw_rt::CountingHeap;
