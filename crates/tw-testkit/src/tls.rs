//! Certificates that tests make for themselves, and clients that believe in them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PKCS_RSA_SHA256, date_time_ymd,
};
use rustls::client::WantsClientCert;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, RootCertStore, ServerConfig, StreamOwned,
    SupportedProtocolVersion,
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
        self.sign(&params_for(names), key)
    }

    fn sign(&self, params: &CertificateParams, key: &KeyPair) -> Certificate {
        let pem = params.signed_by(key, &self.0).expect("a certificate").pem();
        Certificate { pem, key: key.serialize_pem() }
    }

    /// A certificate for these names that was good for a day, long ago.
    ///
    /// # Panics
    /// As [`certify`](Self::certify).
    #[must_use]
    pub fn certify_expired(&self, names: &[&str]) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = params_for(names);
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 1, 2));
        self.sign(&params, &key)
    }

    /// A server with this certificate, which keeps sessions.
    ///
    /// # Panics
    /// If that is no certificate, or there is no such version.
    #[must_use]
    pub fn server(versions: &[&'static SupportedProtocolVersion], own: &Certificate) -> Arc<ServerConfig> {
        Self::server_of(versions, own, Arc::new(NoClientAuth))
    }

    /// The same, for clients that have certificates of this authority.
    ///
    /// # Panics
    /// As [`server`](Self::server).
    #[must_use]
    pub fn server_for_known(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        own: &Certificate,
    ) -> Arc<ServerConfig> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()), provider).build();
        Self::server_of(versions, own, verifier.expect("an authority"))
    }

    fn server_of(
        versions: &[&'static SupportedProtocolVersion],
        own: &Certificate,
        verifier: Arc<dyn ClientCertVerifier>,
    ) -> Arc<ServerConfig> {
        let (chain, key) = own.parts();
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).expect("versions of TLS");
        let made = builder.with_client_cert_verifier(verifier).with_single_cert(chain, key);
        let mut config = made.expect("what fits");
        config.ticketer = aws_lc_rs::Ticketer::new().expect("keys");
        Arc::new(config)
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
        let (chain, key) = own.parts();
        Arc::new(self.client_of(versions).with_client_auth_cert(chain, key).expect("what fits"))
    }

    fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ConfigBuilder<ClientConfig, WantsClientCert> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_protocol_versions(versions).expect("versions of TLS");
        builder.with_root_certificates(self.roots())
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.0.der().to_vec())).expect("an authority");
        roots
    }
}

impl Certificate {
    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = vec![CertificateDer::from_pem_slice(self.pem.as_bytes()).expect("a certificate")];
        (chain, PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key"))
    }
}

fn params_for(names: &[&str]) -> CertificateParams {
    let names_of_hosts = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let mut params = CertificateParams::new(names_of_hosts).expect("names of hosts");
    params.distinguished_name.push(DnType::CommonName, names.first().copied().unwrap_or_default());
    params
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
