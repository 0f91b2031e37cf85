//! The configuration map: settings of all servers, with the keys of ingress-nginx.

use crate::annotation::value::ValueKind::{self, AnyOf, Ciphers, Count, OneOf, Seconds, Size, Switch};
use crate::annotation::value::{networks, switch};
use crate::cluster::object::ConfigMap;
use crate::quote;

/// Settings of all servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Globals {
    /// Lines of the main context.
    pub main: Vec<String>,
    /// Lines of `events`.
    pub events: Vec<String>,
    /// Lines of `http`.
    pub http: Vec<String>,
    /// Lines of each server.
    pub server: Vec<String>,
    /// Lines of each location.
    pub location: Vec<String>,
    /// Lines of each upstream group.
    pub group: Vec<String>,
    /// Lines of `stream`.
    pub stream: Vec<String>,
    /// Line of the balancing method.
    pub balancing: Option<String>,
    /// Hosts with a certificate redirect to HTTPS.
    pub ssl_redirect: bool,
    /// All hosts redirect to HTTPS.
    pub force_ssl_redirect: bool,
    /// Status of these redirects.
    pub redirect_code: u16,
    /// Value of `Strict-Transport-Security`.
    pub hsts: Option<String>,
    /// Fields about the client come from a proxy in front.
    pub forwarded: Option<Forwarded>,
    /// Connections begin with a header of the PROXY protocol.
    pub proxy_protocol: bool,
    /// HTTP/2 is spoken.
    pub http2: bool,
    /// Status of requests beyond a rate that replicas share.
    pub global_limit_status: u16,
    /// Keys without effect, and why.
    pub problems: Vec<String>,
}

/// A trusted proxy in front.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// Field with the address of the client.
    pub field: String,
    /// Networks of the proxies.
    pub networks: Vec<String>,
}

impl Default for Globals {
    fn default() -> Self {
        Self {
            main: Vec::new(),
            events: Vec::new(),
            http: Vec::new(),
            server: Vec::new(),
            location: Vec::new(),
            group: Vec::new(),
            stream: Vec::new(),
            balancing: None,
            ssl_redirect: true,
            force_ssl_redirect: false,
            redirect_code: 308,
            hsts: Some("max-age=31536000; includeSubDomains".to_owned()),
            forwarded: None,
            proxy_protocol: false,
            http2: true,
            global_limit_status: 429,
            problems: Vec::new(),
        }
    }
}

/// Block of a directive.
#[derive(Clone, Copy)]
enum Block {
    Main,
    Events,
    Http,
    Group,
    Stream,
}

/// Keys that are one directive.
const DIRECTIVES: &[(&str, Block, &str, ValueKind)] = &[
    ("brotli-level", Block::Http, "brotli_comp_level", Count),
    ("client-body-buffer-size", Block::Http, "client_body_buffer_size", Size),
    ("client-body-timeout", Block::Http, "client_body_timeout", Seconds),
    ("client-header-buffer-size", Block::Http, "client_header_buffer_size", Size),
    ("client-header-timeout", Block::Http, "client_header_timeout", Seconds),
    ("enable-brotli", Block::Http, "brotli", Switch),
    ("gzip-level", Block::Http, "gzip_comp_level", Count),
    ("gzip-min-length", Block::Http, "gzip_min_length", Count),
    ("http2-max-concurrent-streams", Block::Http, "http2_max_concurrent_streams", Count),
    ("keep-alive", Block::Http, "keepalive_timeout", Seconds),
    ("keep-alive-requests", Block::Http, "keepalive_requests", Count),
    ("limit-conn-status-code", Block::Http, "limit_conn_status", Count),
    ("limit-req-status-code", Block::Http, "limit_req_status", Count),
    ("max-worker-connections", Block::Events, "worker_connections", Count),
    ("proxy-body-size", Block::Http, "client_max_body_size", Size),
    ("proxy-buffer-size", Block::Http, "proxy_buffer_size", Size),
    ("proxy-buffering", Block::Http, "proxy_buffering", Switch),
    ("proxy-busy-buffers-size", Block::Http, "proxy_busy_buffers_size", Size),
    ("proxy-connect-timeout", Block::Http, "proxy_connect_timeout", Seconds),
    ("proxy-max-temp-file-size", Block::Http, "proxy_max_temp_file_size", Size),
    (
        "proxy-next-upstream",
        Block::Http,
        "proxy_next_upstream",
        AnyOf(crate::annotation::table::NEXT_UPSTREAM),
    ),
    ("proxy-next-upstream-timeout", Block::Http, "proxy_next_upstream_timeout", Seconds),
    ("proxy-next-upstream-tries", Block::Http, "proxy_next_upstream_tries", Count),
    ("proxy-read-timeout", Block::Http, "proxy_read_timeout", Seconds),
    ("proxy-request-buffering", Block::Http, "proxy_request_buffering", Switch),
    ("proxy-send-timeout", Block::Http, "proxy_send_timeout", Seconds),
    ("proxy-stream-next-upstream", Block::Stream, "proxy_next_upstream", Switch),
    ("proxy-stream-next-upstream-timeout", Block::Stream, "proxy_next_upstream_timeout", Seconds),
    ("proxy-stream-next-upstream-tries", Block::Stream, "proxy_next_upstream_tries", Count),
    ("proxy-stream-responses", Block::Stream, "proxy_responses", Count),
    ("proxy-stream-timeout", Block::Stream, "proxy_timeout", Seconds),
    ("request-timeout", Block::Http, "request_timeout", Seconds),
    ("server-tokens", Block::Http, "server_tokens", Switch),
    ("ssl-ciphers", Block::Http, "ssl_ciphers", Ciphers),
    ("ssl-protocols", Block::Http, "ssl_protocols", AnyOf(crate::annotation::table::PROTOCOLS)),
    ("ssl-session-tickets", Block::Http, "ssl_session_tickets", Switch),
    ("ssl-session-timeout", Block::Http, "ssl_session_timeout", Seconds),
    ("upstream-keepalive-connections", Block::Group, "keepalive", Count),
    ("upstream-keepalive-requests", Block::Group, "keepalive_requests", Count),
    ("upstream-keepalive-timeout", Block::Group, "keepalive_timeout", Seconds),
    ("use-gzip", Block::Http, "gzip", Switch),
    ("worker-processes", Block::Main, "worker_processes", Count),
    ("worker-shutdown-timeout", Block::Main, "worker_shutdown_timeout", Seconds),
];

/// Keys that are more than one directive.
const BUILT: &[(&str, &str)] = &[
    ("add-headers", "`add_header`, from a ConfigMap named here"),
    ("brotli-types", "`brotli_types`"),
    (
        "compute-full-forwarded-for",
        "accepted: the whole `X-Forwarded-For` is sent with `use-forwarded-headers`",
    ),
    ("disable-access-log", "`access_log off`"),
    ("error-log-level", "`error_log`"),
    ("force-ssl-redirect", "`return 308`"),
    ("forwarded-for-header", "`real_ip_header`"),
    ("global-rate-limit-status-code", "`limit_req_status` of `global-rate-limit`"),
    ("gzip-types", "`gzip_types`"),
    ("hsts", "`add_header Strict-Transport-Security`"),
    ("hsts-include-subdomains", "part of it"),
    ("hsts-max-age", "part of it"),
    ("hsts-preload", "part of it"),
    ("http-redirect-code", "status of redirects to HTTPS"),
    ("http-snippet", "in the block `http`"),
    ("large-client-header-buffers", "`large_client_header_buffers`"),
    ("load-balance", "method of all groups"),
    ("location-snippet", "in every location"),
    ("log-format-upstream", "`log_format`"),
    ("main-snippet", "in the main context"),
    ("proxy-buffers-number", "`proxy_buffers`"),
    ("proxy-real-ip-cidr", "`set_real_ip_from`"),
    ("proxy-set-headers", "`proxy_set_header`, from a ConfigMap named here"),
    ("server-snippet", "in every server"),
    ("ssl-redirect", "`return 308`"),
    ("use-forwarded-headers", "`real_ip_header`, `X-Forwarded-*` are passed on; needs `proxy-real-ip-cidr`"),
    ("use-http2", "`http2`"),
    ("use-proxy-protocol", "`listen … proxy_protocol`"),
];

/// Types of responses that are compressed by default.
const COMPRESSED: &str = "application/atom+xml application/javascript application/json application/xml image/svg+xml text/css text/javascript text/plain text/xml";

impl Globals {
    /// Reads a map; `None` gives the defaults. `other` finds maps that it names.
    pub fn read(map: Option<&ConfigMap>, other: impl Fn(&str) -> Option<ConfigMap>) -> Self {
        let mut globals = Self::default();
        let empty = ConfigMap::default();
        let data = &map.unwrap_or(&empty).data;
        let text = |name: &str| data.get(name).map(|text| text.trim()).filter(|text| !text.is_empty());
        let mut problems = Vec::new();
        for (name, value) in data {
            if let Some((_, block, directive, kind)) =
                DIRECTIVES.iter().find(|(candidate, ..)| candidate == name)
            {
                let Some(words) = kind.words(value) else {
                    problems.push(format!("key \"{name}\" has an invalid value and no effect"));
                    continue;
                };
                let lines = match block {
                    Block::Main => &mut globals.main,
                    Block::Events => &mut globals.events,
                    Block::Http => &mut globals.http,
                    Block::Group => &mut globals.group,
                    Block::Stream => &mut globals.stream,
                };
                lines.push(format!("{directive} {words};"));
            } else if !BUILT.iter().any(|(candidate, _)| candidate == name) {
                problems.push(format!("key \"{name}\" is unknown and has no effect"));
            }
        }
        if text("proxy-stream-responses").is_none() {
            // A session over UDP ends with its answer, as for queries.
            globals.stream.push("proxy_responses 1;".to_owned());
        }
        let mut on = |name: &str, default: bool| match text(name).map(switch) {
            None => default,
            Some(Some(on)) => on,
            Some(None) => {
                problems.push(format!("key \"{name}\" has an invalid value and no effect"));
                default
            }
        };
        globals.ssl_redirect = on("ssl-redirect", true);
        globals.force_ssl_redirect = on("force-ssl-redirect", false);
        globals.proxy_protocol = on("use-proxy-protocol", false);
        globals.http2 = on("use-http2", true);
        let (hsts, sub, preload) =
            (on("hsts", true), on("hsts-include-subdomains", true), on("hsts-preload", false));
        let forwarded = on("use-forwarded-headers", false);
        let no_log = on("disable-access-log", false);
        let mut checked = |name: &str, kind: ValueKind| {
            let words = kind.words(text(name)?);
            if words.is_none() {
                problems.push(format!("key \"{name}\" has an invalid value and no effect"));
            }
            words
        };
        let age = checked("hsts-max-age", Count).unwrap_or_else(|| "31536000".to_owned());
        let parts = [
            Some(format!("max-age={age}")),
            sub.then(|| "includeSubDomains".to_owned()),
            preload.then(|| "preload".to_owned()),
        ];
        globals.hsts = hsts.then(|| parts.into_iter().flatten().collect::<Vec<_>>().join("; "));
        if let Some(count) = checked("proxy-buffers-number", Count) {
            let size = checked("proxy-buffer-size", Size).unwrap_or_else(|| "4k".to_owned());
            globals.http.push(format!("proxy_buffers {count} {size};"));
        }
        if let Some(code) = checked("http-redirect-code", OneOf(&["301", "302", "307", "308"])) {
            globals.redirect_code = code.parse().unwrap_or(308);
        }
        let levels = OneOf(&["debug", "info", "notice", "warn", "error", "crit", "alert", "emerg"]);
        let level = checked("error-log-level", levels).unwrap_or_else(|| "notice".to_owned());
        globals.main.push(format!("error_log /dev/stderr {level};"));
        if let Some(field) = checked("forwarded-for-header", ValueKind::Text)
            .or(forwarded.then(|| "\"X-Forwarded-For\"".to_owned()))
        {
            let trusted = text("proxy-real-ip-cidr").and_then(networks).unwrap_or_default();
            if forwarded && trusted.is_empty() {
                problems.push("key \"use-forwarded-headers\" needs \"proxy-real-ip-cidr\": anybody could send these fields".to_owned());
            } else if forwarded {
                globals.forwarded = Some(Forwarded { field, networks: trusted });
            }
        }
        let types = |text: &str| {
            let is_type = |word: &str| {
                word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/+-.*".contains(&byte))
            };
            text.split_ascii_whitespace().all(is_type).then(|| text.to_owned())
        };
        for (name, directive) in [("gzip-types", "gzip_types"), ("brotli-types", "brotli_types")] {
            let listed = text(name)
                .and_then(types)
                .filter(|types| types != "*")
                .unwrap_or_else(|| COMPRESSED.to_owned());
            globals.http.push(format!("{directive} {listed};"));
        }
        let buffers = |text: &str| {
            let words: Vec<_> = text.split_ascii_whitespace().collect();
            matches!(&words[..], [count, size] if Count.words(count).is_some() && Size.words(size).is_some())
                .then(|| words.join(" "))
        };
        if let Some(buffers) = text("large-client-header-buffers").and_then(buffers) {
            globals.http.push(format!("large_client_header_buffers {buffers};"));
        }
        globals.balancing = text("load-balance").and_then(crate::annotation::balancing);
        // The authors of this map may write the configuration anyway, so the format is taken verbatim.
        if let Some(format) = text("log-format-upstream").and_then(quote::verbatim) {
            globals.http.push(format!("log_format ingress {format};"));
        } else {
            globals.http.push("log_format ingress '$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\" $request_length $request_time [$proxy_host] $upstream_addr $upstream_response_length $upstream_response_time $upstream_status $ingress_request_id';".to_owned());
        }
        globals
            .http
            .push(if no_log { "access_log off;" } else { "access_log /dev/stdout ingress;" }.to_owned());
        for (name, lines) in [
            ("main-snippet", &mut globals.main),
            ("http-snippet", &mut globals.http),
            ("server-snippet", &mut globals.server),
            ("location-snippet", &mut globals.location),
        ] {
            lines.extend(text(name).into_iter().flat_map(str::lines).map(str::to_owned));
        }
        for (name, directive) in [("add-headers", "add_header"), ("proxy-set-headers", "proxy_set_header")] {
            let Some(reference) = text(name) else { continue };
            let Some(map) = other(reference) else {
                problems.push(format!("key \"{name}\": config map \"{reference}\" is missing"));
                continue;
            };
            for (field, value) in &map.data {
                match quote::verbatim(value).filter(|_| quote::is_field_name(field)) {
                    Some(value) => globals.location.push(format!("{directive} {field} {value};")),
                    None => problems.push(format!("key \"{name}\": field \"{field}\" is invalid")),
                }
            }
        }
        match text("global-rate-limit-status-code").map(str::parse) {
            None => {}
            Some(Ok(code)) if (400..=599).contains(&code) => globals.global_limit_status = code,
            Some(_) => {
                problems.push(
                    "key \"global-rate-limit-status-code\" has an invalid value and no effect".to_owned(),
                );
            }
        }
        globals.problems = problems;
        globals
    }
}

/// Rows of the document for operators.
pub fn rows() -> String {
    let simple = DIRECTIVES.iter().map(|(name, _, directive, _)| (*name, format!("`{directive}`")));
    let built = BUILT.iter().map(|(name, text)| (*name, (*text).to_owned()));
    let mut rows: Vec<_> = simple.chain(built).collect();
    rows.sort_unstable();
    rows.iter().map(|(name, text)| format!("| `{name}` | {text} |\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation::table::Mapping;

    fn read(pairs: &[(&str, &str)]) -> Globals {
        let data = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Globals::read(Some(&ConfigMap { data, ..ConfigMap::default() }), |_| None)
    }

    #[test]
    fn keys_become_directives() {
        let globals = read(&[
            ("proxy-body-size", "8m"),
            ("hsts", "false"),
            ("load-balance", "ewma"),
            ("odd", "1"),
            ("keep-alive", "x"),
        ]);
        assert!(globals.http.contains(&"client_max_body_size 8m;".to_owned()));
        assert_eq!((globals.hsts, globals.balancing.as_deref()), (None, Some("least_time header;")));
        assert_eq!(globals.problems.len(), 2);
    }

    #[test]
    fn forwarded_fields_need_trusted_networks() {
        assert!(read(&[("use-forwarded-headers", "true")]).forwarded.is_none());
        let globals = read(&[("use-forwarded-headers", "true"), ("proxy-real-ip-cidr", "10.0.0.0/8")]);
        assert_eq!(globals.forwarded.unwrap().networks, ["10.0.0.0/8"]);
    }

    #[test]
    fn keys_have_the_directives_of_annotations() {
        for (name, _, directive, kind) in DIRECTIVES {
            if let Some(Mapping::Location(other, other_kind)) =
                crate::annotation::table::find(name).map(|a| &a.mapping)
            {
                assert_eq!((directive, kind), (other, other_kind), "{name}");
            }
        }
    }
}
