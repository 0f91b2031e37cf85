//! The caches that are compared, all before the same origin and all with connections to it that stay open.

use std::path::{Path, PathBuf};
use std::process::Command;

use tw_testkit::Client;

use crate::bench::contestant::{Binaries, Binary, CONF, Contestant, PORT, PREFIX, Running, find_program};
use crate::bench::exec::Place;
use crate::bench::options::Options;
use crate::bench::proxy::origin::ASKED;
use crate::bench::{Outcome, loops};

pub(super) const OURS: &str = "ours";
pub(super) const NGINX: &str = "nginx";
pub(super) const VARNISH: &str = "varnish, memory";

/// Has nginx read and send by threads what may not be in memory.
pub(super) const NGINX_THREADS: &str = "aio threads;";

/// All that it takes to set a cache before the origin. Dropping it ends the origin.
pub(super) struct Caches {
    pub(super) binaries: Binaries,
    pub(super) varnish: Option<Varnish>,
    origin: Running,
}

/// A cache of another kind, to compare with: what it holds it has in memory.
pub(super) struct Varnish {
    path: PathBuf,
    /// First line of `-V`.
    pub(super) version: String,
}

impl Varnish {
    fn find() -> Outcome<Option<Self>> {
        let Some(path) = find_program("varnishd") else { return Ok(None) };
        let output =
            Command::new(&path).arg("-V").output().map_err(|e| format!("{}: {e}", path.display()))?;
        let text = [output.stdout, output.stderr].concat();
        let version = String::from_utf8_lossy(&text).lines().next().unwrap_or_default().to_owned();
        Ok(Some(Self { path, version }))
    }
}

impl Caches {
    /// Finds the programs and starts the origin on the core of the load, with one response of `large` bytes.
    pub(super) fn find(options: &Options, load_cpu: usize, large: u64) -> Outcome<Self> {
        let binaries = Binaries::find(options)?;
        let varnish = Varnish::find()?;
        let args = ["--large".to_owned(), large.to_string()];
        let origin = Contestant::own_loop("origin", "origin", &args).start(&Place::on(load_cpu))?;
        Ok(Self { binaries, varnish, origin })
    }

    /// How often the origin has been asked.
    pub(super) fn asked(&self) -> Outcome<u64> {
        Ok(Client::get(self.origin.addr(), ASKED)?.text().trim().parse()?)
    }

    /// Ours, with more directives for `http {}`, and its cache in a directory of its own.
    pub(super) fn ours(&self, name: &str, http: &str) -> Contestant {
        self.at(name, &self.binaries.ours, Path::new("cache"), http)
    }

    /// nginx, the same.
    pub(super) fn nginx(&self, name: &str, http: &str) -> Contestant {
        self.at(name, &self.binaries.nginx, Path::new("cache"), http)
    }

    /// One of the two, with its cache in this directory.
    ///
    /// nginx has neither its manager nor its loader, because it has no master: nothing is removed during a measurement, and
    /// what it has not loaded it finds on the disk. Ours has both.
    pub(super) fn at(&self, name: &str, binary: &Binary, dir: &Path, http: &str) -> Contestant {
        let (origin, dir) = (self.origin.addr(), dir.display());
        let http = format!(
            "access_log off;
    proxy_temp_path proxy_temp;
    proxy_http_version 1.1;
    upstream origin {{
        server {origin};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    proxy_cache_path \"{dir}\" levels=1:2 keys_zone=one:128m inactive=1d use_temp_path=off
        loader_files=1000000 loader_sleep=1ms loader_threshold=60s;
    {http}"
        );
        let server = format!(
            "location / {{
            proxy_pass http://origin;
            proxy_set_header Connection \"\";
            proxy_cache one;
            proxy_cache_valid 200 1d;
        }}
        {}",
            loops::location(binary)
        );
        Contestant::server(name, binary, &http, &server)
    }

    /// The other kind.
    pub(super) fn varnish(&self) -> Option<Contestant> {
        let Varnish { path, .. } = self.varnish.as_ref()?;
        let port = self.origin.port();
        let conf = format!(
            "vcl 4.1;
backend default {{ .host = \"127.0.0.1\"; .port = \"{port}\"; }}
"
        );
        let listen = format!("127.0.0.1:{PORT}");
        let args = ["-F", "-a", &listen, "-n", PREFIX, "-f", CONF, "-s", "malloc,1g", "-t", "86400"];
        Some(Contestant::other(VARNISH, path, &args, conf))
    }
}
