//! Information about the program: `-v`, `-V`, `-h`.
//!
//! Programs read `nginx -V` to learn the abilities of a server. The text behind `configure arguments` is derived from
//! the list of directives, so it is true by construction: a module of nginx counts as built in if its main directive is
//! known, and a standard module of nginx that is missing here is listed with `--without-…`.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use landlock::{ABI, Access as _, AccessFs, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _};
use tw_base::command_line::{self, Opt, usage, wrapped};
use tw_conf::{
    Contexts, EVENTS, HTTP, LOCATION, MAIL_SERVER, MAIN, SERVER, STREAM, STREAM_SERVER, STREAM_UPSTREAM,
    UPSTREAM,
};
use tw_core::NGINX_VERSION;

use crate::cli::Show;
use crate::configuration::conf::{DEFAULT_FILE, DEFAULT_PREFIX};
use crate::options;

/// Name and version, as the log and the `Server` field say it.
pub const PROGRAM: &str = concat!("tailwater/", env!("CARGO_PKG_VERSION"));
/// The compiler, as `rustc --version` names it.
pub const COMPILER: &str = env!("TAILWATER_COMPILER");
/// Commit it was built from; empty if unknown.
const COMMIT: &str = env!("TAILWATER_COMMIT");
/// Libraries of TLS, with versions.
const TLS_LIBRARY: &str = env!("TAILWATER_TLS_LIBRARY");

/// Directives by which a module of nginx is recognised, in any of these contexts.
struct Module {
    /// The word of `configure`, without `--with-` or `--without-`.
    word: &'static str,
    directive: &'static str,
    contexts: Contexts,
}

const fn module(word: &'static str, directive: &'static str, contexts: Contexts) -> Module {
    Module { word, directive, contexts }
}

const ANY_HTTP: Contexts = HTTP | SERVER | LOCATION;
const ANY_STREAM: Contexts = STREAM | STREAM_SERVER;

/// Modules that nginx has only if configured.
const OPTIONAL: &[Module] = &[
    module("debug", "debug_connection", EVENTS),
    module("threads", "thread_pool", MAIN),
    module("file-aio", "aio", ANY_HTTP),
    module("http_ssl_module", "ssl_certificate", ANY_HTTP),
    module("http_v2_module", "http2", ANY_HTTP),
    module("http_v3_module", "http3", ANY_HTTP),
    module("http_realip_module", "set_real_ip_from", ANY_HTTP),
    module("http_addition_module", "add_after_body", ANY_HTTP),
    module("http_image_filter_module", "image_filter", ANY_HTTP),
    module("http_sub_module", "sub_filter", ANY_HTTP),
    module("http_dav_module", "dav_methods", ANY_HTTP),
    module("http_flv_module", "flv", ANY_HTTP),
    module("http_mp4_module", "mp4", ANY_HTTP),
    module("http_gunzip_module", "gunzip", ANY_HTTP),
    module("http_gzip_static_module", "gzip_static", ANY_HTTP),
    module("http_auth_request_module", "auth_request", ANY_HTTP),
    module("http_random_index_module", "random_index", ANY_HTTP),
    module("http_secure_link_module", "secure_link", ANY_HTTP),
    module("http_slice_module", "slice", ANY_HTTP),
    module("http_stub_status_module", "stub_status", ANY_HTTP),
    module("stream", "proxy_timeout", ANY_STREAM),
    module("stream_ssl_module", "ssl_certificate", ANY_STREAM),
    module("stream_realip_module", "set_real_ip_from", ANY_STREAM),
    module("stream_ssl_preread_module", "ssl_preread", ANY_STREAM),
    module("mail", "protocol", MAIL_SERVER),
    module("mail_ssl_module", "starttls", MAIL_SERVER),
    module("mail_realip_module", "set_real_ip_from", MAIL_SERVER),
];

/// Modules that nginx has unless configured without.
const STANDARD: &[Module] = &[
    module("http", "server_name", SERVER),
    module("http-cache", "proxy_cache", ANY_HTTP),
    module("http_charset_module", "charset", ANY_HTTP),
    module("http_gzip_module", "gzip", ANY_HTTP),
    module("http_ssi_module", "ssi", ANY_HTTP),
    module("http_userid_module", "userid", ANY_HTTP),
    module("http_access_module", "allow", ANY_HTTP),
    module("http_auth_basic_module", "auth_basic", ANY_HTTP),
    module("http_mirror_module", "mirror", ANY_HTTP),
    module("http_autoindex_module", "autoindex", ANY_HTTP),
    module("http_geo_module", "geo", HTTP),
    module("http_map_module", "map", HTTP),
    module("http_split_clients_module", "split_clients", HTTP),
    module("http_referer_module", "valid_referers", ANY_HTTP),
    module("http_rewrite_module", "rewrite", ANY_HTTP),
    module("http_proxy_module", "proxy_pass", ANY_HTTP),
    module("http_fastcgi_module", "fastcgi_pass", ANY_HTTP),
    module("http_uwsgi_module", "uwsgi_pass", ANY_HTTP),
    module("http_scgi_module", "scgi_pass", ANY_HTTP),
    module("http_grpc_module", "grpc_pass", ANY_HTTP),
    module("http_tunnel_module", "tunnel_pass", ANY_HTTP),
    module("http_memcached_module", "memcached_pass", ANY_HTTP),
    module("http_limit_conn_module", "limit_conn", ANY_HTTP),
    module("http_limit_req_module", "limit_req", ANY_HTTP),
    module("http_empty_gif_module", "empty_gif", ANY_HTTP),
    module("http_browser_module", "ancient_browser", ANY_HTTP),
    module("http_upstream_hash_module", "hash", UPSTREAM),
    module("http_upstream_ip_hash_module", "ip_hash", UPSTREAM),
    module("http_upstream_least_conn_module", "least_conn", UPSTREAM),
    module("http_upstream_least_time_module", "least_time", UPSTREAM),
    module("http_upstream_random_module", "random", UPSTREAM),
    module("http_upstream_keepalive_module", "keepalive", UPSTREAM),
    module("http_upstream_zone_module", "zone", UPSTREAM),
    module("http_upstream_sticky_module", "sticky", UPSTREAM),
];

/// Modules that nginx has with `stream` unless configured without.
const STANDARD_STREAM: &[Module] = &[
    module("stream_limit_conn_module", "limit_conn", ANY_STREAM),
    module("stream_access_module", "allow", ANY_STREAM),
    module("stream_geo_module", "geo", STREAM),
    module("stream_map_module", "map", STREAM),
    module("stream_split_clients_module", "split_clients", STREAM),
    module("stream_return_module", "return", ANY_STREAM),
    module("stream_pass_module", "pass", ANY_STREAM),
    module("stream_set_module", "set", ANY_STREAM),
    module("stream_upstream_hash_module", "hash", STREAM_UPSTREAM),
    module("stream_upstream_least_conn_module", "least_conn", STREAM_UPSTREAM),
    module("stream_upstream_least_time_module", "least_time", STREAM_UPSTREAM),
    module("stream_upstream_random_module", "random", STREAM_UPSTREAM),
    module("stream_upstream_zone_module", "zone", STREAM_UPSTREAM),
];

/// Modules that nginx has with `mail` unless configured without.
const STANDARD_MAIL: &[Module] = &[
    module("mail_pop3_module", "pop3_auth", MAIL_SERVER),
    module("mail_imap_module", "imap_auth", MAIL_SERVER),
    module("mail_smtp_module", "smtp_auth", MAIL_SERVER),
];

/// The text of `-v`, `-V` or `-h`.
pub fn text(show: Show) -> String {
    let mut text = format!("tailwater version: {PROGRAM}\n");
    // Writing into a String does not fail.
    match show {
        Show::Version => {}
        Show::Configuration => {
            let _ = writeln!(
                text,
                "nginx version: nginx/{NGINX_VERSION}\nbuilt by {COMPILER}\nTLS SNI support enabled"
            );
            if !COMMIT.is_empty() {
                let _ = writeln!(text, "commit: {COMMIT}");
            }
            let _ = writeln!(text, "TLS library: {TLS_LIBRARY}\nkernel: {}", kernel());
            let _ = writeln!(text, "configure arguments: {}", arguments());
        }
        Show::Help => {
            let _ = write!(
                text,
                "{}       tailwater serve [directory] [options]\n       tailwater proxy URL... [options]\n       tailwater purge --cache name (key | --tag tag) [options]\n       tailwater cache (stat | check | export) directory... [options]\n       tailwater cache format device [options]\n       tailwater fleet word [options]\n       tailwater trust [options]\n       tailwater hash-password [user]\n       tailwater top [URL] [options]\n       tailwater js file [argument...]\n       tailwater help [name]\n\nOptions:\n{}\n\
                 tailwater serve and tailwater proxy need no configuration file: see\n\
                 tailwater serve --help and tailwater proxy --help; to remove from a running\n\
                 server what its cache has: tailwater purge --help; to look into the directory of\n\
                 a cache: tailwater cache --help; to see other nodes that share purges:\n\
                 tailwater fleet --help; to trust the certificates of serve --tls\n\
                 localhost: tailwater trust --help; to hash a password for\n\
                 auth_basic_user_file: tailwater hash-password --help; to watch a running server:\n\
                 tailwater top --help; to run a script by hand: tailwater js --help; to look\n\
                 up a directive, $variable or metric: tailwater help proxy_pass\n\n",
                usage("Usage: tailwater", options::MAIN),
                listed(options::MAIN)
            );
        }
    }
    text
}

/// The text of `serve --help`.
pub fn serve_help() -> String {
    let about = wrapped(options::SERVE_ABOUT, "", "");
    let usage = usage("Usage: tailwater serve [directory]", options::SERVE);
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::SERVE))
}

/// The text of `proxy --help`.
pub fn proxy_help() -> String {
    let about = wrapped(options::PROXY_ABOUT, "", "");
    let usage = usage("Usage: tailwater proxy URL...", options::PROXY);
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::PROXY))
}

/// The text of `purge --help`.
pub fn purge_help() -> String {
    let about = wrapped(options::PURGE_ABOUT, "", "");
    let usage = usage("Usage: tailwater purge", options::PURGE);
    let usage = format!("{} key\n", usage.trim_end());
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::PURGE))
}

/// The text of `cache --help`.
pub fn cache_help() -> String {
    let usage: String =
        [("stat", options::CACHE_STAT), ("check", options::CACHE_CHECK), ("export", options::CACHE_EXPORT)]
            .map(|(word, all)| usage(&format!("Usage: tailwater cache {word} directory..."), all))
            .concat();
    let usage = usage + &self::usage("Usage: tailwater cache format device", options::CACHE_FORMAT);
    let about = wrapped(options::CACHE_ABOUT, "", "");
    let status = "Status 0: all is well; 1: something is damaged; 2: something could not be read.\n";
    format!(
        "{usage}\n{about}{status}\nOptions of stat:\n{}\nOptions of check:\n{}\nOptions of export:\n{}\nOptions of format:\n{}",
        listed(options::CACHE_STAT),
        listed(options::CACHE_CHECK),
        listed(options::CACHE_EXPORT),
        listed(options::CACHE_FORMAT)
    )
}

/// The text of `fleet --help`.
pub fn fleet_help() -> String {
    let about = wrapped(options::FLEET_ABOUT, "", "");
    let usage = usage("Usage: tailwater fleet word [version]", options::FLEET);
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::FLEET))
}

/// The text of `trust --help`.
pub fn trust_help() -> String {
    let about = wrapped(options::TRUST_ABOUT, "", "");
    let usage = usage("Usage: tailwater trust", options::TRUST);
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::TRUST))
}

/// The text of `hash-password --help`.
pub fn hash_password_help() -> String {
    let about = wrapped(options::HASH_PASSWORD_ABOUT, "", "");
    let usage = usage("Usage: tailwater hash-password [user]", options::HASH_PASSWORD);
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::HASH_PASSWORD))
}

/// The text of `js --help`.
pub fn js_help() -> String {
    let about = wrapped(options::JS_ABOUT, "", "");
    let usage = usage("Usage: tailwater js file [argument...]", options::JS);
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::JS))
}

/// The text of `waf --help`.
pub fn waf_help() -> String {
    let about = wrapped(options::WAF_ABOUT, "", "");
    let usage = usage("Usage: tailwater waf test file", options::WAF);
    format!("{usage}\n{about}\nOptions:\n{}", listed(options::WAF))
}

/// Returns true if the kernel has landlock, of any version, and lets it be used.
fn has_landlock() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V1)).and_then(Ruleset::create).is_ok()
}

/// The running kernel, and which of its features that are used if they are there it has.
fn kernel() -> String {
    let system = rustix::system::uname();
    let has = |is_there: bool| if is_there { "yes" } else { "no" };
    format!(
        "{} {}; io_uring: {}; landlock: {}",
        system.sysname().to_string_lossy(),
        system.release().to_string_lossy(),
        has(tw_sys::uring::Ring::<OwnedFd, Vec<u8>>::new(1).is_ok()),
        has(has_landlock()),
    )
}

/// Each option with what it does, and with the names of this build.
fn listed(options: &[Opt]) -> String {
    command_line::listed(options, &[("{prefix}", DEFAULT_PREFIX), ("{file}", DEFAULT_FILE)])
}

/// `configure arguments` as nginx would have needed them to become what we are.
fn arguments() -> String {
    let known_names = tw_app::all_directives(crate::configuration::conf::MODULES);
    let has = |module: &&Module| {
        known_names.iter().any(|(_, directive)| {
            directive.name == module.directive && directive.contexts & module.contexts != 0
        })
    };
    // The build is the name that `server_tokens build` shows.
    let prefix = DEFAULT_PREFIX.trim_end_matches('/');
    let mut text = format!("--prefix={prefix} --conf-path={DEFAULT_FILE} --build=Linux");
    for module in OPTIONAL.iter().filter(has) {
        let _ = write!(text, " --with-{}", module.word);
    }
    let has_protocol = |word: &str| OPTIONAL.iter().filter(has).any(|module| module.word == word);
    let (stream, mail) = (has_protocol("stream"), has_protocol("mail"));
    let standard = STANDARD.iter().chain(STANDARD_STREAM.iter().filter(|_| stream));
    let standard = standard.chain(STANDARD_MAIL.iter().filter(|_| mail));
    for module in standard.filter(|module| !has(module)) {
        let _ = write!(text, " --without-{}", module.word);
    }
    text
}

#[cfg(test)]
mod tests {
    use tw_base::command_line::COLUMNS;

    use super::*;

    #[test]
    fn configuration_is_machine_readable() {
        let text = text(Show::Configuration);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines[..2],
            [format!("tailwater version: {PROGRAM}"), format!("nginx version: nginx/{NGINX_VERSION}")]
        );
        assert!(lines[2].starts_with("built by rustc "), "{text}");
        assert_eq!(lines[3], "TLS SNI support enabled");
        let line = |name: &str| lines.iter().find_map(|line| line.strip_prefix(name));
        assert!(line("TLS library: ").is_some_and(|named| named.starts_with("rustls 0.")), "{text}");
        let kernel = line("kernel: ").unwrap();
        assert!(kernel.contains("; io_uring: ") && kernel.contains("; landlock: "), "{text}");
        let is_commit = |text: &str| text.len() >= 7 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(line("commit: ").is_none_or(is_commit), "{text}");
        let arguments = lines.last().unwrap().strip_prefix("configure arguments: ").unwrap();
        let words: Vec<_> = arguments.split(' ').collect();
        assert!(words.contains(&"--with-threads") && words.contains(&"--with-file-aio"), "{text}");
        assert!(words.contains(&"--with-mail") && words.contains(&"--with-mail_ssl_module"), "{text}");
        assert!(!words.iter().any(|word| word.starts_with("--without-mail")), "{text}");
        assert!(!words.contains(&"--without-http"), "{text}");
    }

    #[test]
    fn help_fits_a_terminal_and_names_every_option() {
        let texts = [
            (text(Show::Help), options::MAIN),
            (serve_help(), options::SERVE),
            (proxy_help(), options::PROXY),
            (purge_help(), options::PURGE),
            (cache_help(), options::CACHE_STAT),
            (cache_help(), options::CACHE_CHECK),
            (cache_help(), options::CACHE_EXPORT),
            (fleet_help(), options::FLEET),
            (cache_help(), options::CACHE_FORMAT),
            (trust_help(), options::TRUST),
            (hash_password_help(), options::HASH_PASSWORD),
        ];
        for (text, options) in texts {
            assert!(text.lines().all(|line| line.chars().count() <= COLUMNS), "{text}");
            for option in options {
                assert!(text.contains(&format!("\n  {}", option.names.join(","))), "{text}");
            }
        }
    }

    #[test]
    fn markers_are_directives_of_nginx() {
        for module in OPTIONAL.iter().chain(STANDARD).chain(STANDARD_STREAM) {
            let is = |directive: tw_conf::NginxDirective| {
                directive.name == module.directive && directive.contexts & module.contexts != 0
            };
            assert!(tw_conf::nginx_directives().any(is), "{} {}", module.word, module.directive);
        }
    }
}
