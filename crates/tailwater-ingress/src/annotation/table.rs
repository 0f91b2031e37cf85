//! All annotations of ingress-nginx and `request-timeout`, which is our own, with what becomes of each. The table of `docs/kubernetes.md` is made of it.

use super::value::ValueKind::{
    self, AnyOf, Ciphers, Count, Kilobytes, OneOf, Seconds, Size, Switch, Text, TwoTexts,
};

/// Beginning of the names.
pub const PREFIX: &str = "nginx.ingress.kubernetes.io/";

/// Annotation of ingress-nginx.
pub struct Annotation {
    /// Name without [`PREFIX`].
    pub name: &'static str,
    /// Place of the value.
    pub mapping: Mapping,
}

/// Place of the value of an annotation.
pub enum Mapping {
    /// Directive of each location, with its kind of value.
    Location(&'static str, ValueKind),
    /// Directive of the server, with its kind of value.
    Server(&'static str, ValueKind),
    /// Several directives, or a part of one, as this text tells.
    Built(&'static str),
    /// Part of the configuration; only with `--allow-snippets`.
    Snippet(&'static str),
    /// Not mapped, for this reason. The Ingress is served without it.
    Ignored(&'static str),
}

const fn a(name: &'static str, mapping: Mapping) -> Annotation {
    Annotation { name, mapping }
}

/// Failures after which a request goes to the next server.
pub(crate) const NEXT_UPSTREAM: &[&str] = &[
    "error",
    "timeout",
    "invalid_header",
    "http_500",
    "http_502",
    "http_503",
    "http_504",
    "http_403",
    "http_404",
    "http_429",
    "non_idempotent",
    "off",
];
/// Versions of TLS.
pub(crate) const PROTOCOLS: &[&str] = &["SSLv2", "SSLv3", "TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];

use Mapping::{Built, Ignored, Location, Server, Snippet};

/// The table, by name.
pub const ANNOTATIONS: &[Annotation] = &[
    a("affinity", Built("`sticky cookie`; only the value `cookie`")),
    a("affinity-canary-behavior", Ignored("canaries choose for each request, as with `legacy`")),
    a("affinity-mode", Ignored("sessions move only when their server is gone, as with `persistent`")),
    a("app-root", Built("`return 302` for `/`")),
    a("auth-always-set-cookie", Built("`add_header Set-Cookie … always`")),
    a("auth-cache-duration", Built("`proxy_cache_valid`")),
    a("auth-cache-key", Built("`proxy_cache_key`")),
    a("auth-keepalive", Ignored("connections are kept by default")),
    a("auth-keepalive-requests", Ignored("connections are kept by default")),
    a("auth-keepalive-share-vars", Ignored("no variables are shared")),
    a("auth-keepalive-timeout", Ignored("connections are kept by default")),
    a("auth-method", Built("`proxy_method`")),
    a("auth-proxy-set-headers", Built("`proxy_set_header`, from a ConfigMap")),
    a("auth-realm", Built("`auth_basic`")),
    a("auth-request-redirect", Built("`proxy_set_header X-Auth-Request-Redirect`")),
    a("auth-response-headers", Built("`auth_request_set`, `proxy_set_header`")),
    a("auth-secret", Built("`auth_basic_user_file`")),
    a("auth-secret-type", Built("`auth-file` or `auth-map`")),
    a("auth-signin", Built("`error_page 401`")),
    a("auth-signin-redirect-param", Built("argument of the URL of `auth-signin`")),
    a("auth-snippet", Snippet("in the location that asks the authentication service")),
    a("auth-tls-error-page", Built("`error_page 495 496`")),
    a("auth-tls-match-cn", Built("`if ($ssl_client_s_dn !~ …)`")),
    a("auth-tls-pass-certificate-to-upstream", Built("`proxy_set_header ssl-client-cert`")),
    a("auth-tls-secret", Built("`ssl_client_certificate`")),
    a("auth-tls-verify-client", Built("`ssl_verify_client`")),
    a("auth-tls-verify-depth", Built("`ssl_verify_depth`")),
    a("auth-type", Built("`basic`; `digest` is answered with 503")),
    a("auth-url", Built("`auth_request`")),
    a("backend-protocol", Built("`proxy_pass`, `grpc_pass` or `fastcgi_pass`")),
    a("canary", Built("`split_clients`, `map`")),
    a("canary-by-cookie", Built("`map $cookie_…`")),
    a("canary-by-header", Built("`map $http_…`")),
    a("canary-by-header-pattern", Built("`map $http_…`")),
    a("canary-by-header-value", Built("`map $http_…`")),
    a("canary-weight", Built("`split_clients`")),
    a("canary-weight-total", Built("`split_clients`")),
    a("client-body-buffer-size", Location("client_body_buffer_size", Size)),
    a("configuration-snippet", Snippet("in each location")),
    a("connection-proxy-header", Built("`proxy_set_header Connection`")),
    a("cors-allow-credentials", Built("`add_header`")),
    a("cors-allow-headers", Built("`add_header`")),
    a("cors-allow-methods", Built("`add_header`")),
    a("cors-allow-origin", Built("`map $http_origin`, `add_header`")),
    a("cors-expose-headers", Built("`add_header`")),
    a("cors-max-age", Built("`add_header`")),
    a("custom-headers", Built("`add_header`, from a ConfigMap")),
    a("custom-http-errors", Built("`proxy_intercept_errors`, `error_page`; needs `default-backend`")),
    a("default-backend", Built("service when there are no endpoints, and for `custom-http-errors`")),
    a("denylist-source-range", Built("`deny`")),
    a("disable-proxy-intercept-errors", Built("`proxy_intercept_errors off`")),
    a("enable-access-log", Built("`access_log off`")),
    a("enable-cors", Built("`add_header`, `return 204` for preflights")),
    a("enable-global-auth", Ignored("there is no global authentication")),
    a("enable-influxdb", Ignored("no InfluxDB; Prometheus and OpenTelemetry are built in")),
    a("enable-modsecurity", Built("`modsecurity`, with the rules of the option `--modsecurity-rules`")),
    a("enable-opentelemetry", Built("`otel_trace`; the exporter is in the ConfigMap (`http-snippet`)")),
    a("enable-opentracing", Ignored("OpenTelemetry took its place")),
    a(
        "enable-owasp-core-rules",
        Built("`modsecurity_rules_file`, with the rules of the option `--owasp-core-rules`"),
    ),
    a("enable-rewrite-log", Location("rewrite_log", Switch)),
    a("fastcgi-index", Built("`fastcgi_index`")),
    a("fastcgi-params-configmap", Built("`fastcgi_param`, from a ConfigMap")),
    a("force-ssl-redirect", Built("`return 308`")),
    a("from-to-www-redirect", Built("a `server` with `return 308`")),
    a("global-rate-limit", Built("`limit_req_zone … fleet=`; needs the option `--fleet-engine`")),
    a("global-rate-limit-ignored-cidrs", Built("`geo`: addresses without the limit")),
    a("global-rate-limit-key", Built("key of `limit_req_zone`")),
    a("global-rate-limit-window", Built("with `global-rate-limit`, the rate of `limit_req_zone`")),
    a("http2-push-preload", Ignored("browsers have no server push any more")),
    a("influxdb-host", Ignored("see `enable-influxdb`")),
    a("influxdb-measurement", Ignored("see `enable-influxdb`")),
    a("influxdb-port", Ignored("see `enable-influxdb`")),
    a("influxdb-server-name", Ignored("see `enable-influxdb`")),
    a("limit-allowlist", Built("`geo`: addresses without limits")),
    a("limit-burst-multiplier", Built("`burst` of `limit_req`")),
    a("limit-connections", Built("`limit_conn`")),
    a("limit-rate", Location("limit_rate", Kilobytes)),
    a("limit-rate-after", Location("limit_rate_after", Kilobytes)),
    a("limit-rpm", Built("`limit_req`")),
    a("limit-rps", Built("`limit_req`")),
    a("limit-whitelist", Built("older name of `limit-allowlist`")),
    a(
        "load-balance",
        Built("`least_time header` for `ewma`, `least_conn`, `ip_hash`, `random`; round robin by default"),
    ),
    a("mirror-host", Built("`proxy_set_header Host` of the copy")),
    a("mirror-request-body", Location("mirror_request_body", Switch)),
    a("mirror-target", Built("`mirror`")),
    a("modsecurity-snippet", Snippet("`modsecurity_rules`")),
    a("modsecurity-transaction-id", Built("`modsecurity_transaction_id`")),
    a("opentelemetry-operation-name", Built("`otel_span_name`")),
    a("opentelemetry-trust-incoming-span", Built("`otel_trace_context`")),
    a("opentracing-trust-incoming-span", Ignored("OpenTelemetry took its place")),
    a("permanent-redirect", Built("`return 301`")),
    a("permanent-redirect-code", Built("status of `permanent-redirect`")),
    a("preserve-trailing-slash", Ignored("redirects to HTTPS always preserve the whole URI")),
    a("proxy-body-size", Location("client_max_body_size", Size)),
    a("proxy-buffer-size", Location("proxy_buffer_size", Size)),
    a("proxy-buffering", Location("proxy_buffering", Switch)),
    a("proxy-buffers-number", Built("`proxy_buffers`")),
    a("proxy-busy-buffers-size", Location("proxy_busy_buffers_size", Size)),
    a("proxy-connect-timeout", Location("proxy_connect_timeout", Seconds)),
    a("proxy-cookie-domain", Location("proxy_cookie_domain", TwoTexts)),
    a("proxy-cookie-path", Location("proxy_cookie_path", TwoTexts)),
    a("proxy-http-version", Location("proxy_http_version", OneOf(&["1.0", "1.1", "2"]))),
    a("proxy-max-temp-file-size", Location("proxy_max_temp_file_size", Size)),
    a("proxy-next-upstream", Location("proxy_next_upstream", AnyOf(NEXT_UPSTREAM))),
    a("proxy-next-upstream-timeout", Location("proxy_next_upstream_timeout", Seconds)),
    a("proxy-next-upstream-tries", Location("proxy_next_upstream_tries", Count)),
    a("proxy-read-timeout", Location("proxy_read_timeout", Seconds)),
    a("proxy-redirect-from", Built("`proxy_redirect`")),
    a("proxy-redirect-to", Built("`proxy_redirect`")),
    a("proxy-request-buffering", Location("proxy_request_buffering", Switch)),
    a("proxy-send-timeout", Location("proxy_send_timeout", Seconds)),
    a("proxy-ssl-ciphers", Location("proxy_ssl_ciphers", Ciphers)),
    a("proxy-ssl-name", Location("proxy_ssl_name", Text)),
    a("proxy-ssl-protocols", Location("proxy_ssl_protocols", AnyOf(PROTOCOLS))),
    a(
        "proxy-ssl-secret",
        Built("`proxy_ssl_certificate`, `proxy_ssl_certificate_key`, `proxy_ssl_trusted_certificate`"),
    ),
    a("proxy-ssl-server-name", Location("proxy_ssl_server_name", Switch)),
    a("proxy-ssl-verify", Location("proxy_ssl_verify", Switch)),
    a("proxy-ssl-verify-depth", Location("proxy_ssl_verify_depth", Count)),
    a("relative-redirects", Built("`absolute_redirect off`")),
    a("request-timeout", Location("request_timeout", Seconds)),
    a("rewrite-target", Built("`rewrite … break`")),
    a("satisfy", Location("satisfy", OneOf(&["any", "all"]))),
    a("server-alias", Built("`server_name`")),
    a("server-snippet", Snippet("in the server of the host")),
    a("service-upstream", Built("`server` with the address of the service")),
    a("session-cookie-change-on-failure", Ignored("a session moves when its server fails")),
    a("session-cookie-conditional-samesite-none", Ignored("the attribute is the same for all browsers")),
    a("session-cookie-domain", Built("`sticky cookie … domain=`")),
    a("session-cookie-expires", Built("`sticky cookie … expires=`")),
    a("session-cookie-max-age", Built("`sticky cookie … expires=`, which sets `Max-Age`, too")),
    a("session-cookie-name", Built("`sticky cookie`")),
    a("session-cookie-path", Built("`sticky cookie … path=`")),
    a("session-cookie-samesite", Built("`sticky cookie … samesite=`")),
    a("session-cookie-secure", Built("`sticky cookie … secure`")),
    a("ssl-ciphers", Server("ssl_ciphers", Ciphers)),
    a(
        "ssl-passthrough",
        Built("`ssl_preread`, `pass` in `stream`; the backend of the path `/` gets the connection"),
    ),
    a("ssl-prefer-server-ciphers", Server("ssl_prefer_server_ciphers", Switch)),
    a("ssl-redirect", Built("`return 308`")),
    a("stream-snippet", Ignored("the block `stream` is of the controller")),
    a("temporal-redirect", Built("`return 302`")),
    a("temporal-redirect-code", Built("status of `temporal-redirect`")),
    a("upstream-hash-by", Built("`hash … consistent`")),
    a("upstream-hash-by-subset", Ignored("each key has one server")),
    a("upstream-hash-by-subset-size", Ignored("each key has one server")),
    a("upstream-vhost", Built("`proxy_set_header Host`")),
    a("use-regex", Built("`location ~*`")),
    a("whitelist-source-range", Built("`allow`, `deny all`; the name `allowlist-source-range` is the same")),
    a("allowlist-source-range", Built("`allow`, `deny all`")),
    a("x-forwarded-prefix", Built("`proxy_set_header X-Forwarded-Prefix`")),
];

/// Finds an annotation by its name without [`PREFIX`].
pub fn find(name: &str) -> Option<&'static Annotation> {
    ANNOTATIONS.iter().find(|annotation| annotation.name == name)
}

/// Rows of the document for operators: those that are mapped, or those that are not.
pub fn rows(is_mapped: bool) -> String {
    let mut rows = String::new();
    for Annotation { name, mapping } in ANNOTATIONS {
        let (text, mapped) = match mapping {
            Location(directive, _) | Server(directive, _) => (format!("`{directive}`"), true),
            Built(text) => ((*text).to_owned(), true),
            Snippet(text) => (format!("{text}; only with `--allow-snippets`"), true),
            Ignored(reason) => ((*reason).to_owned(), false),
        };
        if mapped == is_mapped {
            rows += &format!("| `{name}` | {text} |\n");
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_there_once() {
        let mut names: Vec<_> = ANNOTATIONS.iter().map(|annotation| annotation.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ANNOTATIONS.len());
        assert!(names.len() > 110);
    }
}
