//! Annotations that restrict access. One that cannot be applied denies the locations instead of opening them.

use super::policy::Reader;
use super::value;
use crate::quote;

/// Largest burst of a rate limit.
const BURST_MAX: u32 = 1_000_000;
/// Name of the fleet of all replicas.
pub(crate) const FLEET: &str = "ingress";

/// Number of requests, at least one.
fn count(text: &str) -> Option<u32> {
    let is_number = (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|count| is_number && *count > 0)
}

/// Seconds of a window: a number with `s`, `m`, `h` or `d`; at least one.
fn window(text: &str) -> Option<u64> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    count(&text[..text.len() - 1]).map(|number| u64::from(number) * unit)
}

impl Reader<'_> {
    /// Networks of clients.
    pub(super) fn read_networks(&mut self) {
        if let Some(denied) = self.required("denylist-source-range", value::networks) {
            self.policy.location.extend(denied.iter().map(|network| format!("deny {network};")));
        }
        let mut has_allowed = false;
        for name in ["whitelist-source-range", "allowlist-source-range"] {
            if let Some(allowed) = self.required(name, value::networks) {
                self.policy.location.extend(allowed.iter().map(|network| format!("allow {network};")));
                has_allowed = true;
            }
        }
        if has_allowed {
            self.policy.location.push("deny all;".to_owned());
        }
    }

    /// Limits of requests and connections.
    pub(super) fn read_limits(&mut self) {
        let id = self.policy.id.clone();
        let free = self.checked("limit-allowlist", value::networks);
        let free = free.or_else(|| self.checked("limit-whitelist", value::networks));
        let key = self.limit_key(free, "limit", "$binary_remote_addr");
        let multiplier = self.number("limit-burst-multiplier").unwrap_or(5).max(1);
        if let Some(count) = self.number("limit-connections").filter(|count| *count > 0) {
            self.policy.http.push(format!("limit_conn_zone {key} zone=ingress_conn_{id}:5m;"));
            self.policy.location.push(format!("limit_conn ingress_conn_{id} {count};"));
        }
        for (name, unit) in [("limit-rpm", "m"), ("limit-rps", "s")] {
            if let Some(rate) = self.number(name).filter(|rate| *rate > 0) {
                let burst = rate.saturating_mul(multiplier).min(BURST_MAX);
                self.policy
                    .http
                    .push(format!("limit_req_zone {key} zone=ingress_r{unit}_{id}:5m rate={rate}r/{unit};"));
                self.policy
                    .location
                    .push(format!("limit_req zone=ingress_r{unit}_{id} burst={burst} nodelay;"));
            }
        }
    }

    /// A rate that the replicas share: requests in a window, which all of them may come at once.
    pub(super) fn read_global_limit(&mut self) {
        if self.text("global-rate-limit") == Some("0") {
            return;
        }
        let Some(count) = self.required("global-rate-limit", count) else { return };
        let window = match self.text("global-rate-limit-window") {
            Some(text) => window(text).map(|seconds| (text, seconds)),
            None => Some(("1s", 1)),
        };
        let Some((window, seconds)) = window else {
            return self
                .policy
                .deny("annotation \"global-rate-limit-window\" has an invalid value".to_owned());
        };
        if self.options.fleet.is_none() {
            return self.policy.deny(
                "annotation \"global-rate-limit\" needs the option --fleet-engine, by which replicas share a rate".to_owned(),
            );
        }
        if u64::from(count) * 60 < seconds {
            return self.policy.deny(format!(
                "annotation \"global-rate-limit\" allows less than one request a minute ({count} in {window})"
            ));
        }
        // Rounded up: a rate is a whole number.
        let rate = match u64::from(count) % seconds {
            0 => format!("{}r/s", u64::from(count) / seconds),
            _ => format!("{}r/m", (u64::from(count) * 60).div_ceil(seconds)),
        };
        let key = if self.text("global-rate-limit-key").is_some() {
            // A limit of another key would be another limit.
            let Some(key) = self.required("global-rate-limit-key", quote::template) else { return };
            key
        } else {
            "$binary_remote_addr".to_owned()
        };
        let free = self.checked("global-rate-limit-ignored-cidrs", value::networks);
        let key = self.limit_key(free, "global", &key);
        let id = self.policy.id.clone();
        self.policy
            .http
            .push(format!("limit_req_zone {key} zone=ingress_global_{id}:5m rate={rate} fleet={FLEET};"));
        let burst = count.saturating_sub(1).min(BURST_MAX);
        let burst = if burst == 0 { String::new() } else { format!(" burst={burst} nodelay") };
        self.policy.location.push(format!("limit_req zone=ingress_global_{id}{burst};"));
        let has_other = ["limit-rps", "limit-rpm"].iter().any(|name| self.text(name).is_some());
        if !has_other {
            self.policy
                .location
                .push(format!("limit_req_status {};", self.options.globals.global_limit_status));
        }
    }

    /// Key of a limit that these networks do not have.
    fn limit_key(&mut self, free: Option<Vec<String>>, kind: &str, key: &str) -> String {
        let Some(free) = free else { return key.to_owned() };
        let id = self.policy.id.clone();
        let networks: Vec<_> = free.iter().map(|network| format!("{network} 0;")).collect();
        let applies = format!("$ingress_{kind}_applies_{id}");
        let limited_key = format!("$ingress_{kind}_key_{id}");
        self.policy.http.push(format!("geo {applies} {{ default 1; {} }}", networks.join(" ")));
        self.policy.http.push(format!("map {applies} {limited_key} {{ 0 \"\"; default {key}; }}"));
        limited_key
    }

    /// Passwords.
    pub(super) fn read_basic_auth(&mut self) {
        let Some(kind) = self.text("auth-type") else { return };
        if kind.trim() != "basic" {
            return self.policy.deny("annotation \"auth-type\" must be \"basic\"".to_owned());
        }
        let users = match self
            .text("auth-secret")
            .ok_or_else(|| "annotation \"auth-secret\" is missing".to_owned())
        {
            Ok(reference) => {
                self.secret(reference).and_then(|secret| users(secret, self.text("auth-secret-type")))
            }
            Err(error) => Err(error),
        };
        let users = match users {
            Ok(users) => users,
            Err(error) => return self.policy.deny(format!("annotation \"auth-secret\": {error}")),
        };
        let path = self.files.add("htpasswd", users);
        // The realm is shown to people and protects nothing.
        let realm = self.checked("auth-realm", quote::literal).unwrap_or_else(|| "\"\"".to_owned());
        let realm = if realm == "\"\"" { "\"Authentication Required\"".to_owned() } else { realm };
        self.policy.location.push(format!("auth_basic {realm};"));
        self.policy.location.push(format!("auth_basic_user_file {path};"));
        self.policy.request_fields.push(("Authorization".to_owned(), "\"\"".to_owned()));
    }

    /// A service that is asked about each request.
    pub(super) fn read_external_auth(&mut self) {
        let Some(url) = self.required("auth-url", target_url) else { return };
        let owner = self.policy.owner.clone();
        let id = self.policy.id.clone();
        let path = format!("/_tailwater-ingress/auth/{owner}");
        let mut lines = vec![
            format!("location = {path} {{"),
            "internal;".to_owned(),
            "access_log off;".to_owned(),
            format!("set $ingress_auth_url {url};"),
            "proxy_pass_request_body off;".to_owned(),
            "proxy_set_header Content-Length \"\";".to_owned(),
            "proxy_set_header X-Forwarded-Proto \"\";".to_owned(),
            "proxy_set_header X-Request-ID $ingress_request_id;".to_owned(),
            "proxy_set_header X-Original-URL $ingress_scheme://$ingress_host$request_uri;".to_owned(),
            "proxy_set_header X-Original-Method $request_method;".to_owned(),
            "proxy_set_header X-Sent-From tailwater-ingress;".to_owned(),
            "proxy_set_header X-Real-IP $remote_addr;".to_owned(),
            "proxy_set_header X-Forwarded-For $ingress_forwarded_for;".to_owned(),
        ];
        let redirect = self.required("auth-request-redirect", quote::template);
        lines.push(format!(
            "proxy_set_header X-Auth-Request-Redirect {};",
            redirect.unwrap_or_else(|| "$request_uri".to_owned())
        ));
        let is_method = |text: &str| {
            let is_known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"].contains(&text);
            is_known.then(|| text.to_owned())
        };
        if let Some(method) = self.required("auth-method", is_method) {
            lines.push(format!("proxy_method {method};"));
        }
        self.add_auth_fields(&mut lines);
        self.add_auth_cache(&mut lines);
        lines.extend(["proxy_buffering on;".to_owned(), "client_max_body_size 0;".to_owned()]);
        if let Some(snippet) = self.snippet("auth-snippet") {
            lines.extend(snippet.lines().map(str::to_owned));
        }
        lines.extend(["proxy_pass $ingress_auth_url;".to_owned(), "}".to_owned()]);
        self.policy.internal.extend(lines);
        self.policy.location.push(format!("auth_request {path};"));
        if let Some(names) = self.required("auth-response-headers", field_names) {
            for (index, name) in names.iter().enumerate() {
                let variable = format!("$ingress_auth_{index}_{id}");
                let field = name.to_ascii_lowercase().replace('-', "_");
                self.policy.location.push(format!("auth_request_set {variable} $upstream_http_{field};"));
                self.policy.request_fields.push((name.clone(), variable));
            }
        }
        if self.switch("auth-always-set-cookie").is_some_and(|on| on) {
            self.policy
                .location
                .push(format!("auth_request_set $ingress_auth_cookie_{id} $upstream_http_set_cookie;"));
            self.policy.fields.push(format!("add_header Set-Cookie $ingress_auth_cookie_{id} always;"));
        }
        self.read_signin();
    }

    fn read_signin(&mut self) {
        let Some(signin) = self.text("auth-signin") else { return };
        let id = self.policy.id.clone();
        let is_name = |text: &str| quote::is_field_name(text).then(|| text.to_owned());
        let argument = self.checked("auth-signin-redirect-param", is_name).unwrap_or_else(|| "rd".to_owned());
        let has_argument = signin.contains(&format!("{argument}="));
        let separator = if signin.contains('?') { '&' } else { '?' };
        let full = if has_argument {
            signin.to_owned()
        } else {
            format!("{signin}{separator}{argument}=$pass_access_scheme://$best_http_host$escaped_request_uri")
        };
        let Some(word) = url(&full) else { return self.invalid("auth-signin") };
        self.policy.location.push(format!("error_page 401 = @ingress_signin_{id};"));
        self.policy.internal.extend([
            format!("location @ingress_signin_{id} {{"),
            "internal;".to_owned(),
            format!("return 302 {word};"),
            "}".to_owned(),
        ]);
    }

    fn add_auth_fields(&mut self, lines: &mut Vec<String>) {
        let Some(reference) = self.text("auth-proxy-set-headers") else { return };
        match self.config_map(reference) {
            Ok(map) => {
                for (name, value) in &map.data {
                    match quote::template(value).filter(|_| quote::is_end_to_end_field(name)) {
                        Some(value) => lines.push(format!("proxy_set_header {name} {value};")),
                        None => self.policy.deny(format!(
                            "annotation \"auth-proxy-set-headers\": field \"{name}\" is invalid"
                        )),
                    }
                }
            }
            Err(error) => self.policy.deny(format!("annotation \"auth-proxy-set-headers\": {error}")),
        }
    }

    fn add_auth_cache(&mut self, lines: &mut Vec<String>) {
        let Some(key) = self.required("auth-cache-key", quote::template) else { return };
        let id = &self.policy.id;
        lines.push("proxy_cache ingress_auth;".to_owned());
        lines.push(format!("proxy_cache_key {}{};", id, format_args!("$server_name$ingress_auth_key_{id}")));
        self.policy.http.push(format!("map \"\" $ingress_auth_key_{id} {{ default {key}; }}"));
        let durations = self.text("auth-cache-duration").unwrap_or("200 202 401 5m");
        let mut valid = Vec::new();
        for part in durations.split(',') {
            let words: Vec<_> = part.split_ascii_whitespace().collect();
            let is_word = |word: &&str| {
                (1..=9).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
            };
            if words.is_empty() || !words.iter().all(is_word) {
                return self
                    .policy
                    .deny("annotation \"auth-cache-duration\" has an invalid value".to_owned());
            }
            valid.push(format!("proxy_cache_valid {};", words.join(" ")));
        }
        lines.extend(valid);
    }

    /// Certificates of clients.
    pub(super) fn read_client_tls(&mut self) {
        let Some(reference) = self.text("auth-tls-secret") else { return };
        let modes: &[&str] = &["on", "off", "optional", "optional_no_ca"];
        let mode =
            self.required("auth-tls-verify-client", |text| modes.iter().find(|mode| **mode == text).copied());
        let mode = mode.unwrap_or("on");
        if mode == "off" {
            return;
        }
        let authorities = self.secret(reference).and_then(|secret| {
            let text = secret.data.get("ca.crt").ok_or_else(|| "the secret has no \"ca.crt\"".to_owned())?;
            tw_tls::authorities(text).map_err(|error| error.to_string())?;
            Ok(text.clone())
        });
        let path = match authorities {
            Ok(text) => self.files.add("ca", text),
            Err(error) => return self.policy.deny(format!("annotation \"auth-tls-secret\": {error}")),
        };
        let depth = self.number("auth-tls-verify-depth").unwrap_or(1);
        self.policy.has_client_tls = true;
        self.policy.server.extend([
            format!("ssl_client_certificate {path};"),
            format!("ssl_verify_client {mode};"),
            format!("ssl_verify_depth {depth};"),
        ]);
        if let Some(page) = self.checked("auth-tls-error-page", quote::template) {
            self.policy.server.push(format!("error_page 495 496 = {page};"));
        }
        // This also covers requests without TLS, and those whose handshake was for another host.
        if mode == "on" {
            self.policy.first.push("if ($ssl_client_verify != SUCCESS) { return 403; }".to_owned());
        }
        if let Some(pattern) =
            self.required("auth-tls-match-cn", |text| quote::verbatim(text.strip_prefix("CN=")?))
        {
            let pattern = format!("\"(^|,)CN={}", pattern.get(1..).unwrap_or("\""));
            self.policy.first.push(format!("if ($ssl_client_s_dn !~ {pattern}) {{ return 403; }}"));
        }
        for (name, variable) in [
            ("ssl-client-verify", "$ssl_client_verify"),
            ("ssl-client-subject-dn", "$ssl_client_s_dn"),
            ("ssl-client-issuer-dn", "$ssl_client_i_dn"),
        ] {
            self.policy.request_fields.push((name.to_owned(), variable.to_owned()));
        }
        let passes = self.switch("auth-tls-pass-certificate-to-upstream").is_some_and(|on| on);
        let certificate = if passes { "$ssl_client_escaped_cert" } else { "\"\"" };
        self.policy.request_fields.push(("ssl-client-cert".to_owned(), certificate.to_owned()));
    }
}

/// URL with variables, as a word.
pub(super) fn url(text: &str) -> Option<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '"' | '\'' | '\\' | '<' | '>' | '`');
    quote::template(text).filter(|_| !rest.is_empty() && !rest.starts_with('/') && text.chars().all(is_plain))
}

/// URL that the server sends requests to, as a word. Its host is a text, or the host of the request: another variable could name a
/// Unix socket, and the runtime API has one.
pub(super) fn target_url(text: &str) -> Option<String> {
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    // A variable may follow the host, as its path.
    let authority = rest.get(..end)?;
    let (host, after) = match authority.split_once('$') {
        Some(("", after)) if after == "host" || after == "{host}" => return url(text),
        Some((host, after)) => (host, after),
        None => (authority, ""),
    };
    let is_path = after.is_empty() || matches!(after, "request_uri" | "{request_uri}" | "uri" | "{uri}");
    let is_plain = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte));
    let is_host = !host.is_empty() && !host.to_ascii_lowercase().starts_with("unix");
    url(text).filter(|_| is_path && is_plain && is_host)
}

/// Names of header fields, separated by commas.
pub(super) fn field_names(text: &str) -> Option<Vec<String>> {
    let names: Vec<_> =
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    (!names.is_empty() && names.iter().all(|name| quote::is_end_to_end_field(name))).then_some(names)
}

/// The file of users that a secret has.
fn users(secret: &crate::cluster::object::Secret, kind: Option<&str>) -> Result<Vec<u8>, String> {
    match kind.map_or("auth-file", str::trim) {
        "auth-file" => {
            let text = secret.data.get("auth").ok_or_else(|| "the secret has no \"auth\"".to_owned())?;
            Ok(text.clone())
        }
        "auth-map" => {
            let mut out = Vec::new();
            for (name, hash) in &secret.data {
                let hash = hash.trim_ascii();
                if name.contains(':') || hash.iter().any(|byte| byte.is_ascii_control() || *byte == b':') {
                    return Err(format!("user \"{name}\" has no password hash"));
                }
                out.extend(name.bytes());
                out.push(b':');
                out.extend(hash);
                out.push(b'\n');
            }
            Ok(out)
        }
        _ => Err("\"auth-secret-type\" must be \"auth-file\" or \"auth-map\"".to_owned()),
    }
}
