//! Certificates of the local authority: `serve --tls localhost`, `proxy https://…` and `trust`.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tw_testkit::ports::Port;
use tw_testkit::process::Group;
use tw_testkit::{Client, Signal, TempDir, wait};

use crate::support::http3::{Http3Client, http3_settings};

/// A user with a data directory.
struct User(TempDir);

impl User {
    fn new() -> Self {
        Self(TempDir::new("user").unwrap())
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tailwater"));
        command.args(words).env("XDG_DATA_HOME", self.0.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Starts a server, and waits for its first line of output.
    fn start(&self, words: &[&str]) -> Running {
        let port = Port::reserve().unwrap();
        let out = TempDir::new("out").unwrap();
        let file = |name| File::create(out.join(name)).unwrap();
        let mut command = self.command(words);
        command.arg(format!("--listen={}", port.number()));
        command.stdout(file("stdout")).stderr(file("stderr"));
        let group = Group::new(command.process_group(0).spawn().unwrap());
        let running = Running { out, port, group };
        let is_ready = wait::until(wait::TIMEOUT, || running.printed().contains("://"));
        assert!(is_ready, "{}{}", running.printed(), running.said());
        running
    }

    /// Clients that trust the authority of this user.
    fn client(&self) -> Arc<ClientConfig> {
        let file = self.0.join("tailwater/authority/ca.crt");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(rustls::ALL_VERSIONS).unwrap();
        Arc::new(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

/// A running command.
struct Running {
    out: TempDir,
    port: Port,
    group: Group,
}

impl Running {
    fn addr(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port.number()).into()
    }

    fn printed(&self) -> String {
        fs::read_to_string(self.out.join("stdout")).unwrap_or_default()
    }

    fn said(&self) -> String {
        fs::read_to_string(self.out.join("stderr")).unwrap_or_default()
    }

    fn end(mut self) {
        self.group.signal(Signal::INT).unwrap();
        assert_eq!(self.group.wait(wait::TIMEOUT).unwrap().code(), Some(0), "{}", self.said());
    }
}

fn site() -> TempDir {
    let site = TempDir::new("site").unwrap();
    site.write("a.txt", "hello").unwrap();
    site
}

#[test]
fn local_names_have_a_certificate_of_the_local_authority() {
    let user = User::new();
    let site = site();
    let path = site.path().to_str().unwrap();
    let served = user.start(&["serve", path, "--tls", "localhost", "--tls", "app.test"]);
    let url = format!("https://localhost:{}/", served.port.number());
    let printed = served.printed();
    assert!(printed.starts_with(&format!("Serving {path} at {url}\nBrowsers warn of")), "{printed}");
    for name in ["localhost", "app.test", "127.0.0.1", "::1"] {
        let mut client = Client::connect_tls(served.addr(), &user.client(), name).unwrap();
        client.send("GET /a.txt HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let response = client.read_response().unwrap();
        assert_eq!(response.text(), "hello", "{name}");
        let http3 = format!("h3=\":{}\"; ma=86400", served.port.number());
        assert_eq!(response.field("Alt-Svc"), Some(&*http3));
    }
    let mut http3 =
        Http3Client::connect(&http3_settings(&user.client(), "localhost"), served.addr()).unwrap();
    assert_eq!(http3.get("/a.txt").text(), "hello");
    // The server waits for clients that it can still reach.
    http3.close();
    assert!(Client::connect_tls(served.addr(), &user.client(), "other.test").is_err());
    let stranger = User::new();
    assert!(stranger.run(&["trust", "--store", path]).status.success());
    assert!(Client::connect_tls(served.addr(), &stranger.client(), "localhost").is_err());
    let key = fs::metadata(user.0.join("tailwater/authority/ca.key")).unwrap();
    assert_eq!(key.permissions().mode() & 0o777, 0o600);
    // The next start has the same authority.
    served.end();
    let client = user.client();
    let served = user.start(&["serve", path, "--tls", "localhost"]);
    assert!(Client::connect_tls(served.addr(), &client, "localhost").is_ok());
    served.end();
}

#[test]
fn proxy_checks_certificates_of_https_servers_unless_told_not_to() {
    let user = User::new();
    let site = site();
    let origin = user.start(&["serve", site.path().to_str().unwrap(), "--tls", "localhost"]);
    let url = format!("https://localhost:{}", origin.port.number());
    let get = |proxied: &Running| {
        let response = Client::get(proxied.addr(), "/a.txt").unwrap();
        (response.status, response.text())
    };
    let proxied = user.start(&["proxy", &url]);
    assert_eq!(get(&proxied), (200, "hello".to_owned()), "{}", proxied.said());
    // A directory without the trailing slash is redirected, and the redirect names the local server.
    fs::create_dir(site.join("sub")).unwrap();
    let moved = Client::get(proxied.addr(), "/sub").unwrap();
    let location = moved.field("Location").unwrap();
    assert!(location.ends_with("/sub/") && !location.contains(&url), "{location}");
    proxied.end();

    // A user who trusts another authority does not trust this one.
    let stranger = User::new();
    let store = TempDir::new("store").unwrap();
    assert!(stranger.run(&["trust", "--store", store.path().to_str().unwrap()]).status.success());
    let proxied = stranger.start(&["proxy", &url]);
    assert_eq!(get(&proxied).0, 502);
    let is_said = wait::until(wait::TIMEOUT, || proxied.said().contains("certificate verify error"));
    assert!(is_said, "{}", proxied.said());
    proxied.end();
    let proxied = stranger.start(&["proxy", &url, "--insecure"]);
    assert_eq!(get(&proxied), (200, "hello".to_owned()), "{}", proxied.said());
    proxied.end();
    origin.end();
}

#[test]
fn authority_goes_into_a_store_and_out_of_it() {
    let user = User::new();
    let store = TempDir::new("store").unwrap();
    let place = store.path().to_str().unwrap();
    let files = || fs::read_dir(store.path()).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    let run = |words: &[&str]| {
        let output = user.run(words);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_owned()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let none = run(&["trust", "--store", place, "--remove"]);
    assert_eq!(none, (Some(0), "There is no local authority.\n".to_owned(), String::new()));
    assert_eq!(fs::read_dir(user.0.path()).unwrap().count(), 0, "asking makes none");

    let (code, said, err) = run(&["trust", "--store", place]);
    let [file] = &files()[..] else { panic!("{code:?} {said} {err}") };
    assert!(said.starts_with(&format!("The local authority is trusted: {}\n", file.display())), "{said}");
    let own = user.0.join("tailwater/authority/ca.crt");
    assert_eq!(fs::read(file).unwrap(), fs::read(&own).unwrap());
    // Repeating the command changes nothing.
    assert_eq!(run(&["trust", "--store", place]).1, said);
    let (code, said, _) = run(&["trust", "--remove", "--store", place]);
    assert!(code == Some(0) && said.ends_with(&format!("{} was removed\n", file.display())), "{said}");
    assert!(files().is_empty());

    // A user without permission is told the commands to run as root.
    let nowhere = store.join("none");
    let (code, out, err) = run(&["trust", "--store", nowhere.to_str().unwrap()]);
    let expected = format!(
        "tailwater: [emerg] this user may not change {}\n    = as root: sudo install -m 644 {} {}/tailwater-",
        nowhere.display(),
        own.display(),
        nowhere.display()
    );
    assert!((code, out.as_str()) == (Some(1), "") && err.starts_with(&expected), "{err}");
}
