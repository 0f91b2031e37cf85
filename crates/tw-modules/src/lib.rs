//! THE LISTS of modules, one for each protocol, and every module that has no crate of its own, one file each.
//!
//! ```text
//! every_protocol  modules of http, stream and mail: map, geo, access, log …
//! variables       of requests: json, referer, secure_link …
//! rewriting       rewrite, real_ip, try_files …       limits   limit_req, limit_rate, overload
//! access          auth_basic, auth_request, waf …
//! content         static files, listings, echo …      gateways proxy, fastcgi, grpc …
//! filters         headers, sub, ssi, gzip …           logging  session_log
//! stream, mail    modules of stream alone, and of mail alone
//! shared          compression of bodies
//! ```
//! Large modules that no other module names are crates below this one, so that they compile side by side: see the code map in
//! ARCHITECTURE.md. Parts that several modules have in common are in `tw-module-support`.
//!
//! The order of [`MODULES`], [`STREAM_MODULES`] and [`MAIL_MODULES`] is the order in which handlers of one phase run, and in which header filters see a response.

mod access;
mod content;
mod every_protocol;
mod filters;
mod gateways;
mod limits;
mod logging;
mod mail;
mod rewriting;
mod shared;
mod stream;
mod variables;

use tw_mail::Mail;
use tw_mail::load::Module as MailModule;
use tw_mail::session::MailSession;
use tw_request::request::Request;
use tw_server::load::Module;
use tw_stream::Stream;
use tw_stream::load::Module as StreamModule;
use tw_stream::session::StreamSession;

pub use access::auth_basic::{PasswordError, password_hash, password_line};
pub use tw_http_cache::{FormattedDevice, check_device, format_device};
pub use tw_status::numbers_of_process;
pub use tw_token_auth::oidc_provider_directives;

/// A module that only tests have, and no documentation.
pub const TRAP: &str = "trap";

/// All modules of the http context. A new module is a new file in its folder and one line here.
pub static MODULES: &[Module] = &[
    // Variables.
    Module::of::<every_protocol::map::Map>("map"),
    Module::of::<every_protocol::num_map::NumMap>("num_map"),
    Module::of::<every_protocol::geo::Geo>("geo"),
    Module::of::<every_protocol::geoip2::GeoIp2>("geoip2"),
    Module::of::<every_protocol::split_clients::SplitClients>("split_clients"),
    Module::of::<variables::json::Json>("json"),
    Module::of::<tw_keyval::Keyval>("keyval"),
    Module::of::<variables::browser::Browsers>("browser"),
    Module::of::<variables::referer::Referers>("referer"),
    Module::of::<variables::secure_link::SecureLink>("secure_link"),
    // Rewrite phases. Traces begin before a rewrite can answer.
    Module::of::<tw_otel::Otel>("otel"),
    // Its rules see a request before `return` answers it.
    Module::of::<access::waf::Waf>("waf"),
    Module::of::<rewriting::rewrite::Rewrite>("rewrite"),
    // Before all modules that read fields of requests or add fields to responses.
    Module::of::<rewriting::headers_more::HeadersMore>("headers_more"),
    // Post-read and preaccess.
    Module::of::<rewriting::real_ip::RealIp>("real_ip"),
    Module::of::<filters::slice::Slice>("slice"),
    // Before the limits, so that a request that is refused uses none of their rates.
    Module::of::<limits::overload::Overload>("overload"),
    Module::of::<limits::limit_req::LimitReq<Request>>("limit_req"),
    Module::of::<every_protocol::limit_conn::LimitConn<Request>>("limit_conn"),
    Module::of::<limits::limit_rate::LimitRate>("limit_rate"),
    Module::of::<content::upload_progress::UploadProgress>("upload_progress"),
    // Access.
    Module::of::<every_protocol::access::Access>("access"),
    Module::of::<access::deny_request::DenyRequest>("deny_request"),
    Module::of::<access::auth_basic::AuthBasic>("auth_basic"),
    Module::of::<access::auth_request::AuthRequest>("auth_request"),
    // `auth_oidc` runs before `auth_jwt` and `auth_require`, which may check the tokens and claims of its users.
    Module::of::<tw_token_auth::AuthOidc>("auth_oidc"),
    Module::of::<tw_token_auth::AuthJwt>("auth_jwt"),
    // `auth_require` decides by variables that the modules above set.
    Module::of::<access::auth_require::AuthRequire>("auth_require"),
    // As in nginx, after all others; a module of a later phase, too: `js_content` answers, and filters see a response first.
    Module::of::<tw_js::HttpScripts>("js"),
    // Last: a client that may not come in is not challenged.
    Module::of::<tw_challenge::Challenge>("challenge"),
    // Precontent.
    Module::of::<rewriting::internal_redirect::InternalRedirect>("internal_redirect"),
    Module::of::<rewriting::try_files::TryFiles>("try_files"),
    Module::of::<content::mirror::Mirror>("mirror"),
    // Content: the first that does not pass answers.
    Module::of::<tw_status::Metrics>("metrics"),
    Module::of::<tw_status::StubStatus>("stub_status"),
    Module::of::<tw_status::StatusPage>("status_page"),
    Module::of::<tw_status::Api>("api"),
    Module::of::<tw_media::Mp4>("mp4"),
    Module::of::<tw_media::Flv>("flv"),
    Module::of::<tw_media::Hls>("hls"),
    Module::of::<content::empty_gif::EmptyGif>("empty_gif"),
    Module::of::<content::random_index::RandomIndex>("random_index"),
    Module::of::<gateways::proxy::ProxyPass>("proxy"),
    Module::of::<gateways::fastcgi::FastCgiPass>("fastcgi"),
    Module::of::<gateways::uwsgi::UwsgiPass>("uwsgi"),
    Module::of::<gateways::scgi::ScgiPass>("scgi"),
    Module::of::<gateways::grpc::GrpcPass>("grpc"),
    Module::of::<gateways::memcached::MemcachedPass>("memcached"),
    Module::of::<gateways::tunnel::TunnelPass>("tunnel"),
    Module::of::<content::index::Index>("index"),
    Module::of::<content::fancyindex::FancyIndex>("fancyindex"),
    Module::of::<content::autoindex::Autoindex>("autoindex"),
    Module::of::<tw_webdav::DavExt>("dav_ext"),
    Module::of::<tw_webdav::Dav>("dav"),
    Module::of::<content::precompressed::Precompressed<content::precompressed::BrotliStatic>>(
        "brotli_static",
    ),
    Module::of::<content::precompressed::Precompressed<content::precompressed::ZstdStatic>>("zstd_static"),
    Module::of::<content::precompressed::Precompressed<content::precompressed::GzipStatic>>("gzip_static"),
    Module::of::<content::static_files::Static>("static"),
    #[cfg(debug_assertions)]
    Module::of::<content::trap::Trap>(TRAP),
    Module::of::<content::echo::Echo>("echo"),
    // Whole bodies, before all header filters.
    Module::of::<tw_image_filter::ImageFilter>("image_filter"),
    // Header filters.
    Module::of::<filters::headers::Headers>("headers"),
    Module::of::<filters::userid::UserId>("userid"),
    // Unpacks first, so that others can read the body. Filters that change a body stand between it and those that compress:
    // of these the first one that the client accepts does it.
    Module::of::<filters::gunzip::Gunzip>("gunzip"),
    Module::of::<filters::subs_filter::SubsFilter>("subs_filter"),
    Module::of::<filters::sub::Sub>("sub"),
    Module::of::<filters::charset::Charset>("charset"),
    Module::of::<filters::ssi::Ssi>("ssi"),
    // Text added before and after a body comes from subrequests, which have run their own filters.
    Module::of::<filters::addition::Addition>("addition"),
    Module::of::<filters::brotli::Brotli>("brotli"),
    Module::of::<filters::zstd::Zstd>("zstd"),
    Module::of::<filters::gzip::Gzip>("gzip"),
    // Log handlers.
    Module::of::<tw_status::StatusZone>("status_zone"),
    Module::of::<tw_vts::Vts>("vts"),
    Module::of::<every_protocol::log::AccessLog<Request>>("log"),
    Module::of::<logging::session_log::SessionLog>("session_log"),
    // Health checks are no phase of requests; they follow the modules whose upstream settings they use.
    Module::of::<gateways::health_check::HealthChecks>("health_check"),
];

/// All modules of the stream context. A module of every protocol is one line in each list.
pub static STREAM_MODULES: &[StreamModule] = &[
    // Variables.
    StreamModule::of::<every_protocol::map::Map>("map"),
    StreamModule::of::<every_protocol::num_map::NumMap>("num_map"),
    StreamModule::of::<every_protocol::geo::Geo>("geo"),
    StreamModule::of::<every_protocol::geoip2::GeoIp2>("geoip2"),
    StreamModule::of::<every_protocol::split_clients::SplitClients>("split_clients"),
    StreamModule::of::<tw_keyval::Keyval>("keyval"),
    // Post-accept.
    StreamModule::of::<every_protocol::session_real_ip::SessionRealIp>("stream_real_ip"),
    // Preaccess.
    StreamModule::of::<stream::stream_set::StreamSet>("stream_set"),
    StreamModule::of::<every_protocol::limit_conn::LimitConn<StreamSession>>("limit_conn"),
    // Access and preread: as in nginx, before the other modules of these phases.
    StreamModule::of::<tw_js::StreamScripts>("js"),
    StreamModule::of::<every_protocol::access::Access>("access"),
    // Preread.
    StreamModule::of::<stream::stream_ssl_preread::StreamSslPreread>("stream_ssl_preread"),
    StreamModule::of::<stream::stream_mqtt::Mqtt>("stream_mqtt"),
    // Content: of several in one block the last holds.
    StreamModule::of::<stream::stream_return::StreamReturn>("stream_return"),
    StreamModule::of::<stream::stream_pass::StreamPass>("stream_pass"),
    StreamModule::of::<stream::stream_proxy::StreamProxy>("stream_proxy"),
    // Counters of sessions.
    StreamModule::of::<tw_status::SessionStatusZone<Stream>>("stream_status_zone"),
    // Log.
    StreamModule::of::<tw_otel::SessionOtel<StreamSession>>("stream_otel"),
    StreamModule::of::<every_protocol::log::AccessLog<StreamSession>>("log"),
    // Health checks are no phase of sessions; they follow the module whose upstream settings they use.
    StreamModule::of::<stream::stream_health_check::StreamHealthChecks>("stream_health_check"),
];

/// All modules of the mail context. A module of every protocol is one line in each list.
pub static MAIL_MODULES: &[MailModule] = &[
    // Variables.
    MailModule::of::<every_protocol::map::Map>("map"),
    MailModule::of::<every_protocol::num_map::NumMap>("num_map"),
    MailModule::of::<every_protocol::geo::Geo>("geo"),
    MailModule::of::<every_protocol::geoip2::GeoIp2>("geoip2"),
    MailModule::of::<every_protocol::split_clients::SplitClients>("split_clients"),
    MailModule::of::<tw_keyval::Keyval>("keyval"),
    // Post-accept.
    MailModule::of::<every_protocol::session_real_ip::SessionRealIp>("mail_real_ip"),
    // Access.
    MailModule::of::<every_protocol::access::Access>("access"),
    // Limits, at each login.
    MailModule::of::<limits::limit_req::LimitReq<MailSession>>("limit_req"),
    MailModule::of::<every_protocol::limit_conn::LimitConn<MailSession>>("limit_conn"),
    // Counters of sessions.
    MailModule::of::<tw_status::SessionStatusZone<Mail>>("mail_status_zone"),
    // Log.
    MailModule::of::<tw_otel::SessionOtel<MailSession>>("mail_otel"),
    MailModule::of::<every_protocol::log::AccessLog<MailSession>>("log"),
    // Health checks are no phase of sessions; they follow the module that names the auth server.
    MailModule::of::<mail::mail_health_check::MailHealthCheck>("mail_health_check"),
];

/// Tests measure how much memory something takes.
#[cfg(test)]
#[global_allocator]
static HEAP: tw_rt::CountingHeap = tw_rt::CountingHeap;
