//! Cases: a configuration of the server, its upstream server, and the requests.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;

use super::script::{Protocol, Script};
use crate::Outcome;
use crate::conf;
use crate::contestant::{Binary, Contestant, Running, hot_files, root_directive};
use crate::exec::RunPlacement;
use crate::gateways::Application;
use crate::http3::Certificates;
use crate::tls::Key;

/// A case.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) script: Script,
    server: Server,
}

/// Configuration of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Server {
    /// Files, with directives for `http {}` and for `server {}`.
    Static { http: &'static str, server: &'static str },
    /// Files over HTTP/3.
    Http3,
    /// Upstream server with persistent connections.
    Proxy,
    /// Upstream server with persistent connections, and a cache.
    Cache,
    /// FastCGI application; true if its connections persist.
    FastCgi(bool),
}

const LOG_OFF: &str = "access_log off;";

/// Every case, in the order of the table.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "static",
        about: "file of 1 KiB",
        script: http1("/1k", 1 << 10),
        server: Server::Static { http: LOG_OFF, server: "" },
    },
    Case {
        name: "static-cached",
        about: "file of 1 KiB, open_file_cache",
        script: http1("/1k", 1 << 10),
        server: Server::Static {
            http: "access_log off; open_file_cache max=1000 inactive=60s; open_file_cache_valid 600s;",
            server: "",
        },
    },
    Case {
        name: "static-32k",
        about: "file of 32 KiB",
        script: http1("/32k", 32 << 10),
        server: Server::Static { http: LOG_OFF, server: "" },
    },
    Case { name: "proxy", about: "proxied, 1 KiB", script: http1("/1k", 1 << 10), server: Server::Proxy },
    Case {
        name: "proxy-32k",
        about: "proxied, 32 KiB",
        script: http1("/32k", 32 << 10),
        server: Server::Proxy,
    },
    Case { name: "cache-hit", about: "cached, 1 KiB", script: http1("/1k", 1 << 10), server: Server::Cache },
    Case {
        name: "cache-fill",
        about: "proxied and stored, 1 KiB",
        script: Script { is_numbered: true, ..http1("/1k", 1 << 10) },
        server: Server::Cache,
    },
    Case {
        name: "fastcgi",
        about: "FastCGI, 1 KiB",
        script: http1("/1k", 1 << 10),
        server: Server::FastCgi(true),
    },
    Case {
        name: "fastcgi-close",
        about: "FastCGI, 1 KiB, a connection each",
        script: http1("/1k", 1 << 10),
        server: Server::FastCgi(false),
    },
    Case {
        name: "h2",
        about: "HTTP/2, file of 1 KiB",
        script: Script { protocol: Protocol::Http2, ..http1("/1k", 1 << 10) },
        server: Server::Static { http: LOG_OFF, server: "http2 on;" },
    },
    Case {
        name: "h3",
        about: "HTTP/3, file of 1 KiB",
        script: Script { protocol: Protocol::Http3, ..http1("/1k", 1 << 10) },
        server: Server::Http3,
    },
    Case {
        name: "log",
        about: "file of 1 KiB, access_log",
        script: http1("/1k", 1 << 10),
        server: Server::Static { http: "access_log logs/access.log;", server: "" },
    },
];

const fn http1(path: &'static str, size: usize) -> Script {
    Script { protocol: Protocol::Http1, path, size, is_numbered: false }
}

/// Files and upstream servers that the cases use. Dropping them ends the servers.
pub(super) struct Peers {
    files: PathBuf,
    certificates: Certificates,
    origin: Running,
    application: Application,
}

impl Peers {
    /// Starts the upstream servers on this core.
    pub(super) fn start(cpu: usize) -> Outcome<Self> {
        Ok(Self {
            files: hot_files(&[("1k", 1 << 10), ("32k", 32 << 10)])?,
            certificates: Certificates::new()?,
            origin: Contestant::own_loop("origin", "origin", &[]).start(&RunPlacement::on(cpu))?,
            application: Application::start(1 << 10, cpu)?,
        })
    }
}

impl Peers {
    /// Settings of clients of HTTP/3.
    pub(super) fn client_tls(&self) -> &Arc<ClientConfig> {
        &self.certificates.client
    }
}

impl Case {
    /// The server of this case, with more directives for `http {}`.
    pub(super) fn contestant(&self, ours: &Binary, peers: &Peers, http: &str) -> Contestant {
        let origin = conf::upstream("origin", &peers.origin.addr().to_string());
        let proxy = "proxy_pass http://origin; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        let (own, server) = match self.server {
            Server::Http3 => {
                let server = peers.certificates.server(Key::EcdsaP256, &peers.files);
                return Contestant::server(self.name, ours, &format!("{LOG_OFF} {http}"), &server).with_tls();
            }
            Server::Static { http, server } => {
                (http.to_owned(), format!("{server} {}", root_directive(&peers.files)))
            }
            Server::Proxy => (format!("{LOG_OFF} {origin}"), format!("location / {{ {proxy} }}")),
            Server::Cache => (
                format!(
                    "{LOG_OFF} {origin}
    proxy_cache_path cache levels=1:2 keys_zone=one:128m inactive=1d use_temp_path=off;"
                ),
                format!("location / {{ {proxy} proxy_cache one; proxy_cache_valid 200 1d; }}"),
            ),
            Server::FastCgi(is_kept) => {
                let location = if is_kept { "fastcgi_keep_conn on;" } else { "" };
                return peers.application.behind(self.name, ours, http, location);
            }
        };
        Contestant::server(self.name, ours, &format!("{own} {http}"), &server)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cases_are_unique() {
        let mut names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CASES.len());
    }

    #[test]
    fn usage_lists_the_cases() {
        let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        assert!(crate::USAGE.contains(&names.join(" ")));
    }
}
