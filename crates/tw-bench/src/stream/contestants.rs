//! Relays under measurement, all before the same server.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::version::TLS13;
use tw_testkit::TempDir;
use tw_testkit::tls::{Authority, Certificate};

use super::load::TLS_NAME;
use crate::Outcome;
use crate::conf;
use crate::contestant::{
    Binaries, Binary, CONF, Contestant, OtherProgram, PORT, PREFIX, Running, find_program, present,
};
pub(super) use crate::contestant::{NGINX, OURS};
use crate::exec::RunPlacement;
use crate::options::Options;

const HAPROXY: &str = "haproxy, splice-auto";
const RELAY: &str = "bare relay";
const CONNECTIONS_MAX: usize = 8_192;

/// Kind of relay that a case needs.
pub(super) enum Want {
    Tcp,
    Udp,
    /// TLS from the clients, TCP to the server.
    Tls,
    /// TCP with so many descriptors of sockets.
    Connections(usize),
}

/// All that it takes to set a relay before the server. Dropping it ends the server.
pub(super) struct Relays {
    pub(super) binaries: Binaries,
    pub(super) haproxy: Option<OtherProgram>,
    /// Settings of clients of relays that terminate TLS.
    pub(super) tls: Arc<ClientConfig>,
    /// Certificate and key; removed at the end.
    dir: TempDir,
    server: Running,
}

impl Relays {
    /// Finds the programs and starts the server on the core of the load.
    pub(super) fn find(options: &Options, load_cpu: usize) -> Outcome<Self> {
        let binaries = Binaries::find(options)?;
        let given = options.text("haproxy").map(PathBuf::from);
        let haproxy = OtherProgram::at(given.or_else(|| find_program("haproxy")), "-v")?;
        let server = Contestant::own_loop("server", "stream-peer", &[]).start(&RunPlacement::on(load_cpu))?;
        let authority = Authority::new();
        let dir = TempDir::new("certificates")?;
        let Certificate { pem, key, .. } = authority.certify(&[TLS_NAME]);
        dir.write("one.crt", &pem)?;
        dir.write("one.key", &key)?;
        dir.write("both.pem", pem + &key)?;
        Ok(Self { binaries, haproxy, tls: authority.client(&[&TLS13]), dir, server })
    }

    /// The relays that can do what is wanted.
    pub(super) fn all(&self, want: &Want) -> Vec<Contestant> {
        let connections = match want {
            Want::Connections(count) => *count,
            Want::Tcp | Want::Udp | Want::Tls => CONNECTIONS_MAX,
        };
        // The relay listens over TCP for UDP, too, which shows that it has started.
        let server = self.server.addr();
        let server = match want {
            Want::Udp => format!(
                "server {{ listen 127.0.0.1:{PORT} backlog=4096; proxy_pass {server}; }}
    server {{ listen 127.0.0.1:{PORT} udp; proxy_pass {server}; }}"
            ),
            Want::Tls => format!(
                "server {{ listen 127.0.0.1:{PORT} ssl backlog=4096; proxy_pass {server};
        ssl_certificate \"{}\"; ssl_certificate_key \"{}\"; {} }}",
                self.dir.join("one.crt").display(),
                self.dir.join("one.key").display(),
                conf::TLS,
            ),
            Want::Tcp | Want::Connections(_) => {
                format!("server {{ listen 127.0.0.1:{PORT} backlog=4096; proxy_pass {server}; }}")
            }
        };
        let like_nginx = |name, binary| like_nginx(name, binary, connections, &server);
        let mut all = vec![like_nginx(OURS, &self.binaries.ours), like_nginx(NGINX, &self.binaries.nginx)];
        match want {
            Want::Udp => {}
            Want::Tcp => {
                all.extend(self.haproxy(connections, ""));
                all.push(self.bare_relay());
            }
            Want::Tls => {
                let tls = format!(
                    "ssl crt {} ciphersuites TLS_AES_128_GCM_SHA256 curves X25519",
                    self.dir.join("both.pem").display()
                );
                all.extend(self.haproxy(connections, &tls));
            }
            Want::Connections(_) => all.extend(self.haproxy(connections, "")),
        }
        let nginx = &self.binaries.nginx;
        if matches!(want, Want::Tls) && !nginx.has_module("stream_ssl_module") {
            all.retain(|contestant| contestant.name != NGINX);
        }
        present(all)
    }

    fn bare_relay(&self) -> Contestant {
        Contestant::own_loop(RELAY, "relay", &["--origin".to_owned(), self.server.port().to_string()])
    }

    /// The other proxy, with one thread and no log.
    fn haproxy(&self, connections: usize, bind: &str) -> Option<Contestant> {
        let OtherProgram { path, .. } = self.haproxy.as_ref()?;
        let server = self.server.addr();
        let clients = connections / 2;
        let server = server.to_string();
        let clients = clients.to_string();
        let values = [("@ORIGIN@", server.as_str()), ("@CLIENTS@", &clients), ("@TLS@", bind)];
        let conf = conf::fill(conf::HAPROXY_STREAM, &values);
        Some(Contestant::other(HAPROXY, path, &["-db", "-f", CONF], conf))
    }
}

/// A server that reads nginx's configuration: one loop, and these servers of `stream`.
fn like_nginx(name: &str, binary: &Binary, connections: usize, servers: &str) -> Contestant {
    let guard = if binary.is_tailwater() { "loop_guard enforce;" } else { "" };
    let connections = connections.to_string();
    let values = [("@GUARD@", guard), ("@CONNECTIONS@", connections.as_str()), ("@SERVERS@", servers)];
    let conf = conf::fill(conf::STREAM, &values);
    Contestant::other(name, &binary.path, &["-p", PREFIX, "-c", CONF], conf)
}
