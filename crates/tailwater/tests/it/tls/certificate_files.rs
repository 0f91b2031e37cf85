//! Files of certificates and keys: what tools write into them, and how often they are read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

use rustls::ALL_VERSIONS;
use tw_app::{Config, Modules, load};
use tw_conf::{ConfFiles, Diagnostics, MemoryFiles, Reader, Tree};
use tw_core::load::Prefixes;
use tw_core::shared_objects::SharedObjects;
use tw_testkit::Client;
use tw_testkit::tls::{Authority, Certificate};

use crate::support::{refusal_of, server, start};

const MARK: &str = "\u{feff}";

#[test]
fn byte_order_marks_lose_no_certificate() {
    let authority = Authority::new();
    let other = Authority::new();
    let made = authority.certify(&["localhost"]);
    let marked = Certificate {
        pem: format!("{MARK}{}{MARK}{}", made.pem, authority.pem()),
        key: format!("{MARK}{}", made.key),
    };
    for between in [MARK, "", "\r\n# the second one\r\n\u{feff} "] {
        let authorities = format!("{MARK}{}{between}{}", other.pem().trim_end(), authority.pem().trim_end());
        let server = start(
            server().certificate("one", &marked).file("conf/ca.crt", &authorities),
            "server { listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key;
                 ssl_client_certificate ca.crt; ssl_verify_client on; return 200 '$ssl_client_verify'; }",
        );
        let client = authority.client_with(ALL_VERSIONS, &authority.certify(&["client.example"]));
        let mut client = Client::connect_tls(server.addr(), &client, "localhost").unwrap();
        client.send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert_eq!(client.read_response().unwrap().text(), "SUCCESS", "{between:?}");
    }
}

#[test]
fn sections_that_cannot_be_read_are_refused() {
    let authority = Authority::new();
    let made = authority.certify(&["localhost"]);
    for (damaged, expected) in [
        (authority.pem().replacen("-----BEGIN", "----BEGIN", 1), "its line \"-----BEGIN\" is missing"),
        (
            authority.pem().replacen("CERTIFICATE-----", "CERTIFICATE----", 1),
            "its line \"-----BEGIN\" is damaged",
        ),
        (
            authority.pem().replacen("-----END", "-----FIN", 1),
            "its line \"-----END\" is missing or another one",
        ),
    ] {
        let broken = Certificate { pem: format!("{}{damaged}", made.pem), key: made.key.clone() };
        let conf = "http { server { listen 127.0.0.1:{port} ssl; ssl_certificate one.crt; ssl_certificate_key one.key; } }";
        let output = server().certificate("one", &broken).arg("-t").run(conf).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let expected = format!("certificate 2 of the file is broken: {expected}");
        assert!(!output.status.success() && said.contains(&expected), "{said}");
    }
}

/// Files in memory, with the number of times that each was read.
#[derive(Default)]
struct CountedFiles {
    files: MemoryFiles,
    reads: RefCell<BTreeMap<String, usize>>,
}

impl ConfFiles for CountedFiles {
    fn read(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        *self.reads.borrow_mut().entry(String::from_utf8_lossy(name).into_owned()).or_default() += 1;
        self.files.read(name)
    }

    fn open(&self, name: &[u8]) -> io::Result<OwnedFd> {
        self.files.open(name)
    }

    fn list(&self, directory: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.files.list(directory)
    }

    fn exists(&self, name: &[u8]) -> bool {
        self.files.exists(name)
    }

    fn environment(&self, name: &str) -> Option<Vec<u8>> {
        self.files.environment(name)
    }
}

#[test]
fn servers_share_files_that_are_read_once() {
    let authority = Authority::new();
    let made = authority.certify_rsa(&["localhost"]);
    let mut counted = CountedFiles::default();
    for (name, text) in
        [("/p/one.crt", made.pem.clone()), ("/p/one.key", made.key.clone()), ("/p/ca.crt", authority.pem())]
    {
        counted.files.insert(name.as_bytes(), text.into_bytes());
    }
    let files = "ssl_certificate one.crt; ssl_certificate_key one.key; ssl_client_certificate ca.crt; ssl_verify_client on;";
    let own = format!("server {{ listen 127.0.0.1:1 ssl; {files} return 200; }}").repeat(10);
    let inherited = "server { listen 127.0.0.1:2 ssl; return 200; }".repeat(10);
    let upstream =
        "proxy_ssl_certificate one.crt; proxy_ssl_certificate_key one.key; proxy_pass https://127.0.0.1:3;";
    let conf = format!(
        "events {{ }} http {{ {files} {own} {inherited} server {{ listen 127.0.0.1:4; location / {{ {upstream} }} }} }}
         stream {{ server {{ listen 127.0.0.1:5 ssl; ssl_certificate one.crt; ssl_certificate_key one.key; return a; }} }}"
    );
    let none = SharedObjects::default();
    let mut before: Option<Config> = None;
    for reload in 1..=3 {
        let mut tree = Tree::default();
        Reader::new(&counted, b"/p/").text(&mut tree, b"n", conf.as_bytes()).unwrap();
        let prefixes = Prefixes {
            prefix: b"/p/".to_vec(),
            conf: b"/p/".to_vec(),
            error_log: b"stderr".to_vec(),
            hostname: b"h".to_vec(),
        };
        let modules = Modules {
            http: tw_modules::MODULES,
            stream: tw_modules::STREAM_MODULES,
            mail: tw_modules::MAIL_MODULES,
        };
        let mut diagnostics = Diagnostics::default();
        let previous = before.as_ref().map_or(&none, |config| &config.shared_objects);
        let loaded = load(&mut tree, &counted, &prefixes, modules, previous, &mut diagnostics);
        before = Some(loaded.unwrap_or_else(|rejected| panic!("{}", rejected.mistake.message)));
        let reads: Vec<_> = counted.reads.borrow().clone().into_iter().collect();
        let expected = ["/p/ca.crt", "/p/one.crt", "/p/one.key"].map(|name| (name.to_owned(), reload));
        assert_eq!(reads, expected);
    }
}

#[test]
fn mistakes_in_shared_files_are_located_where_they_are_named() {
    let said = refusal_of(
        "http { server { listen 127.0.0.1:{port} ssl; ssl_certificate no.crt; ssl_certificate_key no.key; } }",
    );
    assert!(
        said.contains("cannot load certificate \"") && said.contains("no.crt\": open() failed (2:"),
        "{said}"
    );
}
