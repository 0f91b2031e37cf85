//! Proxies under measurement, all before the same origin and all with persistent connections to it.

use std::path::PathBuf;

use super::origin::TUNNEL;
use crate::Outcome;
use crate::conf;
use crate::contestant::{Binaries, Binary, CONF, Contestant, OtherProgram, Running, find_program, present};
pub(super) use crate::contestant::{NGINX, OURS};
use crate::exec::RunPlacement;
use crate::options::Options;

pub(super) const HAPROXY: &str = "haproxy";
pub(super) const RELAY: &str = "bare relay";

/// Directives that keep responses out of temporary files.
pub(super) const NO_TEMP_FILE: &str = "proxy_max_temp_file_size 0;";
/// Directives that stream the request body.
pub(super) const NO_REQUEST_BUFFER: &str = "proxy_request_buffering off;";

/// All that it takes to set a proxy before the origin. Dropping it ends the origin.
pub(super) struct Proxies {
    pub(super) binaries: Binaries,
    pub(super) haproxy: Option<OtherProgram>,
    pub(super) origin: Running,
}

impl Proxies {
    /// Finds the programs and starts the origin on the core of the load.
    pub(super) fn find(options: &Options, load_cpu: usize) -> Outcome<Self> {
        let binaries = Binaries::find(options)?;
        let given = options.text("haproxy").map(PathBuf::from);
        let haproxy = OtherProgram::at(given.or_else(|| find_program("haproxy")), "-v")?;
        let origin = Contestant::own_loop("origin", "origin", &[]).start(&RunPlacement::on(load_cpu))?;
        Ok(Self { binaries, haproxy, origin })
    }

    /// All of them, with directives for `http {}` of those that understand nginx's.
    pub(super) fn all(&self, http: &str) -> Vec<Contestant> {
        let mut all = vec![self.ours(OURS, http), self.nginx(NGINX, http)];
        all.extend(self.haproxy());
        all.push(self.relay());
        present(all)
    }

    pub(super) fn ours(&self, name: &str, http: &str) -> Contestant {
        self.like_nginx(name, &self.binaries.ours, http)
    }

    pub(super) fn nginx(&self, name: &str, http: &str) -> Contestant {
        self.like_nginx(name, &self.binaries.nginx, http)
    }

    fn like_nginx(&self, name: &str, binary: &Binary, http: &str) -> Contestant {
        let origin = self.origin.addr().to_string();
        let http = format!("{}{}{http}", conf::PROXY, conf::upstream("origin", &origin));
        let server = conf::fill(conf::PROXY_SERVER, &[("@TUNNEL@", TUNNEL)]);
        Contestant::server(name, binary, &http, &server)
    }

    /// The other proxy, with one thread and no log.
    pub(super) fn haproxy(&self) -> Option<Contestant> {
        self.haproxy_with(4096)
    }

    /// haproxy with a limit of this many clients.
    pub(super) fn haproxy_with(&self, clients_max: usize) -> Option<Contestant> {
        let OtherProgram { path, .. } = self.haproxy.as_ref()?;
        let origin = self.origin.addr().to_string();
        let clients = clients_max.to_string();
        let conf = conf::fill(conf::HAPROXY, &[("@ORIGIN@", &origin), ("@CLIENTS@", &clients)]);
        Some(Contestant::other(HAPROXY, path, &["-db", "-f", CONF], conf))
    }

    /// The limit.
    pub(super) fn relay(&self) -> Contestant {
        Contestant::own_loop(RELAY, "relay", &["--origin".to_owned(), self.origin.port().to_string()])
    }
}
