//! Certificates that come by themselves (nginx: ngx_http_acme_module): what is written, and what handshakes and requests have of
//! it. Post-read phase, for authorities that ask over HTTP.
//!
//! ```text
//! acme_issuer ─► Declared ─┐
//! acme_certificate ────────┴► Wanted, with a Slot ─► Job, for the agent of the process (tw_acme)
//!                                          └► ssl_certificate $acme_certificate
//! ```

mod issuer;

use std::sync::Arc;

use bytes::Bytes;
use tw_acme::{
    AcmeConfig, CertificateConfig, ChallengeResponses, CurrentCertificate, HTTP_PREFIX, Identifier,
    IssuerConfig, KeyType, KeyWord, file_id,
};
use tw_conf::{Args, ConfError, Directive, HTTP, Node, SERVER, Setting, Span, Word, record, units};
use tw_connect::{Resolving, resolving};
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_core::server_names::ServerName;
use tw_http::Method;

use self::issuer::{Declared, RawIssuer};
use tw_request::body::Body;
use tw_request::config::location::Location;
use tw_request::generation::Generation;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Template, Value, VarDef};

pub use issuer::{NOT_IN_SANDBOX, directives as issuer_directives, system_bundle};

/// Least bytes of the zone, as in nginx: eight pages.
const ZONE_MIN: u64 = 8 * 4096;

/// Automatic certificates (ACME) of one block.
pub struct Acme {
    issuers: Arc<Issuers>,
    /// The certificate of the server.
    ordered: Option<Ordered>,
    level: BlockLevel,
}

/// All that are declared in `http`.
struct Issuers {
    all: Vec<Declared>,
    answers: Arc<ChallengeResponses>,
}

/// A certificate that a server wants.
struct Ordered {
    slot: Arc<CurrentCertificate>,
    state: Option<Template>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockLevel {
    Http,
    Server,
}

/// Certificates to order, collected while blocks are resolved.
#[derive(Default)]
pub(crate) struct CollectedCertificates {
    issuers: Option<Arc<Issuers>>,
    /// By index of the issuer.
    certificates: Vec<(usize, CertificateConfig)>,
}

/// The directives as written.
#[derive(Default)]
pub struct Raw {
    issuers: Vec<RawIssuer>,
    zone: Setting<()>,
    certificate: Setting<RawCertificate>,
}

/// `acme_certificate`
struct RawCertificate {
    issuer: Word,
    identifiers: Vec<Identifier>,
    key: KeyType,
    span: Span,
}

/// Certificate that outlives configurations.
struct KeptCertificate {
    current: Arc<CurrentCertificate>,
    /// Name of the issuer.
    issuer: Box<str>,
    /// First name of the certificate.
    name: Box<str>,
}

const METRICS: &[Metric] = &[
    Metric {
        name: "acme_certificate_issued",
        kind: MetricKind::Gauge,
        labels: &["issuer", "certificate"],
        doc: "State of an ACME certificate, by its first name: 1 if it was issued, 0 if a temporary self-signed one is in use.",
        read: |scrape, out| {
            for kept in scrape.shared_objects::<KeptCertificate>() {
                out.value(&kept.labels(), kept.current.not_after().is_some().into());
            }
        },
    },
    Metric {
        name: "acme_certificate_expiry_timestamp_seconds",
        kind: MetricKind::Gauge,
        labels: &["issuer", "certificate"],
        doc: "End of the validity of an ACME certificate, in seconds since 1970.",
        read: |scrape, out| {
            for kept in scrape.shared_objects::<KeptCertificate>() {
                if let Some(end) = kept.current.not_after() {
                    out.float(&kept.labels(), end as f64);
                }
            }
        },
    },
    Metric {
        name: "acme_certificate_renewal_timestamp_seconds",
        kind: MetricKind::Gauge,
        labels: &["issuer", "certificate"],
        doc: "Time from which on an ACME certificate is replaced, in seconds since 1970.",
        read: |scrape, out| {
            for kept in scrape.shared_objects::<KeptCertificate>() {
                if kept.current.not_after().is_some() {
                    out.value(&kept.labels(), kept.current.order.renewal());
                }
            }
        },
    },
    Metric {
        name: "acme_certificate_failures",
        kind: MetricKind::Gauge,
        labels: &["issuer", "certificate"],
        doc: "Failed orders of an ACME certificate since the last successful one. The error log has the reasons.",
        read: |scrape, out| {
            for kept in scrape.shared_objects::<KeptCertificate>() {
                out.value(&kept.labels(), kept.current.order.failures());
            }
        },
    },
    Metric {
        name: "acme_certificate_next_attempt_timestamp_seconds",
        kind: MetricKind::Gauge,
        labels: &["issuer", "certificate"],
        doc: "Time of the next order of an ACME certificate after a failed one, in seconds since 1970; none without a failure.",
        read: |scrape, out| {
            for kept in scrape.shared_objects::<KeptCertificate>() {
                if kept.current.order.failures() > 0 {
                    out.value(&kept.labels(), kept.current.order.next_attempt());
                }
            }
        },
    },
];

impl KeptCertificate {
    /// Labels of its metrics.
    fn labels(&self) -> [&str; 2] {
        [&self.issuer, &self.name]
    }
}

impl Settings<Http> for Acme {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("acme_issuer", "name { … }", HTTP, Args::exact(1).block())
            .doc("An ACME authority and its account: uri, account_key, challenge, contact, state_path and more, see docs/automatic-certificates.md.")
            .set(|raw, node, cx| {
                let issuer = RawIssuer::read(node, cx)?;
                if raw.issuers.iter().any(|raw_issuer| raw_issuer.name.bytes == issuer.name.bytes) {
                    return Err(node.error("is duplicate"));
                }
                raw.issuers.push(issuer);
                Ok(())
            }),
        // DIFF(nginx): there is no zone: what is issued takes the memory that it needs.
        record::new("acme_shared_zone", "zone=name:size", HTTP, Args::exact(1))
            .default("zone=ngx_acme_shared:256k")
            .doc("Accepted and without effect: issued certificates have as much memory as they need.")
            .set(|raw, node, _| raw.zone.set_with(node, zone)),
        record::new("acme_certificate", "issuer [identifier …] [key=alg[:size]]", SERVER, Args::at_least(1))
            .doc("Requests a certificate for these names, or those of server_name, from the issuer and renews it in time.")
            .set(|raw, node, _| raw.certificate.set_with(node, certificate)),
    ];

    const METRICS: &'static [Metric] = METRICS;

    const VARIABLES: &'static [VarDef] = &[
        VarDef::one(
            "acme_certificate",
            |r, out| match slot_of(r).and_then(|slot| slot.chain()) {
                Some(chain) => {
                    out.extend_from_slice(b"data:");
                    out.extend_from_slice(chain.as_bytes());
                    Value::Found
                }
                None => Value::Missing,
            },
            "The ACME certificate of the server with its chain, as \"data:\" and PEM; for ssl_certificate.",
        ),
        // DIFF(nginx): a private key is for `ssl_certificate_key` and never becomes text of a response or a log.
        VarDef::one(
            "acme_certificate_key",
            |_, _| Value::Missing,
            "The private key of $acme_certificate, in ssl_certificate_key; empty elsewhere.",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let Some(outer) = outer else {
            let all =
                raw.issuers.into_iter().map(|issuer| issuer.resolve(cx)).collect::<Result<Vec<_>, _>>()?;
            if let Some(twice) = issuer::same_state(&all) {
                return Err(twice);
            }
            let answers = cx.keep(b"acme answers", |_| true, ChallengeResponses::default);
            let issuers = Arc::new(Issuers { all, answers });
            cx.block.notes.of::<CollectedCertificates>().issuers = Some(issuers.clone());
            return Ok(Self { issuers, ordered: None, level: BlockLevel::Http });
        };
        let issuers = outer.issuers.clone();
        let ordered = raw.certificate.take().map(|raw| order(raw, &issuers, cx)).transpose()?;
        cx.block.certificate = ordered.as_ref().map(|ordered| ordered.slot.clone());
        Ok(Self { issuers, ordered, level: BlockLevel::Server })
    }

    fn are_shared(&self) -> bool {
        // Locations share the settings of their server; a server without a certificate of this kind must say so itself.
        self.level == BlockLevel::Server || self.issuers.all.is_empty()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        // The handler runs before a location is chosen, so only the plan of the server itself needs it.
        if !self.issuers.all.is_empty() && plan.heading.is_none() {
            plan.add(Phase::PostRead, self.clone());
        }
    }

    fn reach(&self, _: &Location, reach: &mut Reach) {
        let Some(ordered) = &self.ordered else { return };
        reach.connects();
        resolving::reach(reach);
        if let Some(state) = &ordered.state {
            reach.changes(state, None);
        }
    }
}

/// Authorities ask for the answer to a challenge (RFC 8555, section 8.3), on any name and whatever else is configured.
impl Handler for Acme {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if !r.uri.path.starts_with(HTTP_PREFIX) || !matches!(r.method(), Method::Get | Method::Head) {
            return Step::PASS;
        }
        let Some(answer) = self.issuers.answers.http(&r.uri.path) else { return Step::PASS };
        r.response.status = 200;
        r.response.content_type = Bytes::from_static(b"text/plain");
        Step::Now(Outcome::Respond(Body::Bytes(answer)))
    }
}

impl Acme {
    /// The certificate of the server that comes by itself.
    pub fn slot(&self) -> Option<&Arc<CurrentCertificate>> {
        self.ordered.as_ref().map(|ordered| &ordered.slot)
    }
}

fn slot_of(r: &Request) -> Option<Arc<CurrentCertificate>> {
    r.generation().server(r.route.server).parts.find::<Acme>()?.slot().cloned()
}

/// Responses of all loops to the challenges of certificate authorities.
pub(crate) fn answers(generation: &Generation) -> &ChallengeResponses {
    &generation.acme.answers
}

impl CollectedCertificates {
    /// Returns the certificates to order and the settings for ordering them.
    pub(crate) fn job(self, resolving: Option<&Resolving>) -> AcmeConfig {
        let (Some(issuers), Some(resolving)) = (self.issuers, resolving) else {
            return AcmeConfig::default();
        };
        let mut works = Vec::new();
        for (at, declared) in issuers.all.iter().enumerate() {
            let mut certificates: Vec<CertificateConfig> = Vec::new();
            for (_, order) in self.certificates.iter().filter(|(issuer, _)| *issuer == at) {
                // Servers with the same names have the same certificate.
                if !certificates.iter().any(|certificate| Arc::ptr_eq(&certificate.slot, &order.slot)) {
                    certificates.push(order.clone());
                }
            }
            if !certificates.is_empty() {
                works.push(IssuerConfig {
                    issuer: declared.issuer.clone(),
                    tls: declared.tls.clone(),
                    resolver: resolving.resolver.clone(),
                    resolver_timeout: resolving.timeout,
                    fleet: declared.fleet.clone(),
                    certificates,
                });
            }
        }
        AcmeConfig { works, answers: issuers.answers.clone() }
    }
}

/// Finds the issuer of a certificate, and its place.
fn order(raw: RawCertificate, issuers: &Issuers, cx: &mut Resolve<'_>) -> Result<Ordered, ConfError> {
    let RawCertificate { issuer: name, mut identifiers, key, span } = raw;
    let at = issuers.all.iter().position(|issuer| issuer.issuer.name.as_bytes() == &*name.bytes);
    let (at, declared) = at
        .and_then(|at| Some((at, issuers.all.get(at)?)))
        .ok_or_else(|| ConfError::new(format!("issuer \"{name}\" is missing")).at(name.span))?;
    let fail = |what: String| ConfError::new(format!("\"acme_certificate\": {what}")).at(span);
    if identifiers.is_empty() {
        let mut skipped = Vec::new();
        for server_name in cx.block.server_names() {
            let text = server_name.as_written();
            let word = String::from_utf8_lossy(&text);
            match server_name {
                ServerName::Regex(_) => skipped.push(word.into_owned()),
                ServerName::Host(_) if word.is_empty() => {}
                ServerName::Host(_) => {
                    Identifier::add(&word, &mut identifiers).map_err(|error| fail(error.to_string()))?;
                }
            }
        }
        for word in skipped {
            cx.warn(
                span,
                format!("\"acme_certificate\": unsupported regular expression in server_name: {word}"),
            );
        }
        if identifiers.is_empty() {
            return Err(fail("no identifiers found in \"server_name\"".into()));
        }
    }
    if let Some(wildcard) = identifiers.iter().find(|id| id.is_wildcard())
        && !declared.can_wildcards()
    {
        return Err(fail(format!("\"{wildcard}\" takes an issuer with \"challenge dns-01\"")));
    }
    let kept = format!("acme {name} {}", file_id(&identifiers, key));
    let slot = match cx.previous::<KeptCertificate>(kept.as_bytes()) {
        Some(kept_certificate) => kept_certificate.current.clone(),
        None => Arc::new(CurrentCertificate::new(&identifiers).map_err(|error| fail(error.to_string()))?),
    };
    let first = identifiers.first().map(ToString::to_string).unwrap_or_default();
    let make = || KeptCertificate { current: slot, issuer: name.to_string().into(), name: first.into() };
    let slot = cx.keep(kept.as_bytes(), |_| true, make).current.clone();
    cx.block
        .notes
        .of::<CollectedCertificates>()
        .certificates
        .push((at, CertificateConfig { identifiers: identifiers.into(), key, slot: slot.clone() }));
    Ok(Ordered { slot, state: declared.state.clone() })
}

fn certificate(node: &Node) -> Result<RawCertificate, ConfError> {
    let issuer = node.arg(0)?.clone();
    if issuer.bytes.is_empty() {
        return Err(node.error("\"issuer\" is missing"));
    }
    let mut identifiers = Vec::new();
    let mut key = KeyType::default();
    for word in node.args.iter().skip(1) {
        if let Some(value) = word.param("key") {
            key = match KeyType::parse(value) {
                KeyWord::Type(key) => key,
                KeyWord::Unsupported(why) => return Err(node.fail(format!("acme_certificate: {why}"))),
                KeyWord::FileName => return Err(node.error("invalid \"key\" value")),
            };
            continue;
        }
        let text = word.as_str().filter(|text| !text.is_empty()).ok_or_else(|| node.invalid_value(word))?;
        Identifier::add(text, &mut identifiers)
            .map_err(|error| node.fail(format!("acme_certificate: {error}")))?;
    }
    Ok(RawCertificate { issuer, identifiers, key, span: node.span })
}

fn zone(node: &Node) -> Result<(), ConfError> {
    let word = node.arg(0)?;
    let value =
        word.param("zone").ok_or_else(|| node.fail("\"acme_shared_zone\" must have \"zone\" parameter"))?;
    let invalid = || node.fail(format!("invalid zone size \"{word}\""));
    let colon = value.iter().position(|byte| *byte == b':').filter(|colon| *colon > 0).ok_or_else(invalid)?;
    match units::size(&value[colon + 1..]).ok_or_else(invalid)? {
        size if size < ZONE_MIN => Err(node.fail(format!("zone \"{word}\" is too small"))),
        _ => Ok(()),
    }
}
