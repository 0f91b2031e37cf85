//! `challenge`: a proof of work in the browser of clients that are not known to be good, against programs that copy whole sites. Access
//! phase. No counterpart in nginx, beside which people run a proxy for this.
//!
//! ```text
//! GET without cookie ─► 403: page with a signed puzzle ─► browser solves it, asks for the same address with Challenge-Answer
//!                          └ no JavaScript: waits, then the same address with a signed argument  ─► 303     │
//!                                        request with the cookie ─► passes ◄── reload ◄── 204: signed cookie ┘
//! ```
//! Nothing is stored: puzzle and cookie say everything themselves, and are bound to the network, the host and the User-Agent of
//! the client. Answers go to the address that was asked for, so they come to the same location with the same settings.

mod agents;
mod bots;
mod counts;
mod exceptions;
mod gate;
mod page;
mod structured_field;
mod token;

use std::sync::Arc;
use std::time::Duration;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, Word, record};
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::fields::is_name;
use tw_request::config::location::Location;
use tw_request::plan::{Phase, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::vars::{Template, VarDef};
use tw_tls::process_secret;

use self::agents::AgentKeys;
use self::bots::Bots;
use self::counts::Counts;
use self::exceptions::Exception;
use self::gate::Gate;
use self::token::{DIFFICULTY_MAX, PrefixBits, TokenKey};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Variable with the result for a request.
const STATUS: &str = "challenge_status";
/// Argument by which a client without JavaScript says that it has waited.
const WAIT_ARG: &[u8] = b"tailwater-challenge=";
/// Default of `challenge_difficulty`: 2^18 hashes on average, a second for a browser that makes 260,000 hashes a second on all cores
/// together, as on a telephone. Chromium makes 470,000 on one core of a server.
const DIFFICULTY: u8 = 18;
/// Default of `challenge_expires`.
const EXPIRES: Duration = Duration::from_secs(86_400);
/// Default of `challenge_no_script`.
const WAIT: Duration = Duration::from_secs(10);
/// Fewest bytes of a `challenge_secret`.
const SECRET_SIZE_MIN: usize = 16;

/// Challenges as written.
#[derive(Default)]
pub struct Raw {
    on: Setting<bool>,
    condition: Setting<Word>,
    difficulty: Setting<Word>,
    exceptions: Setting<Vec<Exception>>,
    bots: Setting<Vec<Box<[u8]>>>,
    agent_keys: Setting<Word>,
    secret: Setting<Word>,
    cookie: Setting<Box<[u8]>>,
    expires: Setting<Duration>,
    prefix: Setting<PrefixBits>,
    wait: Setting<Option<Duration>>,
}

/// Challenges of one block.
pub struct Challenge {
    is_on: bool,
    terms: Terms,
    gate: Option<Arc<Gate>>,
}

/// Terms of challenges, which inner blocks inherit also while they are off.
#[derive(Clone)]
struct Terms {
    condition: Option<Arc<Template>>,
    difficulty: Difficulty,
    exceptions: Arc<[Exception]>,
    bots: Option<Arc<Bots>>,
    agents: Option<Arc<AgentKeys>>,
    /// Key by `challenge_secret`.
    key: Option<Arc<TokenKey>>,
    cookie: Arc<[u8]>,
    /// Lifetime of the cookie in seconds.
    expires: u64,
    prefix: PrefixBits,
    /// Seconds that a client without JavaScript waits; `None`: it is refused.
    wait: Option<u64>,
}

/// `challenge_difficulty`
#[derive(Clone)]
enum Difficulty {
    Fixed(u8),
    Computed(Arc<Template>),
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    use token::LIMITS;
    use bots::LIMITS;
    use agents::LIMITS;
    use gate::LIMITS;
}

impl Settings<Http> for Challenge {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::flag("challenge", ALL)
            .default("off")
            .since("Tailwater 0.2")
            .doc("Asks clients without a valid cookie to solve a proof of work in the browser. A request for a page gets 403 with a page that does it by itself and then loads what was asked for; other requests get 403.")
            .set(|raw, node, _| raw.on.set_flag(node)),
        record::new("challenge_for", "string", ALL, Args::exact(1))
            .since("Tailwater 0.2")
            .doc("Challenges only requests for which the string, which has variables, is neither empty nor 0.")
            .set(|raw, node, _| raw.condition.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("challenge_difficulty", "bits", ALL, Args::exact(1))
            .default("18")
            .since("Tailwater 0.2")
            .doc("Leading zero bits that the hash of the answer has to have, 0 to 32; one bit more doubles the work. May have variables: a value that is no number counts as 18, and a cookie of an easier challenge does not count.")
            .set(|raw, node, _| raw.difficulty.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("challenge_except", "address | CIDR | unix: | /prefix | =/path …", ALL, Args::at_least(1))
            .since("Tailwater 0.2")
            .doc("Does not challenge clients with these addresses, and requests for paths that begin with one of these, or with = are exactly this one. /robots.txt, /favicon.ico and what is below /.well-known/ are never challenged.")
            .set(|raw, node, cx| {
                let exceptions: Result<Vec<_>, _> =
                    node.args.iter().map(|word| Exception::read(node, word, cx)).collect();
                raw.exceptions.extend(node, exceptions?);
                Ok(())
            }),
        record::new("challenge_except_bots", "domain …", ALL, Args::at_least(1))
            .since("Tailwater 0.2")
            .doc("Does not challenge crawlers whose address has a name below one of these domains, such as googlebot.com, if that name has the address, too. Names are looked up (resolver) for clients whose User-Agent has bot, crawl, spider or +http in it; results are remembered for an hour, or five minutes if the client has no such name.")
            .set(|raw, node, _| {
                let names: Result<Vec<_>, _> =
                    node.args.iter().map(|word| bots::read_name(node, word)).collect();
                raw.bots.extend(node, names?);
                Ok(())
            }),
        record::new("challenge_agent_keys", "file | data:keys", ALL, Args::exact(1))
            .since("Tailwater 0.2")
            .doc("JWK Set with the Ed25519 keys of agents that are not challenged if they sign their requests (HTTP Message Signatures, RFC 9421, with the tag web-bot-auth).")
            .set(|raw, node, _| raw.agent_keys.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("challenge_secret", "file | data:secret", ALL, Args::exact(1))
            .since("Tailwater 0.2")
            .doc("Secret that signs puzzles and cookies, at least 16 bytes: the same on all servers that share clients. Without it, a random one is made at start, and kept over reloads and upgrades.")
            .set(|raw, node, _| raw.secret.set_with(node, |node| Ok(node.arg(0)?.clone()))),
        record::new("challenge_cookie", "name", ALL, Args::exact(1))
            .default("tailwater_challenge")
            .since("Tailwater 0.2")
            .doc("Name of the cookie.")
            .set(|raw, node, _| raw.cookie.set_with(node, read_cookie)),
        record::time("challenge_expires", ALL)
            .default("1d")
            .since("Tailwater 0.2")
            .doc("Time after which a client is challenged again.")
            .set(|raw, node, _| raw.expires.set_with(node, |node| positive(node, node.sec()?))),
        record::new("challenge_address_prefix", "[ipv4=bits] [ipv6=bits]", ALL, Args::range(1, 2))
            .default("ipv4=24 ipv6=48")
            .since("Tailwater 0.2")
            .doc("Bits of the client's address that the cookie is bound to. With ipv4=0 ipv6=0, it is valid from every address.")
            .set(|raw, node, _| raw.prefix.set_with(node, read_prefix)),
        record::new("challenge_no_script", "wait=time | refuse", ALL, Args::exact(1))
            .default("wait=10s")
            .since("Tailwater 0.2")
            .doc("A client without JavaScript may wait instead, or is refused.")
            .set(|raw, node, _| raw.wait.set_with(node, read_wait)),
    ];

    const VARIABLES: &'static [VarDef] = &[VarDef::stored(
        STATUS,
        "What challenge decided: passed, exempt, asked, refused (403 without the page), solved or failed; empty without a challenge.",
    )];

    const METRICS: &'static [Metric] = counts::METRICS;

    fn resolve(mut raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let is_on = std::mem::take(&mut raw.on).or(outer.map(|o| o.is_on), false);
        let terms = Terms::resolve(raw, outer.map(|o| &o.terms), cx)?;
        let slot = cx.slot(STATUS);
        let gate = is_on.then(|| {
            let counts = cx.keep(b"", |_| true, Counts::default);
            let key = terms.key.clone().unwrap_or_else(|| Arc::new(TokenKey::of(&process_secret::get())));
            Arc::new(Gate { terms: terms.clone(), key, counts, slot })
        });
        Ok(Self { is_on, terms, gate })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if let Some(gate) = &self.gate {
            plan.add(Phase::Access, gate.clone());
        }
    }

    fn reach(&self, _: &Location, reach: &mut Reach) {
        if self.is_on && self.terms.bots.is_some() {
            tw_connect::resolving::reach(reach);
        }
    }
}

impl Terms {
    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let condition = match raw.condition.take() {
            Some(word) => Some(Arc::new(cx.template(&word)?)),
            None => outer.and_then(|o| o.condition.clone()),
        };
        let difficulty = match raw.difficulty.take() {
            Some(word) => Difficulty::resolve(&word, cx)?,
            None => outer.map_or(Difficulty::Fixed(DIFFICULTY), |o| o.difficulty.clone()),
        };
        let bots = match raw.bots.take() {
            Some(names) => Some(cx.keep(&names.join(&b' '), |_| true, || Bots::new(&names))),
            None => outer.and_then(|o| o.bots.clone()),
        };
        let agents = match raw.agent_keys.take() {
            Some(word) => Some(Arc::new(read_agent_keys(&word, cx)?)),
            None => outer.and_then(|o| o.agents.clone()),
        };
        let key = match raw.secret.take() {
            Some(word) => Some(Arc::new(read_secret(&word, cx)?)),
            None => outer.and_then(|o| o.key.clone()),
        };
        Ok(Self {
            condition,
            difficulty,
            exceptions: match raw.exceptions.take() {
                Some(exceptions) => exceptions.into(),
                None => outer.map_or_else(Arc::default, |o| o.exceptions.clone()),
            },
            bots,
            agents,
            key,
            cookie: match raw.cookie.take() {
                Some(name) => name.into(),
                None => outer.map_or_else(|| b"tailwater_challenge"[..].into(), |o| o.cookie.clone()),
            },
            expires: raw
                .expires
                .take()
                .map_or_else(|| outer.map_or(EXPIRES.as_secs(), |o| o.expires), |expires| expires.as_secs()),
            prefix: raw.prefix.or(outer.map(|o| o.prefix), PrefixBits { v4: 24, v6: 48 }),
            wait: match raw.wait.take() {
                Some(wait) => wait.map(|wait| wait.as_secs()),
                None => outer.map_or(Some(WAIT.as_secs()), |o| o.wait),
            },
        })
    }
}

impl Difficulty {
    fn resolve(word: &Word, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let template = cx.template(word)?;
        let Some(text) = template.constant() else { return Ok(Self::Computed(Arc::new(template))) };
        let bits = tw_conf::units::number(text).and_then(|bits| u8::try_from(bits).ok());
        match bits.filter(|bits| *bits <= DIFFICULTY_MAX) {
            Some(bits) => Ok(Self::Fixed(bits)),
            None => Err(ConfError::new(format!("invalid value \"{word}\"")).at(word.span)),
        }
    }
}

fn positive(node: &Node, time: Duration) -> Result<Duration, ConfError> {
    if time.is_zero() { Err(node.error("invalid value")) } else { Ok(time) }
}

fn read_cookie(node: &Node) -> Result<Box<[u8]>, ConfError> {
    let word = node.arg(0)?;
    if is_name(&word.bytes) { Ok(word.bytes.clone()) } else { Err(node.invalid_value(word)) }
}

/// Reads `challenge_address_prefix`; what is not written is the default.
fn read_prefix(node: &Node) -> Result<PrefixBits, ConfError> {
    let mut prefix = PrefixBits { v4: 24, v6: 48 };
    for word in &node.args {
        let (place, value, max) = match (word.param("ipv4"), word.param("ipv6")) {
            (Some(value), _) => (&mut prefix.v4, value, 32),
            (None, Some(value)) => (&mut prefix.v6, value, 128),
            (None, None) => return Err(node.invalid_parameter(word)),
        };
        let bits = tw_conf::units::number(value).filter(|bits| *bits <= max);
        *place = bits.and_then(|bits| u8::try_from(bits).ok()).ok_or_else(|| node.invalid_parameter(word))?;
    }
    Ok(prefix)
}

fn read_wait(node: &Node) -> Result<Option<Duration>, ConfError> {
    let word = node.arg(0)?;
    if word.is("refuse") {
        return Ok(None);
    }
    let time = word.param("wait").and_then(tw_conf::units::sec).filter(|time| !time.is_zero());
    time.map(Some).ok_or_else(|| node.invalid_parameter(word))
}

fn read_secret(word: &Word, cx: &Resolve<'_>) -> Result<TokenKey, ConfError> {
    let secret = contents(word, "challenge secret", cx)?;
    if secret.len() < SECRET_SIZE_MIN {
        let message = format!("challenge secret has fewer than {SECRET_SIZE_MIN} bytes");
        return Err(ConfError::new(message).at(word.span));
    }
    Ok(TokenKey::of(&secret))
}

fn read_agent_keys(word: &Word, cx: &Resolve<'_>) -> Result<AgentKeys, ConfError> {
    let text = contents(word, "keys of agents", cx)?;
    AgentKeys::read(&text).map_err(|why| {
        ConfError::new(format!("invalid keys of agents \"{}\": {why}", shown(word))).at(word.span)
    })
}

/// Returns the bytes of a file, or those that stand in its place behind `data:`.
fn contents(word: &Word, what: &str, cx: &Resolve<'_>) -> Result<Vec<u8>, ConfError> {
    match word.bytes.strip_prefix(b"data:") {
        Some(data) => Ok(data.to_vec()),
        None => cx.read_file(&word.bytes).map_err(|error| {
            let errno = tw_base::Errno::from(&error);
            let message = format!("cannot load {what} \"{}\": open() failed ({errno})", shown(word));
            ConfError::new(message).at(word.span)
        }),
    }
}

/// Name of a file in messages, without data.
fn shown(word: &Word) -> String {
    if word.bytes.starts_with(b"data:") { "data:...".to_owned() } else { word.lossy().into_owned() }
}
