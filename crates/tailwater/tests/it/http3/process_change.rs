//! Connections that outlive their listening process: over binary upgrades, in a worker process that was replaced, and those of one that was
//! killed.

use std::time::{Duration, Instant};

use quinn_proto::ConnectionError;
use rustls::version::TLS13;
use tw_testkit::quic::ClientSettings;
use tw_testkit::tls::Authority;
use tw_testkit::{Client, Server, Signal, wait};

use crate::support::http3::{Http3Client, http3_settings};
use crate::support::metrics::metric;
use crate::support::process::{is_gone, kill, worker};
use crate::support::reload::reload;
use crate::support::server;
use crate::support::upgrade::{start_new_binary, upgrade};

/// A body of many windows of flow control.
const LARGE: usize = 12 << 20;
/// The part of it that is read before something changes.
const FIRST: usize = 1 << 20;

/// Server over TCP at the first address, and over QUIC at the second one.
pub(super) struct Site {
    pub(super) server: Server,
    pub(super) settings: ClientSettings,
}

/// Configuration with this content of its main part; `version` is the content of `/version`.
pub(super) fn conf(main: &str, version: u64) -> String {
    format!(
        "{main} http {{ ssl_certificate one.crt; ssl_certificate_key one.key;
             server {{ listen 127.0.0.1:{{port}}; location / {{ return 200 $pid; }} location = /metrics {{ metrics; }}
                 location = /version {{ return 200 {version}; }} }}
             server {{ listen 127.0.0.1:{{port1}} quic reuseport; root html; add_header X-Process $pid; location = /pid {{ return 200 $pid; }} }} }}"
    )
}

/// The byte at each place of the large body.
pub(super) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

impl Site {
    /// Starts a server whose large file has this length.
    pub(super) fn start(main: &str, len: usize) -> Self {
        let authority = Authority::new();
        let files = server().with_master().file("html/large", content(len));
        let files = files.certificate("one", &authority.certify(&["localhost"]));
        let settings = http3_settings(&authority.client(&[&TLS13]), "localhost");
        Self { server: files.start(&conf(main, 0)).unwrap(), settings }
    }

    fn client(&self) -> Http3Client {
        Http3Client::connect(&self.settings, self.server.addr_of(1)).unwrap()
    }

    /// A client that has read a part of a large body.
    fn download(&self) -> (Http3Client, u64) {
        let mut client = self.client();
        let id = client.begin("GET", "/large", &[], true);
        client.body(id, FIRST);
        (client, id)
    }

    /// The process that serves a new client over TCP.
    pub(super) fn serving(&self) -> u32 {
        Client::get(self.server.addr(), "/").map_or(0, |response| response.text().parse().unwrap_or(0))
    }

    /// The process that serves a new client over QUIC.
    fn serving_quic(&self) -> u32 {
        let mut client = self.client();
        let response = client.get("/pid");
        // A process that is left waits for the acknowledgement of a client that has vanished.
        client.close();
        response.text().parse().unwrap()
    }

    fn upgrade(&self) -> (u32, u32) {
        upgrade(&self.server, || self.serving())
    }

    #[track_caller]
    fn finish(&self, (mut client, id): (Http3Client, u64)) {
        let response =
            client.finish(id).unwrap_or_else(|error| panic!("{error:?}: {}", self.server.error_log()));
        assert!(response.status == 200 && response.body == content(LARGE));
        client.close();
    }

    #[track_caller]
    fn wait_gone(&self, pid: u32) {
        assert!(wait::until(wait::TIMEOUT, || is_gone(pid)), "{}", self.server.error_log());
    }
}

#[test]
fn download_goes_on_over_a_binary_upgrade() {
    let site = Site::start("worker_processes 2;", LARGE);
    let download = site.download();
    let before = worker(&site.server);
    let (old, _) = site.upgrade();
    assert!(!is_gone(before), "{}", site.server.error_log());
    assert_ne!(site.serving_quic(), before);
    site.finish(download);
    assert!(metric(&site.server, "udp_datagrams_passed_to_processes_total") > 0);
    // The old processes end, because they have no connections left.
    site.wait_gone(before);
    site.wait_gone(old);
}

#[test]
fn download_goes_on_in_a_replaced_worker() {
    let mut site = Site::start("worker_processes 2;", LARGE);
    let download = site.download();
    let before = worker(&site.server);
    // The environment of a process cannot change while it runs.
    reload(&mut site.server, &conf("worker_processes 2; env A=b;", 1));
    let is_new = || (0..8).all(|_| site.serving() != before);
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", site.server.error_log());
    assert_ne!(site.serving_quic(), before);
    assert!(!is_gone(before));
    site.finish(download);
    site.wait_gone(before);
}

#[test]
fn downloads_go_on_over_three_binary_upgrades() {
    let site = Site::start("worker_processes 2;", LARGE);
    let mut downloads = vec![site.download()];
    for _ in 0..3 {
        site.upgrade();
        downloads.push(site.download());
    }
    for download in downloads {
        site.finish(download);
    }
    assert_eq!(site.client().get("/pid").status, 200);
}

#[test]
fn download_goes_on_over_an_upgrade_while_its_client_moves() {
    let site = Site::start("worker_processes 2;", LARGE);
    let (mut client, id) = site.download();
    client.change_port();
    client.body(id, 2 * FIRST);
    site.upgrade();
    for part in 3..6 {
        client.change_port();
        client.body(id, part * FIRST);
    }
    site.finish((client, id));
}

#[test]
fn newest_binary_receives_until_it_is_stopped() {
    let site = Site::start("worker_processes 2;", LARGE);
    let old_download = site.download();
    let before = worker(&site.server);
    let (_, new) = start_new_binary(&site.server, || site.serving());
    // Both processes serve over TCP, but only the new one over QUIC.
    let is_new = || (0..8).all(|_| site.serving_quic() != before);
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", site.server.error_log());
    let new_download = site.download();
    kill(new, Signal::QUIT);
    let is_old = || (0..8).all(|_| site.serving_quic() == before);
    assert!(wait::until(wait::TIMEOUT, is_old), "{}", site.server.error_log());
    site.finish(new_download);
    site.finish(old_download);
    site.wait_gone(new);
}

#[test]
fn clients_of_a_killed_worker_get_a_stateless_reset() {
    let site = Site::start("worker_processes 2;", LARGE);
    let (mut client, _) = site.download();
    let before = worker(&site.server);
    kill(before, Signal::KILL);
    let is_new = || ![0, before].contains(&site.serving());
    assert!(wait::until(wait::TIMEOUT, is_new), "{}", site.server.error_log());
    let begin = Instant::now();
    client.begin("GET", "/pid", &[], true);
    let lost = client.udp.until(|client| {
        client.engine.connection.ping();
        client.lost.clone()
    });
    assert!(matches!(lost, Ok(ConnectionError::Reset)), "{lost:?}");
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(site.client().get("/pid").status, 200);
}
