//! Certificates that tests make for themselves, and clients that believe in them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_RSA_SHA256,
};
use rustls::client::WantsClientCert;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

/// Whoever signs the certificates of a test.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub pem: String,
    /// Its key, as PKCS#8.
    pub key: String,
}

impl Authority {
    /// A new one, with a name that no other has.
    ///
    /// # Panics
    /// If no key can be made.
    #[must_use]
    pub fn new() -> Self {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let mut params = CertificateParams::default();
        let name = format!("authority {} of tests", MADE.fetch_add(1, Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority"))
    }

    /// Its own certificate, in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate with a key of ECDSA for these names.
    ///
    /// # Panics
    /// If no key can be made, or a name is none.
    #[must_use]
    pub fn certify(&self, names: &[&str]) -> Certificate {
        self.certify_key(names, &KeyPair::generate().expect("a key"))
    }

    /// A certificate with a key of RSA for these names. All have the same key: it takes long to make one.
    ///
    /// # Panics
    /// As [`certify`](Self::certify).
    #[must_use]
    pub fn certify_rsa(&self, names: &[&str]) -> Certificate {
        static KEY: OnceLock<String> = OnceLock::new();
        let key = KEY.get_or_init(|| KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key").serialize_pem());
        self.certify_key(names, &KeyPair::from_pem(key).expect("the key"))
    }

    fn certify_key(&self, names: &[&str], key: &KeyPair) -> Certificate {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
                .expect("names of hosts");
        params.distinguished_name.push(DnType::CommonName, names.first().copied().unwrap_or_default());
        let pem = params.signed_by(key, &self.0).expect("a certificate").pem();
        Certificate { pem, key: key.serialize_pem() }
    }

    /// A client that believes this authority, and speaks these versions of TLS. It keeps sessions.
    ///
    /// # Panics
    /// If there is no such version.
    #[must_use]
    pub fn client(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        Arc::new(self.client_of(versions).with_no_client_auth())
    }

    /// The same with a certificate of its own.
    ///
    /// # Panics
    /// As [`client`](Self::client), and if that is no certificate.
    #[must_use]
    pub fn client_with(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        own: &Certificate,
    ) -> Arc<ClientConfig> {
        let chain = vec![CertificateDer::from_pem_slice(own.pem.as_bytes()).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_slice(own.key.as_bytes()).expect("a key");
        Arc::new(self.client_of(versions).with_client_auth_cert(chain, key).expect("what fits"))
    }

    fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.0.der().to_vec())).expect("an authority");
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).expect("versions of TLS");
        builder.with_root_certificates(roots)
    }
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

/// A connection of a client: plain, or over TLS.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Stream {
    /// Shakes hands with a server of this name.
    pub(crate) fn secure(socket: TcpStream, config: Arc<ClientConfig>, name: &str) -> io::Result<Self> {
        let name = ServerName::try_from(name.to_owned())
            .map_err(|error: InvalidDnsNameError| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Self::Tls(Box::new(stream)))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => &stream.sock,
        }
    }

    /// What was agreed on by TLS.
    pub(crate) fn session(&self) -> Option<&ClientConnection> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => Some(&stream.conn),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buf),
            Self::Tls(stream) => stream.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(data),
            Self::Tls(stream) => stream.write(data),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
