//! Annotations about URLs, fields, cross-origin requests, copies and traces.

use super::access::{target_url, url};
use super::policy::{Protocol, Reader};
use super::value;
use crate::quote;

/// Methods that cross-origin requests may have by default.
const CORS_METHODS: &str = "GET, PUT, POST, DELETE, PATCH, OPTIONS";
/// Fields that cross-origin requests may have by default.
const CORS_FIELDS: &str = "DNT,Keep-Alive,User-Agent,X-Requested-With,If-Modified-Since,Cache-Control,Content-Type,Range,Authorization";
/// Seconds for which a browser may remember a preflight by default.
const CORS_AGE: u32 = 1_728_000;

impl Reader<'_> {
    /// Redirects of whole locations.
    pub(super) fn read_redirects(&mut self) {
        let status = |text: &str| text.parse::<u16>().ok().filter(|code| (300..=308).contains(code));
        let target = |text: &str| if text.starts_with('/') { quote::template(text) } else { url(text) };
        for (name, code_name, default) in [
            ("temporal-redirect", "temporal-redirect-code", 302),
            ("permanent-redirect", "permanent-redirect-code", 301),
        ] {
            let code = self.checked(code_name, status).unwrap_or(default);
            if let Some(target) = self.checked(name, target) {
                self.policy.redirect = Some((code, target));
            }
        }
        self.policy.ssl_redirect = self.switch("ssl-redirect");
        self.policy.force_ssl_redirect = self.switch("force-ssl-redirect").is_some_and(|on| on);
        if self.switch("relative-redirects").is_some_and(|on| on) {
            self.policy.location.push("absolute_redirect off;".to_owned());
        }
    }

    /// Rewrites and regular expressions.
    pub(super) fn read_rewrite(&mut self) {
        self.policy.use_regex = self.switch("use-regex").is_some_and(|on| on);
        self.policy.rewrite = self.checked("rewrite-target", |text| {
            let has_begin = text.starts_with('/') || text.starts_with('$');
            quote::rewrite_target(text).filter(|_| has_begin && !text.contains(char::is_whitespace))
        });
        let is_path = |text: &str| text.starts_with('/') || text.starts_with("http");
        self.policy.app_root =
            self.checked("app-root", |text| quote::literal(text).filter(|_| is_path(text)));
    }

    /// Other names of hosts, and responses by other services.
    pub(super) fn read_names(&mut self) {
        let hosts = |text: &str| {
            let hosts: Vec<_> =
                text.split([',', ' ']).filter(|host| !host.is_empty()).map(str::to_owned).collect();
            hosts.iter().all(|host| quote::is_host(host)).then_some(hosts)
        };
        self.policy.aliases = self.checked("server-alias", hosts).unwrap_or_default();
        self.policy.www_redirect = self.switch("from-to-www-redirect").is_some_and(|on| on);
        let service = |text: &str| crate::cluster::object::is_name(text).then(|| text.to_owned());
        self.policy.default_backend = self.checked("default-backend", service);
        let statuses = |text: &str| {
            let status =
                |text: &str| text.trim().parse::<u16>().ok().filter(|code| (300..=599).contains(code));
            text.split(',').map(status).collect::<Option<Vec<_>>>()
        };
        self.policy.error_statuses = self.checked("custom-http-errors", statuses).unwrap_or_default();
        if !self.policy.error_statuses.is_empty() && self.policy.default_backend.is_none() {
            let text = "annotation \"custom-http-errors\" has no effect without \"default-backend\"";
            self.policy.problems.push(text.to_owned());
        }
        if self.switch("disable-proxy-intercept-errors").is_some_and(|on| on) {
            self.policy.error_statuses.clear();
        }
    }

    /// Fields of requests and responses.
    pub(super) fn read_fields(&mut self) {
        for (annotation, field) in [
            ("upstream-vhost", "Host"),
            ("connection-proxy-header", "Connection"),
            ("x-forwarded-prefix", "X-Forwarded-Prefix"),
        ] {
            if let Some(word) = self.checked(annotation, quote::template) {
                self.policy.request_fields.push((field.to_owned(), word));
            }
        }
        if self.switch("enable-access-log") == Some(false) {
            self.policy.location.push("access_log off;".to_owned());
        }
        if let Some(reference) = self.text("custom-headers") {
            match self.config_map(reference) {
                Ok(map) => {
                    for (name, value) in &map.data {
                        match quote::literal(value).filter(|_| quote::is_field_name(name)) {
                            Some(value) => {
                                self.policy.fields.push(format!("add_header {name} {value} always;"))
                            }
                            None => self
                                .policy
                                .problems
                                .push(format!("annotation \"custom-headers\": field \"{name}\" is invalid")),
                        }
                    }
                }
                Err(error) => self.policy.problems.push(format!("annotation \"custom-headers\": {error}")),
            }
        }
        let from = self.checked("proxy-redirect-from", no_space);
        let to = self.checked("proxy-redirect-to", no_space);
        match (from.as_deref(), to) {
            (Some("\"off\""), _) => self.policy.location.push("proxy_redirect off;".to_owned()),
            // The default needs a URL in proxy_pass, which no location has.
            (Some("\"default\"") | None, None) => {}
            (Some(from), Some(to)) if from != "\"default\"" => {
                self.policy.location.push(format!("proxy_redirect {from} {to};"));
            }
            _ => self.invalid("proxy-redirect-from"),
        }
        if let Some(count) = self.number("proxy-buffers-number").filter(|count| (1..=1024).contains(count)) {
            let size = self.checked("proxy-buffer-size", |text| value::ValueKind::Size.words(text));
            self.policy
                .location
                .push(format!("proxy_buffers {count} {};", size.unwrap_or_else(|| "4k".to_owned())));
        }
    }

    /// Requests of pages of other origins.
    pub(super) fn read_cors(&mut self) {
        if self.switch("enable-cors") != Some(true) {
            return;
        }
        let id = self.policy.id.clone();
        let origins = self.checked("cors-allow-origin", origins).unwrap_or_else(|| vec!["*".to_owned()]);
        let any = origins.iter().any(|origin| origin == "*");
        let mut map = format!("map $http_origin $ingress_cors_{id} {{ default ");
        if any {
            map += "\"*\"; }"
        } else {
            map += "\"\"; ";
            for pattern in &origins {
                map += &format!("{pattern} $http_origin; ");
            }
            map += "}";
        }
        self.policy.http.push(map);
        self.policy.http.push(format!(
            "map $request_method:$ingress_cors_{id} $ingress_preflight_{id} {{ default \"\"; \"~^OPTIONS:.\" 1; }}"
        ));
        let words = |text: &str| {
            let is_listed = |c: char| c.is_ascii_alphanumeric() || "-_*, ".contains(c);
            quote::literal(text).filter(|_| text.chars().all(is_listed))
        };
        let methods =
            self.checked("cors-allow-methods", words).unwrap_or_else(|| format!("\"{CORS_METHODS}\""));
        let names = self.checked("cors-allow-headers", words).unwrap_or_else(|| format!("\"{CORS_FIELDS}\""));
        let age = self.number("cors-max-age").unwrap_or(CORS_AGE);
        let mut fields = vec![format!("add_header Access-Control-Allow-Origin $ingress_cors_{id} always;")];
        if !any {
            fields.push("add_header Vary Origin always;".to_owned());
        }
        if self.switch("cors-allow-credentials") != Some(false) {
            fields.push("add_header Access-Control-Allow-Credentials true always;".to_owned());
        }
        if let Some(exposed) = self.checked("cors-expose-headers", words) {
            fields.push(format!("add_header Access-Control-Expose-Headers {exposed} always;"));
        }
        fields.push(format!("add_header Access-Control-Allow-Methods {methods} always;"));
        fields.push(format!("add_header Access-Control-Allow-Headers {names} always;"));
        let preflight = format!(
            "if ($ingress_preflight_{id}) {{ {} add_header Access-Control-Max-Age {age} always; return 204; }}",
            fields.join(" ")
        );
        self.policy.first.push(preflight);
        self.policy.fields.extend(fields);
    }

    /// Copies of requests.
    pub(super) fn read_mirror(&mut self) {
        let Some(target) = self.checked("mirror-target", target_url) else { return };
        let path = format!("/_tailwater-ingress/mirror/{}", self.policy.owner);
        let host = self.checked("mirror-host", quote::template);
        let passes_body = self.switch("mirror-request-body") != Some(false);
        self.policy.location.push(format!("mirror {path};"));
        self.policy.internal.extend([
            format!("location = {path} {{"),
            "internal;".to_owned(),
            format!("set $ingress_mirror_url {target};"),
        ]);
        if let Some(host) = host {
            self.policy.internal.push(format!("proxy_set_header Host {host};"));
        }
        if !passes_body {
            let lines = ["proxy_pass_request_body off;", "proxy_set_header Content-Length \"\";"];
            self.policy.internal.extend(lines.map(str::to_owned));
        }
        self.policy.internal.extend(["proxy_pass $ingress_mirror_url;".to_owned(), "}".to_owned()]);
    }

    /// Traces of OpenTelemetry.
    pub(super) fn read_tracing(&mut self) {
        if let Some(on) = self.switch("enable-opentelemetry") {
            self.policy.location.push(format!("otel_trace {};", if on { "on" } else { "off" }));
        }
        if let Some(on) = self.switch("opentelemetry-trust-incoming-span") {
            self.policy
                .location
                .push(format!("otel_trace_context {};", if on { "propagate" } else { "inject" }));
        }
        if let Some(name) = self.checked("opentelemetry-operation-name", quote::template) {
            self.policy.location.push(format!("otel_span_name {name};"));
        }
    }

    /// FastCGI.
    pub(super) fn read_fastcgi(&mut self) {
        if self.policy.protocol != Protocol::Fastcgi {
            return;
        }
        self.policy.location.push("include fastcgi_params;".to_owned());
        self.policy.location.push("fastcgi_param SCRIPT_FILENAME $fastcgi_script_name;".to_owned());
        if let Some(index) = self.checked("fastcgi-index", quote::literal) {
            self.policy.location.push(format!("fastcgi_index {index};"));
        }
        let Some(reference) = self.text("fastcgi-params-configmap") else { return };
        match self.config_map(reference) {
            Ok(map) => {
                for (name, value) in &map.data {
                    match quote::template(value).filter(|_| quote::is_field_name(name)) {
                        Some(value) => self.policy.location.push(format!("fastcgi_param {name} {value};")),
                        None => self
                            .policy
                            .problems
                            .push(format!("annotation \"fastcgi-params-configmap\": \"{name}\" is invalid")),
                    }
                }
            }
            Err(error) => {
                self.policy.problems.push(format!("annotation \"fastcgi-params-configmap\": {error}"))
            }
        }
    }

    /// Certificates of connections to endpoints.
    pub(super) fn read_upstream_tls(&mut self) {
        let Some(reference) = self.text("proxy-ssl-secret") else { return };
        let secret = match self.secret(reference) {
            Ok(secret) => secret,
            Err(error) => return self.policy.deny(format!("annotation \"proxy-ssl-secret\": {error}")),
        };
        if let (Some(chain), Some(key)) = (secret.data.get("tls.crt"), secret.data.get("tls.key")) {
            if let Err(error) = crate::site::certificate::check(chain, key) {
                return self.policy.deny(format!("annotation \"proxy-ssl-secret\": {error}"));
            }
            let chain = self.files.add("crt", chain.clone());
            let key = self.files.add("key", key.clone());
            self.policy.location.push(format!("proxy_ssl_certificate {chain};"));
            self.policy.location.push(format!("proxy_ssl_certificate_key {key};"));
        }
        if let Some(authorities) = secret.data.get("ca.crt") {
            if let Err(error) = tw_tls::authorities(authorities) {
                return self.policy.deny(format!("annotation \"proxy-ssl-secret\": {error}"));
            }
            let path = self.files.add("ca", authorities.clone());
            self.policy.location.push(format!("proxy_ssl_trusted_certificate {path};"));
        } else if self.switch("proxy-ssl-verify") == Some(true) {
            self.policy.deny("annotation \"proxy-ssl-verify\": the secret has no \"ca.crt\"".to_owned());
        }
    }
}

fn no_space(text: &str) -> Option<String> {
    quote::template(text).filter(|_| !text.contains(char::is_whitespace))
}

/// Patterns of origins, as words of a map; `*` for all.
fn origins(text: &str) -> Option<Vec<String>> {
    let origin = |text: &str| {
        if text == "*" {
            return Some(text.to_owned());
        }
        let (scheme, rest) = text.split_once("://")?;
        let is_scheme = (1..=32).contains(&scheme.len())
            && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let is_rest = rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:*[]".contains(&byte));
        let (wild, rest) = match rest.strip_prefix("*.") {
            Some(rest) => ("[A-Za-z0-9-]+\\.", rest),
            None => ("", rest),
        };
        if !is_scheme || !is_rest || rest.is_empty() || rest.contains('*') {
            return None;
        }
        quote::verbatim(&format!(
            "~*^{}://{wild}{}$",
            quote::regex_escaped(scheme),
            quote::regex_escaped(rest)
        ))
    };
    text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(origin).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation::access::field_names;

    #[test]
    fn origins_become_patterns() {
        for (text, expected) in [
            ("https://a.example", Some(vec![r#""~*^https://a\\.example$""#])),
            ("https://*.a.b:8443", Some(vec![r#""~*^https://[A-Za-z0-9-]+\\.a\\.b\\:8443$""#])),
            ("*", Some(vec!["*"])),
            ("https://a\"; x", None),
            ("https://a.*", None),
            ("null", None),
        ] {
            assert_eq!(
                origins(text),
                expected.map(|all| all.into_iter().map(str::to_owned).collect()),
                "{text}"
            );
        }
        assert_eq!(field_names("A, b-c"), Some(vec!["A".to_owned(), "b-c".to_owned()]));
        assert_eq!(field_names("A; b"), None);
        assert_eq!(url("http://a/$request_uri").as_deref(), Some("\"http://a/${request_uri}\""));
        for odd in
            ["file:///etc", "http://", "http:///x", "http://a b", "http://a\"", "http://$document_root"]
        {
            assert_eq!(url(odd), None, "{odd}");
        }
        for (text, expected) in [
            ("https://$host/oauth2/auth", true),
            ("http://auth.ns.svc.cluster.local:8080/check?rd=$request_uri", true),
            ("https://test.example$request_uri", true),
            ("http://[::1]:80/", true),
            ("http://unix:/run/tailwater-ingress/api.sock:/api/", false),
            ("http://UNIX:/run/tailwater-ingress/api.sock:/api/", false),
            ("http://$http_x/", false),
            ("http://${arg_a}:80/", false),
            ("http://$host:/run/tailwater-ingress/api.sock:/", false),
            ("http://u$http_x/", false),
            ("http://a$http_x/", false),
            ("http://a${host}b/", false),
        ] {
            assert_eq!(target_url(text).is_some(), expected, "{text}");
        }
        for odd in ["Transfer-Encoding", "Host", "X, content-length", "Connection"] {
            assert_eq!(field_names(odd), None, "{odd}");
        }
    }
}
