//! Automatic certificates (ACME) from Pebble, the test authority of Let's Encrypt, if it is installed.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tw_testkit::ports::{Port, listening};
use tw_testkit::process::Group;
use tw_testkit::tls::Authority;
use tw_testkit::{Lacks, TempDir, leave_out, wait};

use crate::support::server;

/// Pebble on the PATH, or where `TAILWATER_PEBBLE` says.
fn pebble() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("TAILWATER_PEBBLE") {
        return Some(named.into());
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found_path = std::env::split_paths(&paths).map(|dir| dir.join("pebble")).find(|path| path.is_file());
    if found_path.is_none() {
        leave_out(Lacks::Machine, "no pebble to order certificates from");
    }
    found_path
}

#[test]
fn pebble_issues_by_http_01_and_tls_alpn_01() {
    let Some(program) = pebble() else { return };
    let authority = Authority::new();
    let own = authority.certify(&["127.0.0.1", "localhost"]);
    let dir = TempDir::new("pebble").unwrap();
    for challenge in ["http-01", "tls-alpn-01"] {
        let [acme, management, plain, secured] = [(); 4].map(|()| Port::reserve().unwrap());
        let path = |name: &str, text: &str| dir.write(name, text).unwrap().display().to_string();
        let config = format!(
            "{{\"pebble\": {{\"listenAddress\": \"127.0.0.1:{}\", \"managementListenAddress\": \"127.0.0.1:{}\",
              \"certificate\": \"{}\", \"privateKey\": \"{}\", \"httpPort\": {}, \"tlsPort\": {},
              \"profiles\": {{\"default\": {{\"description\": \"all there is\", \"validityPeriod\": 86400}}}}}}}}",
            acme.number(),
            management.number(),
            path("own.crt", &own.pem),
            path("own.key", &own.key),
            plain.number(),
            secured.number(),
        );
        let mut command = Command::new(&program);
        command.arg("-config").arg(path("config.json", &config)).env("PEBBLE_VA_NOSLEEP", "1");
        let said = fs::File::create(dir.join("said")).unwrap();
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        let _group = Group::new(command.process_group(0).spawn().unwrap());
        let said = || fs::read_to_string(dir.join("said")).unwrap_or_default();
        assert!(wait::until(wait::TIMEOUT, || listening(acme.number())), "{}", said());
        let conf = format!(
            "http {{ acme_issuer pebble {{ uri https://127.0.0.1:{}/dir; ssl_trusted_certificate ca.crt; challenge {challenge};
                     accept_terms_of_service; contact admin@example.com; state_path state; }}
               server {{ listen 127.0.0.1:{}; return 301 https://$host$request_uri; }}
               server {{ listen 127.0.0.1:{} ssl; acme_certificate pebble 127.0.0.1; return 204;
                        ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }} }}",
            acme.number(),
            plain.number(),
            secured.number(),
        );
        let server = server().file("conf/ca.crt", authority.pem()).start(&conf).unwrap();
        let is_there = || {
            server.error_log().contains("acme: certificate \"127.0.0.1\" from issuer \"pebble\", good until ")
        };
        let came = wait::until(3 * wait::TIMEOUT, is_there);
        assert!(came, "{challenge}: {}\n{}", server.error_log(), said());
    }
}
