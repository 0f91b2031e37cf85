//! Certificates for tests, and clients that trust them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, CustomExtension,
    DnType, IsCa, KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, SigningKey, date_time_ymd,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoClientAuth, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    SignatureScheme, StreamOwned, SupportedProtocolVersion,
};

/// Authority that signs the certificates of a test.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The certificate.
    pub pem: String,
    /// Private key, as PKCS#8.
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

    /// Certificate of the authority, in PEM.
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

    /// A certificate for these names that begins to be good in the far future.
    ///
    /// # Panics
    /// As [`certify`](Self::certify).
    #[must_use]
    pub fn certify_early(&self, names: &[&str]) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = params_for(names);
        (params.not_before, params.not_after) = (date_time_ymd(3000, 1, 1), date_time_ymd(3001, 1, 1));
        self.sign(&params, &key)
    }

    /// Certificate for these names with the URL of an OCSP responder.
    ///
    /// # Panics
    /// As [`certify`](Self::certify).
    #[must_use]
    pub fn certify_with_responder(&self, names: &[&str], url: &str) -> Certificate {
        let key = KeyPair::generate().expect("a key");
        let mut params = params_for(names);
        params.custom_extensions.push(access_by_ocsp(url));
        self.sign(&params, &key)
    }

    /// OCSP response for the one certificate that a request, as DER, is about; valid until 2040.
    ///
    /// # Panics
    /// The request is malformed.
    #[must_use]
    pub fn vouch(&self, request: &[u8], standing: OcspStatus) -> Vec<u8> {
        // OCSPRequest, tbsRequest, requestList, Request: short ones.
        let id = request.get(8..).filter(|_| request.len() < 0x80).expect("a request about one certificate");
        let time = |text: &str| element(0x18, &[text.as_bytes()]);
        let status = match standing {
            OcspStatus::Good => vec![0x80, 0],
            OcspStatus::Revoked => element(0xa1, &[&time("20200101000000Z")]),
            OcspStatus::Unknown => vec![0x82, 0],
        };
        let next = element(0xa0, &[&time("20400101000000Z")]);
        let single = element(0x30, &[id, &status, &time("20200101000000Z"), &next]);
        let by_key = element(0xa2, &[&element(0x04, &[&[7; 20]])]);
        let data = element(0x30, &[&by_key, &time("20200101000000Z"), &element(0x30, &[&single])]);
        let signature = self.0.key().sign(&data).expect("a signature");
        let ecdsa = element(0x30, &[&element(0x06, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]])]);
        let basic = element(0x30, &[&data, &ecdsa, &element(0x03, &[&[0], &signature])]);
        let kind = element(0x06, &[&[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1]]);
        let bytes = element(0x30, &[&kind, &element(0x04, &[&basic])]);
        element(0x30, &[&[0x0a, 1, 0], &element(0xa0, &[&bytes])])
    }

    /// Configuration of a client without session storage that records stapled OCSP responses.
    ///
    /// # Panics
    /// As [`client`](Self::client).
    #[must_use]
    pub fn client_noting(
        &self,
        versions: &[&'static SupportedProtocolVersion],
    ) -> (Arc<ClientConfig>, Noted) {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let roots = Arc::new(self.roots());
        let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let verifier = builder.build().expect("an authority");
        let noted = Noted::default();
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions);
        let noting = Noting { verifier, noted: noted.clone() };
        let builder = builder.expect("versions of TLS").dangerous();
        let mut config = builder.with_custom_certificate_verifier(Arc::new(noting)).with_no_client_auth();
        config.resumption = rustls::client::Resumption::disabled();
        (Arc::new(config), noted)
    }

    /// Signs a certificate for a request (PKCS#10, as DER), whose signature and names are checked: valid from now on
    /// for `lifetime`, or expired long ago without one. The error describes the fault of the request.
    pub(crate) fn sign_request(
        &self,
        request: &[u8],
        names: &[&str],
        lifetime: Option<Duration>,
        responder: Option<&str>,
    ) -> Result<String, String> {
        let (params, key) = read_request(request)?;
        let mut expected: Vec<_> = params.subject_alt_names.clone();
        for name in &params_for(names).subject_alt_names {
            let at = expected.iter().position(|other| other == name);
            expected.remove(at.ok_or_else(|| format!("{name:?} is missing"))?);
        }
        if !expected.is_empty() {
            return Err(format!("nobody ordered {expected:?}"));
        }
        self.sign_for(names, &key, lifetime, responder)
    }

    /// Signs a certificate for names that may differ from those of the request.
    pub(crate) fn sign_request_for(
        &self,
        request: &[u8],
        names: &[&str],
        lifetime: Duration,
    ) -> Result<String, String> {
        let (_, key) = read_request(request)?;
        self.sign_for(names, &key, Some(lifetime), None)
    }

    fn sign_for(
        &self,
        names: &[&str],
        key: &rcgen::PublicKey,
        lifetime: Option<Duration>,
        responder: Option<&str>,
    ) -> Result<String, String> {
        let mut params = params_for(names);
        params.custom_extensions.extend(responder.map(access_by_ocsp));
        params.use_authority_key_identifier_extension = true;
        let now = SystemTime::now();
        (params.not_before, params.not_after) = match lifetime {
            Some(lifetime) => (now.into(), (now + lifetime).into()),
            None => (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 1, 2)),
        };
        let made = params.signed_by(key, &self.0).map_err(|error| error.to_string())?;
        Ok(made.pem())
    }

    /// A server with this certificate, which keeps sessions.
    ///
    /// # Panics
    /// If that is no certificate, or there is no such version.
    #[must_use]
    pub fn server(versions: &[&'static SupportedProtocolVersion], own: &Certificate) -> Arc<ServerConfig> {
        Self::server_of(versions, own, Arc::new(NoClientAuth))
    }

    /// Configuration of a server that requires client certificates of this authority.
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

    /// Configuration of a client with a certificate.
    ///
    /// # Panics
    /// As [`client`](Self::client), and if the certificate is invalid.
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

/// Revocation status of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OcspStatus {
    /// Not revoked.
    Good,
    /// Revoked.
    Revoked,
    /// Unknown to the authority.
    Unknown,
}

/// The response of an authority that the last server has shown, as DER; empty if none.
#[derive(Debug, Clone, Default)]
pub struct Noted(Arc<Mutex<Vec<u8>>>);

impl Noted {
    /// The response.
    #[must_use]
    pub fn last(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct Noting {
    verifier: Arc<WebPkiServerVerifier>,
    noted: Noted,
}

impl ServerCertVerifier for Noting {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.noted.0.lock().unwrap_or_else(PoisonError::into_inner) = response.to_vec();
        self.verifier.verify_server_cert(end_entity, intermediates, name, &[], now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// An element of DER of less than 64 KB.
fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let [.., high, low] = content.len().to_be_bytes();
    let mut bytes = match content.len() {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    bytes.extend(content);
    bytes
}

impl Certificate {
    fn parts(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain =
            CertificateDer::pem_slice_iter(self.pem.as_bytes()).map(|der| der.expect("a certificate"));
        (chain.collect(), PrivateKeyDer::from_pem_slice(self.key.as_bytes()).expect("a key"))
    }
}

/// Authority information access: the OCSP responder's URL (RFC 5280, section 4.2.2.1).
fn access_by_ocsp(url: &str) -> CustomExtension {
    let by_ocsp = element(0x06, &[&[0x2b, 6, 1, 5, 5, 7, 0x30, 1]]);
    let access = element(0x30, &[&by_ocsp, &element(0x86, &[url.as_bytes()])]);
    CustomExtension::from_oid_content(&[1, 3, 6, 1, 5, 5, 7, 1, 1], element(0x30, &[&access]))
}

fn read_request(request: &[u8]) -> Result<(CertificateParams, rcgen::PublicKey), String> {
    let read =
        CertificateSigningRequestParams::from_der(&request.into()).map_err(|error| error.to_string())?;
    Ok((read.params, read.public_key))
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

    /// TLS session.
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
