//! Complete handshakes in memory with rustls.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::StoresServerSessions;
use rustls::server::danger::ClientCertVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{
    ClientConfig, ClientConnection, Error, HandshakeKind, RootCertStore, ServerConfig, ServerConnection,
};

use super::*;
use crate::testing::{Authority, Leaf, NOW, TestClock, leaf, leaf_with, rsa_key};
use crate::words::{Protocols, ciphers, groups};
use crate::{
    Authorities, Cache, ClientVerifier, Identity, Key, Passwords, Purpose, Settings, Tickets, Trust,
    Upstream, UpstreamError, Verdict, names,
};

#[derive(Debug)]
struct Noon;

impl TimeProvider for Noon {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(NOW)))
    }
}

fn trust_in(root: &Authority, purpose: Purpose) -> Trust {
    let authorities = Authorities::new(vec![CertificateDer::from(root.der().to_vec())]).unwrap();
    Trust { authorities: Arc::new(authorities), crls: None, depth: 1, purpose }
}

fn server(settings: &Settings, cert: &Leaf, verifier: Arc<dyn ClientCertVerifier>) -> ServerConfig {
    let key = Key::read(cert.key_pem().as_bytes(), &Passwords::default()).unwrap();
    let identity = Identity::new(crate::chain(cert.pem().as_bytes()).unwrap(), key).unwrap();
    ServerConfig::builder_with_details(settings.provider(), Arc::new(Noon))
        .with_protocol_versions(settings.protocols.versions())
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(identity.certified)))
}

fn client(settings: &Settings, upstream: Upstream, cert: Option<(Vec<u8>, &Leaf)>) -> ClientConfig {
    let builder = ClientConfig::builder_with_details(settings.provider(), Arc::new(Noon))
        .with_protocol_versions(settings.protocols.versions())
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(upstream));
    match cert {
        Some((der, leaf)) => {
            let key = Key::read(leaf.key_pem().as_bytes(), &Passwords::default()).unwrap();
            let identity = Identity::new(vec![CertificateDer::from(der)], key).unwrap();
            builder
                .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(identity.certified)))
        }
        None => builder.with_no_client_auth(),
    }
}

/// Both ends after the handshake and the messages that follow it, or the error.
fn connect(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    name: &str,
) -> Result<(ServerConnection, ClientConnection), Error> {
    let mut server = ServerConnection::new(Arc::clone(server))?;
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name)?;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            server.read_tls(&mut rest).unwrap();
        }
        server.process_new_packets()?;
        let mut bytes = Vec::new();
        server.write_tls(&mut bytes).unwrap();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
        }
        client.process_new_packets()?;
    }
    Ok((server, client))
}

fn every_version() -> [Settings; 2] {
    [Protocols::Only12, Protocols::Only13].map(|protocols| Settings { protocols, ..Settings::default() })
}

fn no_client_auth() -> Arc<dyn ClientCertVerifier> {
    Arc::new(rustls::server::NoClientAuth)
}

#[test]
fn clients_of_every_kind_of_certificate() {
    let root = Authority::new("root");
    let site = leaf("example.com", &root);
    let trust = trust_in(&root, Purpose::Client);
    for settings in every_version() {
        let verifier = Arc::new(ClientVerifier::new(trust.authorities.hints()));
        let server = Arc::new(server(&settings, &site, verifier));
        let connect_as = |cert: Option<(Vec<u8>, &Leaf)>| {
            let client = Arc::new(client(&settings, Upstream::unverified(), cert));
            connect(&server, &client, "example.com").unwrap().0
        };
        let shown = |connection: &ServerConnection| {
            crate::verify_chain(connection.peer_certificates().unwrap(), &trust, NOW)
        };
        assert!(connect_as(None).peer_certificates().is_none());
        for cert in [leaf("client", &root), leaf_with("client", &root, rsa_key())] {
            let connection = connect_as(Some((cert.der().to_vec(), &cert)));
            assert_eq!(shown(&connection), Verdict::Good);
            let old = root.version_1(cert.der());
            assert_eq!(shown(&connect_as(Some((old, &cert)))), Verdict::Good);
        }
        // A certificate of an unknown authority passes the handshake as well, and is judged after it.
        let cert = leaf("client", &Authority::new("other"));
        assert_eq!(shown(&connect_as(Some((cert.der().to_vec(), &cert)))), Verdict::UnableToVerifyLeaf);
    }
}

#[test]
fn client_without_the_key_is_refused() {
    let root = Authority::new("root");
    let site = leaf("example.com", &root);
    let cert = leaf("client", &root);
    let other = leaf("client", &root);
    for settings in every_version() {
        let server = Arc::new(server(&settings, &site, Arc::new(ClientVerifier::new(Vec::new()))));
        let builder = ClientConfig::builder_with_details(settings.provider(), Arc::new(Noon))
            .with_protocol_versions(settings.protocols.versions())
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Upstream::unverified()));
        let key = Key::read(other.key_pem().as_bytes(), &Passwords::default()).unwrap();
        let stolen =
            rustls::sign::CertifiedKey::new(vec![CertificateDer::from(cert.der().to_vec())], key.signing);
        let client =
            builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(stolen)));
        let error = connect(&server, &Arc::new(client), "example.com").err().unwrap();
        assert_eq!(error, CertificateError::BadSignature.into());
    }
}

#[test]
fn servers_are_verified() {
    let root = Authority::new("root");
    let trust = trust_in(&root, Purpose::Server);
    for settings in every_version() {
        for site in [leaf("example.com", &root), leaf_with("example.com", &root, rsa_key())] {
            let server = Arc::new(server(&settings, &site, no_client_auth()));
            let connect_to = |name: &str, upstream: Upstream| {
                let result = connect(&server, &Arc::new(client(&settings, upstream, None)), name);
                result.map(|_| ()).map_err(|error| UpstreamError::of(&error).cloned())
            };
            assert_eq!(connect_to("example.com", Upstream::verified(trust.clone())), Ok(()));
            assert_eq!(connect_to("other.com", Upstream::unverified()), Ok(()));
            let error = connect_to("other.com", Upstream::verified(trust.clone())).unwrap_err().unwrap();
            assert_eq!(error.to_string(), "certificate does not match \"other.com\"");
            let nobody = trust_in(&Authority::new("other"), Purpose::Server);
            let error = connect_to("example.com", Upstream::verified(nobody)).unwrap_err().unwrap();
            assert_eq!(
                error.to_string(),
                "certificate verify error: (21:unable to verify the first certificate)"
            );
        }
    }
}

#[test]
fn addresses_are_names_too() {
    let root = Authority::new("root");
    let trust = trust_in(&root, Purpose::Server);
    let settings = Settings::default();
    let server = Arc::new(server(&settings, &leaf("127.0.0.1", &root), no_client_auth()));
    let client = Arc::new(client(&settings, Upstream::verified(trust), None));
    assert!(connect(&server, &client, "127.0.0.1").is_ok());
    assert!(connect(&server, &client, "127.0.0.2").is_err());
}

#[test]
fn sessions_are_resumed_by_another_thread_and_process() {
    let root = Authority::new("root");
    let site = leaf("example.com", &root);
    let clock = TestClock::at(NOW).clock();
    for settings in every_version() {
        let kinds = |first: &Arc<ServerConfig>, second: &Arc<ServerConfig>| {
            let mut client = client(&settings, Upstream::unverified(), None);
            client.resumption = Resumption::in_memory_sessions(10);
            let client = Arc::new(client);
            [first, second]
                .map(|server| connect(server, &client, "example.com").unwrap().0.handshake_kind().unwrap())
        };
        let with_tickets = |tickets: Tickets| {
            let mut config = server(&settings, &site, no_client_auth());
            config.ticketer = Arc::new(tickets);
            config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
            Arc::new(config)
        };
        let tickets = Tickets::random(300, clock.clone()).unwrap();
        let successor = Tickets::of_predecessor(&tickets.export().unwrap(), 300, clock.clone()).unwrap();
        let stranger = Tickets::random(300, clock.clone()).unwrap();
        let first = with_tickets(tickets);
        let second = with_tickets(successor);
        assert_eq!(kinds(&first, &second), [HandshakeKind::Full, HandshakeKind::Resumed]);
        assert_eq!(kinds(&first, &with_tickets(stranger)), [HandshakeKind::Full, HandshakeKind::Full]);

        let cache = Arc::new(Cache::new(1 << 20, 300, clock.clone()));
        let with_cache = || {
            let mut config = server(&settings, &site, no_client_auth());
            config.session_storage = Arc::clone(&cache) as Arc<dyn StoresServerSessions>;
            Arc::new(config)
        };
        assert_eq!(kinds(&with_cache(), &with_cache()), [HandshakeKind::Full, HandshakeKind::Resumed]);
        assert!(cache.stats().hits >= 1, "{:?}", cache.stats());
    }
}

#[test]
fn configured_protocols_and_ciphers_are_negotiated() {
    let root = Authority::new("root");
    let ecdsa = leaf("example.com", &root);
    let rsa = leaf_with("example.com", &root, rsa_key());
    for (words, curves, site, suite, group) in [
        ("ECDHE+AESGCM:-AES256", "P-384:X25519", &ecdsa, "ECDHE-ECDSA-AES128-GCM-SHA256", "secp384r1"),
        ("CHACHA20:AES128", "X25519", &rsa, "ECDHE-RSA-CHACHA20-POLY1305", "X25519"),
    ] {
        let ours = Settings {
            protocols: Protocols::Only12,
            ciphers: ciphers(words).unwrap().chosen,
            groups: groups(curves).unwrap().chosen,
            ..Settings::default()
        };
        let server = Arc::new(server(&ours, site, no_client_auth()));
        let client = Arc::new(client(&ours, Upstream::unverified(), None));
        let (server, _) = connect(&server, &client, "example.com").unwrap();
        let negotiated = names::suite(server.negotiated_cipher_suite().unwrap().suite());
        assert_eq!(negotiated.to_string(), suite);
        let negotiated = names::group(server.negotiated_key_exchange_group().unwrap().name());
        assert_eq!(negotiated.to_string(), group);
        assert_eq!(names::protocol(server.protocol_version().unwrap()).to_string(), "TLSv1.2");
    }
}

#[test]
fn openssl_accepts_the_test_certificates() {
    // rustls's own verifier stands for them.
    let root = Authority::new("root");
    let site = leaf("example.com", &root);
    let settings = Settings::default();
    let server = Arc::new(server(&settings, &site, no_client_auth()));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(root.der().to_vec())).unwrap();
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), settings.provider()).build().unwrap();
    let client = ClientConfig::builder_with_details(settings.provider(), Arc::new(Noon))
        .with_protocol_versions(settings.protocols.versions())
        .unwrap()
        .with_webpki_verifier(verifier)
        .with_no_client_auth();
    let (_, client) = connect(&server, &Arc::new(client), "example.com").unwrap();
    assert_eq!(
        names::group(client.negotiated_key_exchange_group().unwrap().name()).to_string(),
        "X25519MLKEM768"
    );
}
