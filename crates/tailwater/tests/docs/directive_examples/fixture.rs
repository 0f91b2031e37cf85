//! Files that examples name.

use std::path::Path;
use std::sync::OnceLock;

use tw_testkit::TempDir;
use tw_testkit::mmdb::{Mmdb, country};
use tw_testkit::tls::{Authority, Certificate};

/// Directories of absolute paths in examples.
const DIRECTORIES: [&str; 4] = ["/etc/", "/srv/", "/var/", "/run/"];
/// Login of NATS, with a seed of 32 equal bytes.
const CREDENTIALS: &str = "SUAAOBYHA4DQOBYHA4DQOBYHA4DQOBYHA4DQOBYHA4DQOBYHA4DQOBZ5FE\n";
/// Public key of RFC 8037.
const KEY_SET: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
const SCRIPT: &str = "function any(r) { }\nexport default {check: any, clean: any, hello: any, route: any, tenant: any, tick: any, upper: any};\n";

/// A directory for configurations.
pub(super) fn directory() -> TempDir {
    TempDir::new("examples").unwrap()
}

/// A configuration whose absolute paths lead below `dir`, where the files are made that it names.
pub(super) fn with_paths_below(text: &str, dir: &Path) -> String {
    let mut moved = text.to_owned();
    for directory in DIRECTORIES {
        for before in [" ", "\"", "'", "=", ":"] {
            let place = format!("{before}{}{directory}", dir.display());
            moved = moved.replace(&format!("{before}{directory}"), &place);
        }
    }
    for word in moved.split(|c: char| c.is_whitespace() || matches!(c, ';' | '"' | '\'')) {
        let is_plain = !word.contains(['$', '*', '\\', ':']) && word.contains('.');
        if is_plain && let Some(content) = content(&dir.join(word)) {
            make(&dir.join(word), &content);
        }
    }
    moved
}

fn make(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Content of a file by its name; `None` if examples need no such file.
fn content(path: &Path) -> Option<Vec<u8>> {
    static CERTIFICATE: OnceLock<Certificate> = OnceLock::new();
    let certificate = CERTIFICATE.get_or_init(|| Authority::new().certify(&["www.example.com"]));
    let name = path.file_name()?.to_str()?;
    let content = match (name, name.rsplit_once('.')?.1) {
        ("edge.key" | "old.key" | "new.key", _) => b"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n".to_vec(),
        ("quic.key", _) => vec![7; 32],
        ("current.key" | "previous.key", _) => vec![7; 80],
        ("node.conf", _) => b"node edge-1;\n".to_vec(),
        ("geo.conf", _) => b"192.0.2.0/24 1;\n".to_vec(),
        ("modsecurity.conf" | "crs-setup.conf", _) => b"SecRuleEngine On\n".to_vec(),
        (_, "pem" | "crt") => certificate.pem.clone().into_bytes(),
        (_, "key") => certificate.key.clone().into_bytes(),
        (_, "creds") => CREDENTIALS.into(),
        (_, "password" | "secret") => b"0123456789abcdef0123456789abcdef\n".to_vec(),
        (_, "json" | "jwks") => KEY_SET.into(),
        (_, "js") => SCRIPT.into(),
        (_, "mmdb") => Mmdb::v6(24).built(1).network("::/0", &country("DE", "Germany")).encode(),
        _ => return None,
    };
    Some(content)
}
