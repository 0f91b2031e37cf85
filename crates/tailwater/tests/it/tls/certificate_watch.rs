//! `ssl_certificate_watch`: changed certificates without a reload.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::process::geteuid;
use rustls::ALL_VERSIONS;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tw_testkit::server::Builder;
use tw_testkit::tls::{Authority, Certificate};
use tw_testkit::{Client, Server, Signal, wait};

use crate::support::{refusal_of, server};

const BOTH: &str = "ssl_certificate one.crt; ssl_certificate_key one.key;";

/// Configuration with `main` in front of `http`.
fn conf(main: &str, said: &str) -> String {
    format!(
        "{main} worker_processes 2; http {{ ssl_certificate_watch on;
           server {{ listen 127.0.0.1:{{port}} ssl; {BOTH} return 200 {said}; }}
           server {{ listen 127.0.0.1:{{port1}} ssl; {BOTH} ssl_certificate_watch off; return 200 {said}; }} }}"
    )
}

fn started(builder: Builder, made: &Certificate, main: &str) -> Server {
    let builder = builder.certificate("one", made);
    builder.start(&conf(main, "before")).unwrap()
}

/// Replaces files by rename, as programs that fetch certificates do; only the owner may read the key.
fn put(server: &Server, name: &str, text: &str, mode: u32) {
    let path = server.prefix().join("conf").join(name);
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
    fs::rename(new, path).unwrap();
}

struct World {
    authority: Authority,
    one: Certificate,
    two: Certificate,
}

impl World {
    fn new() -> Self {
        let authority = Authority::new();
        let one = authority.certify(&["localhost"]);
        let two = authority.certify(&["localhost"]);
        Self { authority, one, two }
    }

    /// True if several clients in a row get this certificate at the listening address with this number.
    fn is_shown(&self, server: &Server, index: usize, made: &Certificate) -> bool {
        let config = self.authority.client(ALL_VERSIONS);
        (0..6).all(|_| {
            let client = Client::connect_tls(server.addr_of(index), &config, "localhost").unwrap();
            let chain = client.session().unwrap().peer_certificates().unwrap();
            chain[0] == CertificateDer::from_pem_slice(made.pem.as_bytes()).unwrap()
        })
    }

    fn wait_shown(&self, server: &Server, made: &Certificate) {
        assert!(wait::until(wait::TIMEOUT, || self.is_shown(server, 0, made)), "{}", server.error_log());
    }

    fn says(&self, server: &Server) -> String {
        let mut client =
            Client::connect_tls(server.addr(), &self.authority.client(ALL_VERSIONS), "localhost").unwrap();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        client.read_response().unwrap().text()
    }
}

#[test]
fn changed_certificates_are_used_without_a_reload() {
    let world = World::new();
    // A process that serves alone reads with the rights that it has; a worker process may not read a key, and its master may.
    let alone = if geteuid().is_root() { "user root root;" } else { "" };
    for (builder, main, mode) in
        [(server().with_master(), "", 0o600), (server().in_one_process(), alone, 0o644)]
    {
        let mut server = started(builder, &world.one, main);
        world.wait_shown(&server, &world.one);
        server.write_conf(&conf(main, "after")).unwrap();
        put(&server, "one.crt", &world.two.pem, 0o644);
        put(&server, "one.key", &world.two.key, mode);
        world.wait_shown(&server, &world.two);
        server.wait_error_log("one.crt\" has changed, the new one is used").unwrap();
        assert_eq!(world.says(&server), "before", "no configuration was loaded");
        assert!(world.is_shown(&server, 1, &world.one), "this one is not followed");

        // A key that does not fit, and a certificate that is cut.
        put(&server, "one.key", &world.one.key, mode);
        let line = server.wait_error_log("it does not belong to the certificate, certificate \"").unwrap();
        assert!(line.contains("[error]") && line.contains("one.crt\" stays as it was"), "{line}");
        put(&server, "one.crt", &world.one.pem[..100], 0o644);
        server.wait_error_log("certificate 1 of the file is broken").unwrap();
        assert!(world.is_shown(&server, 0, &world.two));
        assert_eq!(server.error_log().matches("it does not belong to the certificate").count(), 1);
        put(&server, "one.crt", &world.one.pem, 0o644);
        world.wait_shown(&server, &world.one);
        // A reload has them as they are, and goes on from there.
        server.signal(Signal::HUP).unwrap();
        assert!(wait::until(wait::TIMEOUT, || world.says(&server) == "after"));
        put(&server, "one.crt", &world.two.pem, 0o644);
        put(&server, "one.key", &world.two.key, mode);
        world.wait_shown(&server, &world.two);
    }
}

#[test]
fn next_worker_uses_the_watched_certificate() {
    let world = World::new();
    let server = started(server().with_master(), &world.one, "");
    put(&server, "one.crt", &world.two.pem, 0o644);
    put(&server, "one.key", &world.two.key, 0o600);
    world.wait_shown(&server, &world.two);
    let children = || {
        let pid = server.pid();
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
    };
    let first = children();
    let pid = first.split_whitespace().next().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let is_another = || !children().is_empty() && children() != first;
    assert!(wait::until(wait::TIMEOUT, is_another));
    let connects =
        || Client::connect_tls(server.addr(), &world.authority.client(ALL_VERSIONS), "localhost").is_ok();
    assert!(wait::until(wait::TIMEOUT, connects));
    assert!(world.is_shown(&server, 0, &world.two));
}

/// Layout of certbot and Kubernetes: a link changes, and no file.
#[test]
fn changed_link_target_is_noticed() {
    let world = World::new();
    let builder = server()
        .with_master()
        .file("conf/1/tls.crt", &world.one.pem)
        .file("conf/1/tls.key", &world.one.key)
        .file("conf/2/tls.crt", &world.two.pem)
        .file("conf/2/tls.key", &world.two.key)
        .certificate("one", &world.one);
    let server = builder.start(&conf("", "before")).unwrap();
    let dir = server.prefix().join("conf");
    let point_to = |target: &str| {
        symlink(target, dir.join("new")).unwrap();
        fs::rename(dir.join("new"), dir.join("data")).unwrap();
    };
    point_to("1");
    for name in ["crt", "key"] {
        symlink(format!("data/tls.{name}"), dir.join("new")).unwrap();
        fs::rename(dir.join("new"), dir.join(format!("one.{name}"))).unwrap();
    }
    assert!(world.is_shown(&server, 0, &world.one));
    point_to("2");
    world.wait_shown(&server, &world.two);
}

#[test]
fn malformed_directives_are_refused() {
    let said = refusal_of(&format!(
        "http {{ server {{ listen 127.0.0.1:{{port}} ssl; {BOTH} ssl_certificate_watch maybe; }} }}"
    ));
    assert!(said.contains("invalid value \"maybe\" in \"ssl_certificate_watch\" directive"), "{said}");
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    let builder = server().certificate("one", &made).file("conf/response", b"whatever it says");
    let conf = format!(
        "http {{ server {{ listen 127.0.0.1:{{port}} ssl; {BOTH} ssl_certificate_watch on; ssl_stapling on; ssl_stapling_file response; }} }}"
    );
    let said = builder.start(&conf).err().unwrap().to_string();
    assert!(said.contains("\"ssl_stapling_file\" cannot be used with certificate \""), "{said}");
}
