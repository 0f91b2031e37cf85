//! Certificate authority that issues certificates by ACME (RFC 8555), with a script: it checks signatures, nonces and
//! challenges as a real one does, and misbehaves as a test wants.

pub(crate) mod jws;
mod validate;

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::ALL_VERSIONS;
use serde_json::{Value, json};

use crate::origin::{Conn, TlsConn, secured};
use crate::tls::Authority;
use crate::wait;
use jws::Request;

/// An authority that runs until the process ends.
pub struct Ca {
    /// Address it listens on.
    pub addr: SocketAddr,
    /// Authority that signs the certificates.
    pub authority: Arc<Authority>,
    /// The certificate to trust that it is the authority, in PEM.
    pub trust: String,
    shared: Arc<Shared>,
}

/// Misbehaviour or additional requirement of the authority.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Correct behaviour.
    #[default]
    None,
    /// The first nonce that a client uses is rejected as too old.
    OldNonce,
    /// Certificates are for another key.
    OtherKey,
    /// Certificates are for another name.
    OtherName,
    /// Certificates were good long ago.
    Expired,
    /// A certificate has two megabytes.
    Huge,
    /// Orders are not answered.
    Silent,
    /// The connection is cut in the middle of an answer to an order.
    Disconnect,
    /// Orders are answered with a page.
    Page,
    /// Rate limit: too many orders, with a retry after two hours.
    Busy,
    /// External account binding is required: key identifier and key.
    External(String, Vec<u8>),
    /// An order has an authorization for a name that was not requested.
    Foreign,
}

/// Behaviour that a test may change while it runs.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// Misbehaviour of the authority.
    pub misbehaviour: Misbehaviour,
    /// Lifetime of certificates; `None` is a day.
    pub lifetime: Option<Duration>,
    /// Ports for HTTP and TLS validation. The authority waits until they are set.
    pub ports: Option<(u16, u16)>,
    /// Directory of DNS records: files named as the record, with its values in lines.
    pub records: Option<PathBuf>,
    /// True if it has terms of service.
    pub has_terms: bool,
    /// Names of supported profiles.
    pub profiles: Vec<String>,
    /// URL of the OCSP responder in certificates.
    pub responder: Option<String>,
    /// Renewal information: the time until the window in which to replace a certificate.
    pub renew_in: Option<Duration>,
}

struct Shared {
    port: AtomicU16,
    authority: Arc<Authority>,
    script: Mutex<Script>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    nonces: HashSet<String>,
    made: usize,
    accounts: Vec<Value>,
    orders: Vec<Order>,
    said: Vec<String>,
    certificates: HashMap<usize, String>,
}

#[derive(Clone)]
struct Order {
    account: usize,
    names: Vec<(String, String)>,
    valid: Vec<bool>,
    failed: Option<String>,
    profile: Option<String>,
}

/// An answer: status, fields, body.
struct Reply(u16, String, Vec<u8>);

fn problem(status: u16, kind: &str, detail: &str) -> Reply {
    let body =
        json!({ "type": format!("urn:ietf:params:acme:error:{kind}"), "detail": detail, "status": status });
    Reply(status, "Content-Type: application/problem+json\r\n".into(), body.to_string().into_bytes())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ca {
    /// Starts one.
    ///
    /// # Panics
    /// There is no port, thread or key left.
    #[must_use]
    pub fn start(script: Script) -> Self {
        let own = Authority::new();
        let config = Authority::server(ALL_VERSIONS, &own.certify(&["ca.example", "127.0.0.1"]));
        let authority = Arc::new(Authority::new());
        let shared = Arc::new(Shared {
            port: AtomicU16::new(0),
            authority: authority.clone(),
            script: Mutex::new(script),
            state: Mutex::default(),
        });
        let serving = shared.clone();
        let addr = secured(config, move |mut conn| serving.serve(&mut conn));
        shared.port.store(addr.port(), SeqCst);
        Self { addr, authority, trust: own.pem(), shared }
    }

    /// URL of its directory.
    #[must_use]
    pub fn uri(&self) -> String {
        format!("https://127.0.0.1:{}/directory", self.addr.port())
    }

    /// Changes the script from now on.
    pub fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut lock(&self.shared.script));
    }

    /// Log of requests, in order: `account`, `order NAMES`, `challenge KIND NAME ok`, `certificate NAMES`, and
    /// refusals.
    #[must_use]
    pub fn said(&self) -> Vec<String> {
        lock(&self.shared.state).said.clone()
    }

    /// Number of log entries with this prefix.
    #[must_use]
    pub fn count(&self, what: &str) -> usize {
        self.said().iter().filter(|line| line.starts_with(what)).count()
    }
}

impl Shared {
    fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}/{path}", self.port.load(SeqCst))
    }

    fn record(&self, what: String) {
        lock(&self.state).said.push(what);
    }

    fn nonce(&self) -> String {
        let mut state = lock(&self.state);
        state.made += 1;
        let nonce = format!("nonce-{}", state.made);
        state.nonces.insert(nonce.clone());
        nonce
    }

    fn serve(&self, conn: &mut Conn<TlsConn>) {
        let Some(head) = conn.head() else { return };
        let len = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .and_then(|len| len.parse().ok());
        let mut body = vec![0; len.unwrap_or(0)];
        if conn.reader.read_exact(&mut body).is_err() {
            return;
        }
        let mut words = head.split(' ');
        let method = words.next().unwrap_or_default();
        let path = words.next().unwrap_or_default();
        let Some(Reply(status, fields, body)) = self.answer(method, path, &body, conn) else { return };
        let fields = format!("{fields}Replay-Nonce: {}\r\nConnection: close\r\n", self.nonce());
        let len = body.len();
        conn.send(format!("HTTP/1.1 {status} Said\r\n{fields}Content-Length: {len}\r\n\r\n"));
        if method != "HEAD" {
            conn.send(body);
        }
        conn.close_notify();
    }

    fn answer(&self, method: &str, path: &str, body: &[u8], conn: &mut Conn<TlsConn>) -> Option<Reply> {
        let script = lock(&self.script).clone();
        match (method, path) {
            ("GET", "/directory") => return Some(self.directory(&script)),
            ("HEAD", "/new-nonce") => return Some(Reply(200, String::new(), Vec::new())),
            ("GET", path) if path.starts_with("/renewal/") => return Some(self.renewal(path, &script)),
            ("POST", _) => {}
            _ => return Some(problem(405, "malformed", "another method")),
        }
        let request = match self.verified(path, body, &script) {
            Ok(request) => request,
            Err(reply) => {
                self.record(format!("refused {path}: {}", String::from_utf8_lossy(&reply.2)));
                return Some(reply);
            }
        };
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let number = |at: usize| parts.get(at).and_then(|part| part.parse::<usize>().ok());
        match (parts.first().copied(), number(1), number(2)) {
            (Some("new-account"), ..) => Some(self.account(&request, &script)),
            (Some("new-order"), ..) => match script.misbehaviour {
                Misbehaviour::Silent => {
                    // The connection stays open until the client gives up.
                    let _ = conn.reader.read(&mut [0]);
                    None
                }
                Misbehaviour::Disconnect => {
                    conn.send("HTTP/1.1 201 Created\r\nContent-Length: 1000\r\n\r\n{\"status\":");
                    None
                }
                Misbehaviour::Page => {
                    Some(Reply(200, "Content-Type: text/html\r\n".into(), b"<html>".to_vec()))
                }
                Misbehaviour::Busy => {
                    let Reply(status, fields, body) = problem(429, "rateLimited", "too many orders");
                    Some(Reply(status, fields + "Retry-After: 7200\r\n", body))
                }
                _ => Some(self.new_order(&request, &script)),
            },
            (Some("order"), Some(order), _) => Some(self.order(order)),
            (Some("authz"), Some(order), Some(at)) => Some(self.authorization(order, at, &script)),
            (Some("challenge"), Some(order), Some(at)) => {
                Some(self.challenge(order, at, parts.get(3).copied().unwrap_or_default(), &script))
            }
            (Some("finalize"), Some(order), _) => Some(self.finalize(order, &request, &script)),
            (Some("certificate"), Some(order), _) => Some(self.certificate(order, &script)),
            _ => Some(problem(404, "malformed", "there is no such thing")),
        }
    }

    fn directory(&self, script: &Script) -> Reply {
        let mut directory = json!({
            "newNonce": self.url("new-nonce"), "newAccount": self.url("new-account"), "newOrder": self.url("new-order"),
            "revokeCert": self.url("revoke"), "keyChange": self.url("change"),
            "meta": { "profiles": script.profiles.iter().map(|name| (name.clone(), json!("one"))).collect::<serde_json::Map<_, _>>() },
        });
        if script.has_terms {
            directory["meta"]["termsOfService"] = json!("https://ca.example/terms");
        }
        if matches!(script.misbehaviour, Misbehaviour::External(..)) {
            directory["meta"]["externalAccountRequired"] = json!(true);
        }
        if script.renew_in.is_some() {
            directory["renewalInfo"] = json!(self.url("renewal"));
        }
        Reply(200, String::new(), directory.to_string().into_bytes())
    }

    fn renewal(&self, path: &str, script: &Script) -> Reply {
        self.record(format!("renewal {}", path.trim_start_matches("/renewal/")));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = |after: Duration| validate::rfc3339((now + after).as_secs());
        let ahead = script.renew_in.unwrap_or_default();
        let body =
            json!({ "suggestedWindow": { "start": at(ahead), "end": at(ahead + Duration::from_secs(1)) } });
        Reply(200, "Retry-After: 21600\r\n".into(), body.to_string().into_bytes())
    }

    /// A request whose signature, nonce and URL are right.
    fn verified(&self, path: &str, body: &[u8], script: &Script) -> Result<Request, Reply> {
        let malformed = |why: &str| problem(400, "malformed", why);
        let mut request = Request::read(body).ok_or_else(|| malformed("this is no JWS"))?;
        if request.head["url"] != json!(self.url(path.trim_start_matches('/'))) {
            return Err(malformed("the URL is another one"));
        }
        let nonce = request.head["nonce"].as_str().unwrap_or_default().to_owned();
        {
            let mut state = lock(&self.state);
            let is_first = script.misbehaviour == Misbehaviour::OldNonce
                && !state.said.iter().any(|line| line.contains("badNonce"));
            if !state.nonces.remove(&nonce) || is_first {
                return Err(problem(400, "badNonce", "this nonce is too old"));
            }
            let account = request.head["kid"].as_str().map(str::to_owned);
            let known_value = account.and_then(|kid| kid.rsplit('/').next()?.parse::<usize>().ok());
            request.account = known_value.filter(|account| *account < state.accounts.len());
            if let Some(account) = request.account {
                request.key = state.accounts[account].clone();
            }
        }
        let wants_key = path == "/new-account";
        if wants_key != request.head.get("jwk").is_some() || wants_key == request.account.is_some() {
            return Err(problem(400, "accountDoesNotExist", "who is that?"));
        }
        request
            .verify()
            .then_some(request)
            .ok_or_else(|| problem(401, "unauthorized", "the signature is wrong"))
    }

    fn account(&self, request: &Request, script: &Script) -> Reply {
        let mut state = lock(&self.state);
        let known_value = state.accounts.iter().position(|key| *key == request.key);
        if known_value.is_none() {
            if script.has_terms && request.payload["termsOfServiceAgreed"] != json!(true) {
                return problem(403, "userActionRequired", "the terms are not accepted");
            }
            if let Misbehaviour::External(kid, key) = &script.misbehaviour
                && !jws::is_bound(&request.payload["externalAccountBinding"], kid, key, &request.key)
            {
                return problem(403, "externalAccountRequired", "nobody knows this account");
            }
            state.accounts.push(request.key.clone());
            state.said.push(format!("account {}", request.payload["contact"]));
        }
        let (status, id) = known_value.map_or((201, state.accounts.len() - 1), |id| (200, id));
        let location = format!("Location: {}\r\n", self.url(&format!("account/{id}")));
        Reply(status, location, json!({ "status": "valid" }).to_string().into_bytes())
    }

    fn new_order(&self, request: &Request, script: &Script) -> Reply {
        let identifiers = request.payload["identifiers"].as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let names: Vec<_> = identifiers.iter().map(|id| (text(&id["type"]), text(&id["value"]))).collect();
        let profile = request.payload["profile"].as_str().map(str::to_owned);
        if profile.as_ref().is_some_and(|name| !script.profiles.contains(name)) {
            return problem(400, "invalidProfile", "there is no such profile");
        }
        let id = {
            let mut state = lock(&self.state);
            let all: Vec<_> = names.iter().map(|(_, name)| name.as_str()).collect();
            let replaces =
                request.payload["replaces"].as_str().map(|id| format!(" replaces {id}")).unwrap_or_default();
            let of = profile.as_ref().map(|name| format!(" profile {name}")).unwrap_or_default();
            let said = format!("order {}{of}{replaces}", all.join(" "));
            state.said.push(said);
            let valid = vec![false; names.len()];
            let account = request.account.unwrap_or_default();
            state.orders.push(Order { account, names, valid, failed: None, profile });
            state.orders.len() - 1
        };
        let Reply(_, _, body) = self.order(id);
        Reply(201, format!("Location: {}\r\n", self.url(&format!("order/{id}"))), body)
    }

    fn order(&self, id: usize) -> Reply {
        let state = lock(&self.state);
        let Some(order) = state.orders.get(id) else {
            return problem(404, "malformed", "there is no such order");
        };
        let status = match (&order.failed, state.certificates.contains_key(&id)) {
            (Some(_), _) => "invalid",
            (None, true) => "valid",
            (None, false) if order.valid.iter().all(|valid| *valid) => "ready",
            (None, false) => "pending",
        };
        let authorizations: Vec<_> =
            (0..order.names.len()).map(|at| self.url(&format!("authz/{id}/{at}"))).collect();
        let mut body = json!({
            "status": status, "authorizations": authorizations, "finalize": self.url(&format!("finalize/{id}")),
            "identifiers": order.names.iter().map(|(kind, name)| json!({ "type": kind, "value": name })).collect::<Vec<_>>(),
            "profile": order.profile,
        });
        if status == "valid" {
            body["certificate"] = json!(self.url(&format!("certificate/{id}")));
        }
        Reply(200, String::new(), body.to_string().into_bytes())
    }

    fn authorization(&self, id: usize, at: usize, script: &Script) -> Reply {
        let state = lock(&self.state);
        let Some(order) = state.orders.get(id) else {
            return problem(404, "malformed", "there is no such order");
        };
        let Some((kind, name)) = order.names.get(at) else {
            return problem(404, "malformed", "there is no such name");
        };
        let status = match (&order.failed, order.valid[at]) {
            (Some(_), _) => "invalid",
            (None, true) => "valid",
            (None, false) => "pending",
        };
        let value = name.strip_prefix("*.").unwrap_or(name);
        let value = if script.misbehaviour == Misbehaviour::Foreign { "bank.example" } else { value };
        let challenges: Vec<_> = ["http-01", "tls-alpn-01", "dns-01"]
            .into_iter()
            .map(|challenge| {
                let url = self.url(&format!("challenge/{id}/{at}/{challenge}"));
                let mut said =
                    json!({ "type": challenge, "url": url, "status": status, "token": validate::token(id, at) });
                if let Some(why) = &order.failed {
                    said["error"] = json!({ "type": "urn:ietf:params:acme:error:unauthorized", "detail": why });
                }
                said
            })
            .collect();
        let body = json!({
            "status": status, "identifier": { "type": kind, "value": value }, "challenges": challenges,
            "wildcard": name.starts_with("*."),
        });
        Reply(200, String::new(), body.to_string().into_bytes())
    }

    fn challenge(&self, id: usize, at: usize, kind: &str, script: &Script) -> Reply {
        let entry = {
            let state = lock(&self.state);
            state.orders.get(id).and_then(|order| {
                Some((order.names.get(at)?.clone(), jws::thumbprint(state.accounts.get(order.account)?)))
            })
        };
        let Some(((_, name), thumbprint)) = entry else {
            return problem(404, "malformed", "there is no such name");
        };
        let token = validate::token(id, at);
        let answer = format!("{token}.{thumbprint}");
        let ports = wait::some(wait::TIMEOUT, || lock(&self.script).ports).unwrap_or_default();
        let outcome = match kind {
            "http-01" => validate::http(&name, &token, &answer, ports.0),
            "tls-alpn-01" => validate::handshake(&name, &answer, ports.1),
            "dns-01" => validate::record(&name, &answer, script.records.as_deref()),
            _ => Err("there is no such challenge".to_owned()),
        };
        let mut state = lock(&self.state);
        state.said.push(match &outcome {
            Ok(()) => format!("challenge {kind} {name} ok"),
            Err(why) => format!("challenge {kind} {name} failed: {why}"),
        });
        let order = &mut state.orders[id];
        match outcome {
            Ok(()) => order.valid[at] = true,
            Err(why) => order.failed = Some(why),
        }
        let body = json!({ "type": kind, "url": "", "status": "processing", "token": token });
        Reply(200, String::new(), body.to_string().into_bytes())
    }

    fn finalize(&self, id: usize, request: &Request, script: &Script) -> Reply {
        let order = lock(&self.state).orders.get(id).cloned();
        let Some(order) = order else { return problem(404, "malformed", "there is no such order") };
        if !order.valid.iter().all(|valid| *valid) {
            return problem(403, "orderNotReady", "names are open");
        }
        let csr = jws::bytes(request.payload["csr"].as_str().unwrap_or_default());
        let names: Vec<_> = order.names.iter().map(|(_, name)| name.as_str()).collect();
        let lifetime = script.lifetime.unwrap_or(Duration::from_secs(86_400));
        let issued = match script.misbehaviour {
            Misbehaviour::OtherKey => Ok(self.authority.certify(&names).pem),
            Misbehaviour::Expired => self.authority.sign_request(&csr, &names, None, None),
            Misbehaviour::OtherName => self.authority.sign_request_for(&csr, &["other.example"], lifetime),
            _ => {
                let responder = script.responder.as_deref();
                self.authority.sign_request(&csr, &names, Some(lifetime), responder)
            }
        };
        match issued {
            Ok(pem) => {
                let chain = pem + &self.authority.pem();
                lock(&self.state).certificates.insert(id, chain);
                self.record(format!("certificate {}", names.join(" ")));
                self.order(id)
            }
            Err(why) => {
                self.record(format!("refused request: {why}"));
                problem(400, "badCSR", &why)
            }
        }
    }

    fn certificate(&self, id: usize, script: &Script) -> Reply {
        let state = lock(&self.state);
        let Some(chain) = state.certificates.get(&id) else {
            return problem(404, "malformed", "there is none");
        };
        let mut body = chain.clone().into_bytes();
        if script.misbehaviour == Misbehaviour::Huge {
            body.resize(2 << 20, b'\n');
        }
        Reply(200, "Content-Type: application/pem-certificate-chain\r\n".into(), body)
    }
}
