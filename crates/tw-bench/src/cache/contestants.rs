//! Caches under measurement, all before the same origin and all with persistent connections to it.

use std::path::Path;

use tw_testkit::Client;

use crate::conf;
use crate::contestant::{
    Binaries, Binary, CONF, Contestant, OtherProgram, PORT, PREFIX, Running, find_program,
};
pub(crate) use crate::contestant::{NGINX, OURS};
use crate::exec::RunPlacement;
use crate::options::Options;
use crate::proxy::origin::REQUEST_COUNT;
use crate::{Outcome, loops};

/// Tailwater with the responses of its cache in segments.
pub(crate) const OURS_LOG: &str = "Tailwater, store=log";
/// Tailwater with segments that are read and written past the page cache.
pub(crate) const OURS_DIRECT: &str = "Tailwater, store=log direct=on";
pub(crate) const NGINX_WITH_THREADS: &str = "nginx, aio threads";
pub(crate) const VARNISH: &str = "varnish, memory";
const VARNISH_FILE: &str = "varnish, file";
pub(crate) const TRAFFIC_SERVER: &str = "trafficserver";

/// One of so many requests may go to the origin: nginx with threads sometimes forwards a hit.
const FORWARDED_SHARE: u64 = 1_000;

/// Has nginx read and send by threads what may not be in memory.
pub(crate) const NGINX_THREADS: &str = "aio threads;";

/// Parameters of `proxy_cache_path` for responses in segments.
pub(crate) const LOG: &str = "store=log";
const LOG_DIRECT: &str = "store=log direct=on";

/// Servers that are measured one after the other on a directory that one binary has filled.
pub(crate) struct SameDirectory<'a> {
    pub(crate) binary: &'a Binary,
    /// Parameters of `proxy_cache_path` of the server that fills it.
    pub(crate) parameters: &'static str,
    pub(crate) variants: &'static [Variant],
}

/// Configuration of one of those servers.
pub(crate) struct Variant {
    pub(crate) name: &'static str,
    /// Parameters of `proxy_cache_path`.
    pub(crate) parameters: &'static str,
    /// More directives for `http {}`.
    pub(crate) http: &'static str,
}

const NGINX_VARIANTS: &[Variant] = &[
    Variant { name: NGINX, parameters: "", http: "" },
    Variant { name: NGINX_WITH_THREADS, parameters: "", http: NGINX_THREADS },
];
const LOG_VARIANTS: &[Variant] = &[
    Variant { name: OURS_LOG, parameters: LOG, http: "" },
    Variant { name: OURS_DIRECT, parameters: LOG_DIRECT, http: "" },
];
const FILES_VARIANTS: &[Variant] = &[Variant { name: OURS, parameters: "", http: "" }];

/// All that it takes to set a cache before the origin. Dropping it ends the origin.
pub(crate) struct Caches {
    pub(crate) binaries: Binaries,
    /// Varnish, with its storage in memory.
    pub(crate) varnish: Option<OtherProgram>,
    /// Traffic Server, with its storage in a file and hot objects in memory too.
    pub(crate) traffic_server: Option<OtherProgram>,
    origin: Running,
}

const IP_ALLOW: &str = "ip_allow: [{ apply: in, ip_addrs: 0/0, action: allow, methods: ALL }]\n";

impl Caches {
    /// Finds the programs and starts the origin on the core of the load, with one response of `large` bytes.
    pub(crate) fn find(options: &Options, load_cpu: usize, large: u64) -> Outcome<Self> {
        let binaries = Binaries::find(options)?;
        let varnish = OtherProgram::at(find_program("varnishd"), "-V")?;
        let traffic_server = OtherProgram::at(find_program("traffic_server"), "--version")?;
        let args = ["--large".to_owned(), large.to_string()];
        let origin = Contestant::own_loop("origin", "origin", &args).start(&RunPlacement::on(load_cpu))?;
        Ok(Self { binaries, varnish, traffic_server, origin })
    }

    /// Number of requests to the origin.
    pub(crate) fn origin_requests(&self) -> Outcome<u64> {
        Ok(Client::get(self.origin.addr(), REQUEST_COUNT)?.text().trim().parse()?)
    }

    /// Measures hits, whose number is `count`. Returns also the number of requests to the origin for stored
    /// responses: too many are an error.
    pub(crate) fn hits<T>(
        &self,
        name: &str,
        measure: impl FnOnce() -> Outcome<T>,
        count: impl FnOnce(&T) -> u64,
    ) -> Outcome<(T, u64)> {
        let (measured, origin_requests) = self.counted(measure)?;
        if origin_requests * FORWARDED_SHARE > count(&measured) {
            Err(format!("{name}: not hits: the origin was asked {origin_requests} times").into())
        } else {
            Ok((measured, origin_requests))
        }
    }

    /// Measures; returns also the number of requests to the origin meanwhile.
    pub(crate) fn counted<T>(&self, measure: impl FnOnce() -> Outcome<T>) -> Outcome<(T, u64)> {
        let before = self.origin_requests()?;
        let measured = measure()?;
        Ok((measured, self.origin_requests()? - before))
    }

    /// The servers whose caches are directories; those whose binary is not there are left out.
    ///
    /// Ours comes last: whoever comes first may find names that nobody has looked up for long.
    pub(crate) fn on_directories(&self) -> impl Iterator<Item = SameDirectory<'_>> {
        let Binaries { ours, nginx, .. } = &self.binaries;
        [(nginx, "", NGINX_VARIANTS), (ours, LOG, LOG_VARIANTS), (ours, "", FILES_VARIANTS)]
            .into_iter()
            .filter(|(binary, ..)| !binary.is_absent())
            .map(|(binary, parameters, variants)| SameDirectory { binary, parameters, variants })
    }

    /// Varnish and Traffic Server, as far as they are installed, with storages on the disk of `size` bytes. Traffic Server has
    /// `memory` bytes of them in memory, too.
    pub(crate) fn others_on_disk(&self, size: u64, memory: u64) -> impl Iterator<Item = Contestant> {
        self.varnish_file(size).into_iter().chain(self.traffic_server_of(size, memory))
    }

    /// Ours, with more directives for `http {}`, and its cache in a directory of its own.
    pub(crate) fn ours(&self, name: &str, http: &str) -> Contestant {
        self.at(name, &self.binaries.ours, Path::new("cache"), "", http)
    }

    /// Ours, with the cache in segments.
    pub(crate) fn ours_log(&self) -> Contestant {
        self.at(OURS_LOG, &self.binaries.ours, Path::new("cache"), LOG, "")
    }

    /// nginx, the same.
    pub(crate) fn nginx(&self, name: &str, http: &str) -> Contestant {
        self.at(name, &self.binaries.nginx, Path::new("cache"), "", http)
    }

    /// One of both servers, with its cache in this directory and more parameters of `proxy_cache_path`.
    ///
    /// nginx has neither its manager nor its loader, because it has no master: nothing is removed during a
    /// measurement, and it finds responses on the disk that were not loaded. Tailwater has both.
    pub(crate) fn at(
        &self,
        name: &str,
        binary: &Binary,
        dir: &Path,
        parameters: &str,
        http: &str,
    ) -> Contestant {
        let origin = self.origin.addr().to_string();
        let dir = dir.display().to_string();
        let known_name = conf::fill(conf::CACHE, &[("@CACHE@", &dir), ("@PARAMETERS@", parameters)]);
        let http = format!("{known_name}{}{http}", conf::upstream("origin", &origin));
        let server = format!("{}\n{}", conf::CACHE_SERVER, loops::location(binary));
        Contestant::server(name, binary, &http, &server)
    }

    /// Traffic Server, with all that it writes below its directory.
    pub(crate) fn traffic_server(&self) -> Option<Contestant> {
        self.traffic_server_of(256 << 20, 256 << 20)
    }

    /// Traffic Server, with a storage of `size` bytes, of which `memory` are in memory, too.
    fn traffic_server_of(&self, size: u64, memory: u64) -> Option<Contestant> {
        let OtherProgram { path, .. } = self.traffic_server.as_ref()?;
        let bin = path.parent()?.display();
        let places = ["localstatedir", "runtimedir", "datadir", "includedir", "mandir", "infodir"];
        let places: String = places.iter().map(|place| format!("{place}: {PREFIX}/run\n")).collect();
        let layout = format!(
            "prefix: {PREFIX}
exec_prefix: {PREFIX}
bindir: {bin}
sbindir: {bin}
libdir: {PREFIX}/run
libexecdir: {PREFIX}/run
sysconfdir: {PREFIX}/conf
logdir: {PREFIX}/logs
cachedir: {PREFIX}/cache
{places}"
        );
        let contestant = Contestant::other(TRAFFIC_SERVER, path, &[&format!("--run-root={CONF}")], layout)
            .with_file(
                "conf/records.config",
                conf::fill(conf::TRAFFIC_SERVER, &[("@MEMORY@", &memory.to_string())]),
            )
            .with_file("conf/ip_allow.yaml", IP_ALLOW.to_owned())
            .with_file("conf/storage.config", format!("{PREFIX}/cache {}M\n", size >> 20))
            .with_file("conf/cache.config", "dest_domain=. ttl-in-cache=1d\n".to_owned())
            .with_file("conf/remap.config", format!("map / http://127.0.0.1:{}/\n", self.origin.port()))
            .with_file("cache/.keep", String::new())
            .with_file("run/.keep", String::new());
        Some(contestant)
    }

    /// Varnish, with its storage in memory.
    pub(crate) fn varnish(&self) -> Option<Contestant> {
        self.varnish_with(VARNISH, "malloc,1g")
    }

    /// Varnish, with its storage in a file of `size` bytes.
    fn varnish_file(&self, size: u64) -> Option<Contestant> {
        self.varnish_with(VARNISH_FILE, &format!("file,{PREFIX}/storage,{}m", size >> 20))
    }

    fn varnish_with(&self, name: &str, storage: &str) -> Option<Contestant> {
        let OtherProgram { path, .. } = self.varnish.as_ref()?;
        let port = self.origin.port();
        let conf = conf::fill(conf::VARNISH, &[("@ORIGIN@", &port.to_string())]);
        let listen = format!("127.0.0.1:{PORT}");
        let args = ["-F", "-a", &listen, "-n", PREFIX, "-f", CONF, "-s", storage, "-t", "86400"];
        Some(Contestant::other(name, path, &args, conf))
    }
}
