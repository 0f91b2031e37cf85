//! Configuration files of the systems under measurement, from `crates/tw-bench/data/configurations`.

/// Content of a file there.
macro_rules! file {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/configurations/", $name))
    };
}

/// Whole configuration of a server over HTTP.
pub(super) const SERVER: &str = file!("server.conf");
/// Whole configuration of a relay, and of several loops for short sessions.
pub(super) const MAIL: &str = file!("mail.conf");
pub(super) const STREAM: &str = file!("stream.conf");
pub(super) const STREAM_WORKERS: &str = file!("stream-workers.conf");

/// Directives for `http {}`, and for `server {}`.
const UPSTREAM: &str = file!("upstream.conf");
pub(super) const PROXY: &str = file!("proxy.conf");
pub(super) const PROXY_SERVER: &str = file!("proxy-server.conf");
pub(super) const CACHE: &str = file!("cache.conf");
pub(super) const CACHE_SERVER: &str = file!("cache-server.conf");
pub(super) const FASTCGI: &str = file!("fastcgi.conf");
pub(super) const FASTCGI_SERVER: &str = file!("fastcgi-server.conf");

/// Directives for `http {}` of servers of large files.
pub(super) const POOLS: &str = file!("pools.conf");
/// Directives for `http {}` or `server {}`.
pub(super) const OPEN_FILE_CACHE: &str = file!("open-file-cache.conf");
pub(super) const SENDFILE: &str = file!("sendfile.conf");
pub(super) const TLS: &str = file!("tls.conf");

/// Other programs.
pub(super) const HAPROXY: &str = file!("haproxy.cfg");
pub(super) const HAPROXY_STREAM: &str = file!("haproxy-stream.cfg");
pub(super) const VARNISH: &str = file!("varnish.vcl");
pub(super) const TRAFFIC_SERVER: &str = file!("trafficserver-records.config");

/// Group of one upstream server, for `http {}`.
pub(super) fn upstream(name: &str, origin: &str) -> String {
    fill(UPSTREAM, &[("@NAME@", name), ("@ORIGIN@", origin)])
}

/// Puts values for words in `@…@`.
pub(super) fn fill(file: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(file.to_owned(), |text, (word, value)| text.replace(word, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_replace_their_words() {
        assert_eq!(
            fill("listen @PORT@; root @DIR@;", &[("@PORT@", "80"), ("@DIR@", "/srv")]),
            "listen 80; root /srv;"
        );
        assert!(SERVER.contains("@PORT@") && HAPROXY.contains("@ORIGIN@"));
    }
}
