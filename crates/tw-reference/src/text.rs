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
    "http2" "http3" "image_filter" "index" "internal_redirect" "json" "keyval" "limit_conn" "limit_rate"
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

/// Beginnings of the names of directives that several gateways have. Texts about them stand with those of `proxy_pass`.
const GATEWAYS: [&str; 6] = ["fastcgi_", "uwsgi_", "scgi_", "grpc_", "memcached_", "tunnel_"];

/// Directive of module `proxy` that does the same as one of another gateway, if there is a text about it.
pub fn counterpart(name: &str) -> Option<String> {
    // Each gateway has rules of its own for its address.
    let suffix =
        GATEWAYS.iter().find_map(|prefix| name.strip_prefix(prefix)).filter(|suffix| *suffix != "pass")?;
    let other = format!("proxy_{suffix}");
    find("proxy", &other).map(|_| other)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::counterpart;
    use crate::directives::chapters;

    #[test]
    fn gateways_have_counterparts_in_the_proxy() {
        assert_eq!(counterpart("fastcgi_cache_lock").as_deref(), Some("proxy_cache_lock"));
        assert_eq!(counterpart("fastcgi_split_path_info"), None);
        assert_eq!(counterpart("uwsgi_pass"), None);
        assert_eq!(counterpart("proxy_cache_lock"), None);
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
