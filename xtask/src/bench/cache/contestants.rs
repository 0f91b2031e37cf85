//! Caches under measurement, all before the same origin and all with persistent connections to it.

use std::path::Path;

use tw_testkit::Client;

use crate::bench::contestant::{
    Binaries, Binary, CONF, Contestant, OtherProgram, PORT, PREFIX, Running, find_program, upstream_group,
};
pub(super) use crate::bench::contestant::{NGINX, OURS};
use crate::bench::exec::RunPlacement;
use crate::bench::options::Options;
use crate::bench::proxy::origin::REQUEST_COUNT;
use crate::bench::{Outcome, loops};

pub(super) const VARNISH: &str = "varnish, memory";
pub(super) const TRAFFIC_SERVER: &str = "trafficserver";

/// One of so many requests may go to the origin: nginx with threads sometimes forwards a hit.
const FORWARDED_SHARE: u64 = 1_000;

/// Has nginx read and send by threads what may not be in memory.
pub(super) const NGINX_THREADS: &str = "aio threads;";

/// All that it takes to set a cache before the origin. Dropping it ends the origin.
pub(super) struct Caches {
    pub(super) binaries: Binaries,
    /// Varnish, with its storage in memory.
    pub(super) varnish: Option<OtherProgram>,
    /// Traffic Server, with its storage in a file and hot objects in memory too.
    pub(super) traffic_server: Option<OtherProgram>,
    origin: Running,
}

/// Traffic Server with one event thread, without a change of user, which waits for its cache on start.
const RECORDS: &str = "\
CONFIG proxy.config.http.server_ports STRING @PORT@:ip-in=127.0.0.1
CONFIG proxy.config.http.wait_for_cache INT 1
CONFIG proxy.config.admin.user_id STRING #-1
CONFIG proxy.config.crash_log_helper STRING NULL
CONFIG proxy.config.exec_thread.autoconfig INT 0
CONFIG proxy.config.exec_thread.limit INT 1
CONFIG proxy.config.accept_threads INT 0
CONFIG proxy.config.log.logging_enabled INT 0
CONFIG proxy.config.http.cache.required_headers INT 0
CONFIG proxy.config.cache.ram_cache.size INT 268435456
CONFIG proxy.config.http.keep_alive_no_activity_timeout_in INT 600
";
const IP_ALLOW: &str = "ip_allow: [{ apply: in, ip_addrs: 0/0, action: allow, methods: ALL }]\n";

impl Caches {
    /// Finds the programs and starts the origin on the core of the load, with one response of `large` bytes.
    pub(super) fn find(options: &Options, load_cpu: usize, large: u64) -> Outcome<Self> {
        let binaries = Binaries::find(options)?;
        let varnish = OtherProgram::at(find_program("varnishd"), "-V")?;
        let traffic_server = OtherProgram::at(find_program("traffic_server"), "--version")?;
        let args = ["--large".to_owned(), large.to_string()];
        let origin = Contestant::own_loop("origin", "origin", &args).start(&RunPlacement::on(load_cpu))?;
        Ok(Self { binaries, varnish, traffic_server, origin })
    }

    /// Number of requests to the origin.
    pub(super) fn origin_requests(&self) -> Outcome<u64> {
        Ok(Client::get(self.origin.addr(), REQUEST_COUNT)?.text().trim().parse()?)
    }

    /// Measures hits, whose number is `count`. Returns also the number of requests to the origin for stored
    /// responses: too many are an error.
    pub(super) fn hits<T>(
        &self,
        name: &str,
        measure: impl FnOnce() -> Outcome<T>,
        count: impl FnOnce(&T) -> u64,
    ) -> Outcome<(T, u64)> {
        let before = self.origin_requests()?;
        let measured = measure()?;
        let origin_requests = self.origin_requests()? - before;
        match origin_requests * FORWARDED_SHARE > count(&measured) {
            true => Err(format!("{name}: not hits: the origin was asked {origin_requests} times").into()),
            false => Ok((measured, origin_requests)),
        }
    }

    /// Ours, with more directives for `http {}`, and its cache in a directory of its own.
    pub(super) fn ours(&self, name: &str, http: &str) -> Contestant {
        self.at(name, &self.binaries.ours, Path::new("cache"), http)
    }

    /// nginx, the same.
    pub(super) fn nginx(&self, name: &str, http: &str) -> Contestant {
        self.at(name, &self.binaries.nginx, Path::new("cache"), http)
    }

    /// One of both servers, with its cache in this directory.
    ///
    /// nginx has neither its manager nor its loader, because it has no master: nothing is removed during a
    /// measurement, and it finds responses on the disk that were not loaded. Tailwater has both.
    pub(super) fn at(&self, name: &str, binary: &Binary, dir: &Path, http: &str) -> Contestant {
        let origin = upstream_group("origin", &self.origin.addr().to_string());
        let dir = dir.display();
        let http = format!(
            "access_log off;
    proxy_temp_path proxy_temp;
    proxy_http_version 1.1;
    {origin}
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

    /// Traffic Server, with all that it writes below its directory.
    pub(super) fn traffic_server(&self) -> Option<Contestant> {
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
            .with_file("conf/records.config", RECORDS.to_owned())
            .with_file("conf/ip_allow.yaml", IP_ALLOW.to_owned())
            .with_file("conf/storage.config", format!("{PREFIX}/cache 256M\n"))
            .with_file("conf/cache.config", "dest_domain=. ttl-in-cache=1d\n".to_owned())
            .with_file("conf/remap.config", format!("map / http://127.0.0.1:{}/\n", self.origin.port()))
            .with_file("cache/.keep", String::new())
            .with_file("run/.keep", String::new());
        Some(contestant)
    }

    /// Varnish.
    pub(super) fn varnish(&self) -> Option<Contestant> {
        let OtherProgram { path, .. } = self.varnish.as_ref()?;
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
