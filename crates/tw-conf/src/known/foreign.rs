//! Directives of third-party modules, and of missing nginx modules, with their replacements here.

/// Hints by name. `*` at the end of a name matches any rest, at its beginning any part.
const HINTS: &[(&str, &str)] = &[
    (
        "vhost_traffic_status_dump",
        "counters last as long as the process; Prometheus keeps them longer, with \"/format/prometheus\"",
    ),
    ("vhost_traffic_status*", "\"status_zone NAME;\" counts every status, \"metrics;\" shows the counters"),
    ("*_by_lua*", NO_LUA),
    ("lua_*", NO_LUA),
    ("js_*", OTHER_SCRIPTS),
    ("perl*", NO_PERL),
    ("SecRules*", NAXSI),
    ("Sec*", SECLANG),
    ("naxsi*", NAXSI),
    ("secrules*", NAXSI),
    ("MainRule", NAXSI),
    ("BasicRule", NAXSI),
    ("CheckRule", NAXSI),
    ("check_rule", NAXSI),
    ("DeniedUrl", NAXSI),
    ("denied_url", NAXSI),
    ("LearningMode", NAXSI),
    ("learning_mode", NAXSI),
    ("LibInjection*", NAXSI),
    ("libinjection*", NAXSI),
    ("pagespeed", "pages are not rewritten; \"gzip\", \"brotli\" and \"zstd\" compress them"),
    ("pagespeed*", "pages are not rewritten; \"gzip\", \"brotli\" and \"zstd\" compress them"),
    ("upload_pass*", "\"client_body_in_file_only on;\" hands request bodies over as files"),
    ("rtmp*", "streams over RTMP are not served; HLS and DASH are files and are"),
    ("vod*", NO_PACKAGING),
    ("auth_ldap*", "\"auth_request\" asks a service that does"),
    ("auth_pam*", "\"auth_request\" asks a service that does"),
    ("proxy_cache_purge", "\"tailwater purge\" removes from a cache"),
    ("fastcgi_cache_purge", "\"tailwater purge\" removes from a cache"),
    (
        "passenger*",
        "applications are asked with \"proxy_pass\", \"fastcgi_pass\", \"uwsgi_pass\" or \"scgi_pass\"",
    ),
    ("else", NO_ELSE),
    ("elseif", NO_ELSE),
    ("elsif", NO_ELSE),
    ("elif", NO_ELSE),
    ("DocumentRoot", "did you mean \"root\"?"),
    ("spdy_*", "\"http2 on;\" took the place of SPDY"),
];

/// Hints for all directives of a module.
const MODULES: &[(&str, &str)] = &[
    ("ngx_http_perl_", NO_PERL),
    ("ngx_http_lua_", NO_LUA),
    ("ngx_http_geoip_", GEOIP2),
    ("ngx_stream_geoip_", GEOIP2),
    // The file is named `ngx_http_xslt_filter_module`.
    ("ngx_http_xslt_", NO_XSLT),
    ("ngx_http_naxsi_", NAXSI),
];

const GEOIP2: &str = "MaxMind no longer makes .dat files: \"geoip2 FILE.mmdb { $country_code country iso_code; }\" reads the databases of today";
const NO_ELSE: &str = "there is no \"else\": a \"map\" has a value for every other case, or a second \"if\" compares with \"!=\"";
const NO_LUA: &str = "Lua is not supported; scripts in JavaScript run by \"js_content\", \"js_access\" and \"js_set\": docs/migrating-from-nginx.md has what common snippets become";
const NO_PERL: &str = "Perl is not supported; scripts in JavaScript run by \"js_content\" and \"js_set\", and \"map\" and \"rewrite\" do most of the rest";
const OTHER_SCRIPTS: &str = "scripts run by \"js_content\", \"js_access\", \"js_set\" and filters: docs/scripting.md has all directives";
const NAXSI: &str = "rules of naxsi are not read: \"modsecurity\" is a firewall with the rules of ModSecurity, and \"deny_request\" refuses requests by the value of a \"map\"";
const SECLANG: &str = "rules of the firewall are the text of \"modsecurity_rules\" or stand in files of \"modsecurity_rules_file\"";
const NO_PACKAGING: &str = "\"hls\" makes playlists and segments of MP4 files";
const NO_XSLT: &str = "XML is sent as it is, because there is no complete XSLT processor in Rust: an application behind a gateway transforms it";

/// Returns a hint at what does the same as a directive that is not there.
pub(super) fn hint_for(name: &str) -> Option<&'static str> {
    let is = |pattern: &str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(part), _) => name.contains(part.trim_end_matches('*')),
        (None, Some(begin)) => name.starts_with(begin),
        (None, None) => name == pattern,
    };
    HINTS.iter().find(|(pattern, _)| is(pattern)).map(|(_, hint)| *hint)
}

/// Returns a hint about all directives of a module of nginx.
pub(crate) fn hint_for_module(module: &str) -> Option<&'static str> {
    MODULES.iter().find(|(begin, _)| module.starts_with(begin)).map(|(_, hint)| *hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn third_party_directives_have_hints() {
        for (name, part) in [
            ("vhost_traffic_status_dump", "Prometheus"),
            ("vhost_traffic_status_measure_status_codes", "status_zone"),
            ("content_by_lua_block", "Lua is not supported"),
            ("lua_shared_dict", "Lua is not supported"),
            ("js_preload_object", "docs/scripting.md"),
            ("SecRule", "modsecurity_rules"),
            ("SecRuleEngine", "modsecurity_rules"),
            ("SecRulesEnabled", "\"map\""),
            ("CheckRule", "\"deny_request\""),
            ("pagespeed", "brotli"),
            ("rtmp", "RTMP"),
            ("vod_mode", "hls"),
        ] {
            assert!(hint_for(name).is_some_and(|hint| hint.contains(part)), "{name}");
        }
        for name in ["", "set", "servr", "proxy_connect", "headers_more"] {
            assert_eq!(hint_for(name), None, "{name}");
        }
        assert!(hint_for_module("ngx_stream_geoip_module").is_some_and(|hint| hint.contains("geoip2")));
        for module in ["ngx_http_xslt_module", "ngx_http_xslt_filter_module"] {
            assert!(hint_for_module(module).is_some_and(|hint| hint.contains("XSLT")), "{module}");
        }
        assert_eq!(hint_for_module("ngx_http_f4f_module"), None);
    }
}
