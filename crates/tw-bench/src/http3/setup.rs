//! Servers under measurement over HTTP/3: their binaries, certificates and files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use tw_testkit::TempDir;
use tw_testkit::tls::Authority;

use crate::Outcome;
use crate::contestant::{
    Binaries, Binary, Contestant, NGINX, OURS, PORT, hot_files, present, root_directive,
};
use crate::options::Options;
use crate::tls::Key;
use crate::tls::handshakes::Session;

/// Names, paths and sizes of the files; the last one is the large download.
pub(super) const FILES: [(&str, &str, usize); 4] =
    [("1k", "/1k", 1 << 10), ("32k", "/32k", 32 << 10), ("1m", "/1m", 1 << 20), ("64m", "/64m", 64 << 20)];

/// Certificates of servers, and clients that trust them.
pub(crate) struct Certificates {
    /// Settings of clients, which never resume a session.
    pub(crate) client: Arc<ClientConfig>,
    /// Certificates and keys; removed at the end.
    dir: TempDir,
}

impl Certificates {
    /// A certificate of each kind.
    pub(crate) fn new() -> Outcome<Self> {
        let authority = Authority::new();
        let mut client = ClientConfig::clone(&Session::New.config(&authority));
        client.alpn_protocols = vec![b"h3".to_vec()];
        let dir = TempDir::new("certificates")?;
        Key::write_all(&authority, &dir)?;
        Ok(Self { client: Arc::new(client), dir })
    }

    /// The content of `server {}` for files under one directory, with a certificate of this kind.
    pub(crate) fn server(&self, key: Key, files: &Path) -> String {
        let tls = key.directives(&self.dir);
        let root = root_directive(files);
        format!("listen 127.0.0.1:{PORT} quic; quic_gso on; {tls} {root}")
    }
}

/// Servers under measurement, with their common settings.
pub(super) struct Setup {
    pub(super) binaries: Binaries,
    pub(super) certificates: Certificates,
    files: PathBuf,
}

impl Setup {
    pub(super) fn new(options: &Options) -> Outcome<Self> {
        Ok(Self {
            binaries: Binaries::find(options)?,
            certificates: Certificates::new()?,
            files: hot_files(&FILES.map(|(name, _, size)| (name, size)))?,
        })
    }

    /// Both servers with a certificate of this kind, and additional directives for `http`.
    pub(super) fn contestants(&self, key: Key, http: &str) -> Vec<Contestant> {
        let server = self.certificates.server(key, &self.files);
        let contestant = |name, binary: &Binary| {
            Contestant::server(name, binary, &format!("access_log off; {http}"), &server).with_tls()
        };
        let mut all =
            present([contestant(OURS, &self.binaries.ours), contestant(NGINX, &self.binaries.nginx)]);
        if !self.binaries.nginx.has_module("http_v3_module") {
            all.retain(|contestant| contestant.name != NGINX);
        }
        all
    }
}
