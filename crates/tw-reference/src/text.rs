//! Longer texts about directives, written by hand: the files of the folder `directives`.
//!
//! A file is Markdown. A heading `## NAME` begins the text about a directive of the module. Links are relative to the folder
//! `docs/directives`, into which the generated pages are written.

macro_rules! texts {
    ($($module:literal)*) => {
        /// Module and text of each file.
        const TEXTS: &[(&str, &str)] = &[
            $(($module, include_str!(concat!("../directives/", $module, ".md")))),*
        ];
    };
}

texts! {
    "access" "acme" "addition" "api" "auth_basic" "auth_jwt" "auth_oidc" "auth_request" "auth_require"
    "autoindex" "blocks" "brotli" "brotli_static" "browser" "challenge" "charset" "core" "core_server" "dav"
    "dav_ext" "deny_request" "echo" "empty_gif" "failed_login_delay" "fancyindex" "fastcgi" "fleet" "flv"
    "geo" "geoip2" "grpc" "gunzip" "gzip" "gzip_static" "headers" "headers_more" "health_check" "hls"
    "http2" "http3" "image_filter" "index" "internal_redirect" "js" "json" "keyval" "limit_conn" "limit_rate"
    "limit_req" "log" "mail_auth_http" "mail_core" "mail_health_check" "mail_imap" "mail_otel" "mail_pop3"
    "mail_proxy" "mail_real_ip" "mail_smtp" "mail_ssl" "mail_status_zone" "main" "map" "memcached" "metrics"
    "mirror" "mp4" "num_map" "otel" "overload" "proxy" "random_index" "real_ip" "referer" "rewrite" "scgi"
    "secure_link" "session_log" "slice" "split_clients" "ssi" "ssl" "status_page" "status_zone"
    "stream_core" "stream_health_check" "stream_mqtt" "stream_otel" "stream_pass" "stream_proxy"
    "stream_real_ip" "stream_return" "stream_set" "stream_ssl_preread" "stream_status_zone" "stub_status"
    "sub" "subs_filter" "try_files" "tunnel" "upload_progress" "upstream" "userid" "uwsgi" "vts" "waf"
    "zstd" "zstd_static"
}

/// Mark at the beginning of the line of a heading.
const HEADING: &str = "\n## ";

/// Names of modules that have a file.
pub fn modules() -> impl Iterator<Item = &'static str> {
    TEXTS.iter().map(|(module, _)| *module)
}

/// Names and texts of the directives in the file of a module, in their order.
pub fn sections(module: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let file = TEXTS.iter().find(|(title, _)| *title == module).map_or("", |(_, text)| text);
    // The part before the first heading says what the file is.
    file.split(HEADING).skip(1).map(|section| {
        let (name, text) = section.split_once('\n').unwrap_or((section, ""));
        (name.trim(), text.trim())
    })
}

/// Text about a directive.
pub fn find(module: &str, name: &str) -> Option<&'static str> {
    sections(module).find(|(title, _)| *title == name).map(|(_, text)| text)
}

/// Modules, beginnings of names of their directives, and what stands in its place in the directive of module `proxy` that does the same.
const COUNTERPARTS: [(&str, &str, &str); 8] = [
    ("fastcgi", "fastcgi_", "proxy_"),
    ("uwsgi", "uwsgi_", "proxy_"),
    ("scgi", "scgi_", "proxy_"),
    ("grpc", "grpc_", "proxy_"),
    ("memcached", "memcached_", "proxy_"),
    ("tunnel", "tunnel_", "proxy_"),
    ("stream_proxy", "proxy_", "proxy_"),
    ("mail_auth_http", "auth_http_ssl_", "proxy_ssl_"),
];

/// Directive of module `proxy` that does the same as one of another module, if there is a text about it.
pub fn counterpart(module: &str, name: &str) -> Option<String> {
    let rows = COUNTERPARTS.iter().filter(|(title, ..)| *title == module);
    let other = rows.filter_map(|(_, prefix, other)| Some(format!("{other}{}", name.strip_prefix(prefix)?)));
    // Each gateway has rules of its own for its address.
    other.filter(|other| *other != "proxy_pass").find(|other| find("proxy", other).is_some())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::counterpart;
    use crate::directives::chapters;

    #[test]
    fn directives_have_counterparts_in_the_proxy() {
        for (module, name, expected) in [
            ("fastcgi", "fastcgi_cache_lock", Some("proxy_cache_lock")),
            ("fastcgi", "fastcgi_split_path_info", None),
            ("uwsgi", "uwsgi_pass", None),
            ("proxy", "proxy_cache_lock", None),
            ("stream_proxy", "proxy_ssl_crl", Some("proxy_ssl_crl")),
            ("stream_proxy", "proxy_requests", None),
            ("mail_auth_http", "auth_http_ssl_crl", Some("proxy_ssl_crl")),
            ("mail_auth_http", "auth_http_header", None),
            ("mail_proxy", "proxy_buffer", None),
        ] {
            assert_eq!(counterpart(module, name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn texts_are_about_directives_of_their_module() {
        let chapters = chapters();
        for module in super::modules() {
            let chapter = chapters.iter().find(|chapter| chapter.title == module);
            let chapter =
                chapter.unwrap_or_else(|| panic!("directives/{module}.md: there is no such module"));
            let mut names = BTreeSet::new();
            for (name, text) in super::sections(module) {
                let is_known = chapter.directives.iter().any(|directive| directive.name == name);
                assert!(is_known, "directives/{module}.md: the module has no directive \"{name}\"");
                assert!(names.insert(name), "directives/{module}.md: two texts about \"{name}\"");
                assert!(!text.is_empty(), "directives/{module}.md: no text about \"{name}\"");
                let fences = text.lines().filter(|line| line.starts_with("```")).count();
                assert_eq!(fences % 2, 0, "directives/{module}.md: an example of \"{name}\" does not end");
            }
        }
    }
}
