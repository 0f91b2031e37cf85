//! A scripted OpenID provider on loopback, and logins at it.

use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rustls::ALL_VERSIONS;
use serde_json::{Value, json};
use tw_testkit::jwt::{TokenKey, key_set};
use tw_testkit::origin::secured;
use tw_testkit::tls::Authority;
use tw_testkit::{Response, Server};

use crate::support::{get, request, server};

/// A provider, and what it has to say.
pub(super) struct Provider {
    pub(super) addr: SocketAddr,
    pub(super) authority: String,
    pub(super) script: Arc<Mutex<Script>>,
    /// Held by a test: the token endpoint does not answer.
    pub(super) gate: Arc<Mutex<()>>,
    /// Keys of tokens: that of the provider, and one that only looks like it.
    pub(super) keys: Arc<(TokenKey, TokenKey)>,
    /// Requests: head and body.
    pub(super) asked: Arc<Mutex<Vec<(String, String)>>>,
}

#[derive(Clone)]
pub(super) struct Script {
    /// Claims of the next ID token besides those of every one; `null` removes one. Without `nonce`, it is the code.
    pub(super) claims: Value,
    /// Members of the metadata.
    pub(super) metadata: Value,
    /// Status of the token endpoint.
    pub(super) status: u16,
    /// Members of the next response of the token endpoint; `null` removes one.
    pub(super) tokens: Value,
    /// Number of the refresh token that is valid: each is good for one renewal.
    pub(super) renewals: u32,
    pub(super) userinfo: Value,
    pub(super) is_forged: bool,
}

impl Provider {
    pub(super) fn start() -> Self {
        let authority = Authority::new();
        let keys = Arc::new((TokenKey::rsa("1"), TokenKey::rsa("1")));
        let script = Arc::new(Mutex::new(Script {
            claims: json!({}),
            metadata: json!({}),
            status: 200,
            tokens: json!({}),
            renewals: 0,
            userinfo: json!({ "sub": "alice", "name": "Alice" }),
            is_forged: false,
        }));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let gate = Arc::new(Mutex::new(()));
        let scripted = script.clone();
        let noted = asked.clone();
        let closed = gate.clone();
        let signing = keys.clone();
        let config = Authority::server(ALL_VERSIONS, &authority.certify(&["localhost"]));
        let addr = secured(config, move |mut conn| {
            while let Some(head) = conn.head() {
                let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                let size = field("Content-Length:").map_or(0, |size| size.parse().unwrap());
                let mut body = vec![0; size];
                conn.reader.read_exact(&mut body).unwrap();
                let form = String::from_utf8(body).unwrap();
                noted.lock().unwrap().push((head.clone(), form.clone()));
                let issuer = format!("https://{}", field("Host:").unwrap());
                if head.starts_with("POST /token ") {
                    drop(closed.lock().unwrap());
                }
                let script = scripted.lock().unwrap().clone();
                match head.split(' ').nth(1).unwrap() {
                    "/.well-known/openid-configuration" => conn.answer("", metadata(&issuer, &script)),
                    "/keys" => conn.answer("", key_set([&signing.0])),
                    "/userinfo" => conn.answer("", script.userinfo.to_string()),
                    "/token" if script.status == 200 && may_have(&form, &scripted) => {
                        let key = if script.is_forged { &signing.1 } else { &signing.0 };
                        conn.answer("", tokens(&issuer, &form, key, &scripted.lock().unwrap()));
                    }
                    _ => {
                        let body = r#"{"error":"invalid_grant"}"#;
                        let status = if script.status == 200 { 400 } else { script.status };
                        conn.send(format!(
                            "HTTP/1.1 {status} No\r\nContent-Length: {}\r\n\r\n{body}",
                            body.len()
                        ));
                    }
                }
            }
        });
        Self { addr, authority: authority.pem(), script, gate, keys, asked }
    }

    pub(super) fn issuer(&self) -> String {
        format!("https://localhost:{}", self.addr.port())
    }

    /// A server with this provider as `idp`.
    pub(super) fn serve(&self, lines: &str, http: &str) -> Server {
        server().file("ca.pem", &self.authority).start(&self.conf(1, lines, http)).unwrap()
    }

    /// [`serve`](Self::serve) with several loops.
    pub(super) fn serve_on_loops(&self, lines: &str, http: &str) -> Server {
        server().file("ca.pem", &self.authority).start(&self.conf(3, lines, http)).unwrap()
    }

    /// Configuration with so many loops.
    pub(super) fn conf(&self, loops: usize, lines: &str, http: &str) -> String {
        format!(
            "worker_processes {loops}; http {{ oidc_provider idp {{ issuer {}; client_id client; \
               client_secret 's&cret'; ssl_trusted_certificate ../ca.pem; {lines} }} {http} }}",
            self.issuer()
        )
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    /// Requests to one path.
    pub(super) fn asked(&self, path: &str) -> Vec<(String, String)> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(head, _)| head.split(' ').nth(1) == Some(path)).cloned().collect()
    }
}

/// True if the provider has tokens for this form: a refresh token is used up by its renewal.
fn may_have(form: &str, script: &Mutex<Script>) -> bool {
    let form = format!("?{form}");
    let Some(refresh_token) = arg(&form, "refresh_token") else { return true };
    let mut script = script.lock().unwrap();
    let is_valid = refresh_token == format!("refresh-{}", script.renewals);
    script.renewals += u32::from(is_valid);
    is_valid
}

/// Response of the token endpoint.
fn tokens(issuer: &str, form: &str, key: &TokenKey, script: &Script) -> String {
    let form = format!("?{form}");
    let mut claims = claims(issuer, script);
    let access_token = match arg(&form, "code") {
        Some(code) => {
            if claims.get("nonce").is_none() && !script.claims.as_object().unwrap().contains_key("nonce") {
                claims["nonce"] = code.into();
            }
            "access".to_owned()
        }
        None => {
            claims.as_object_mut().unwrap().remove("nonce");
            format!("access-{}", script.renewals)
        }
    };
    let mut tokens = json!({
        "id_token": key.sign("RS256", &claims),
        "access_token": access_token,
        "token_type": "Bearer",
        "refresh_token": format!("refresh-{}", script.renewals),
    });
    merge(&mut tokens, &script.tokens);
    tokens.to_string()
}

fn metadata(issuer: &str, script: &Script) -> String {
    let mut metadata = json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "userinfo_endpoint": format!("{issuer}/userinfo"),
        "jwks_uri": format!("{issuer}/keys"),
        "end_session_endpoint": format!("{issuer}/logout?a=b"),
    });
    merge(&mut metadata, &script.metadata);
    metadata.to_string()
}

fn claims(issuer: &str, script: &Script) -> Value {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let mut claims =
        json!({ "iss": issuer, "aud": "client", "sub": "alice", "exp": now + 600, "groups": ["a", "b"] });
    merge(&mut claims, &script.claims);
    claims
}

pub(super) fn merge(into: &mut Value, more: &Value) {
    let into = into.as_object_mut().unwrap();
    for (name, value) in more.as_object().unwrap() {
        match value {
            Value::Null => drop(into.remove(name)),
            value => drop(into.insert(name.clone(), value.clone())),
        }
    }
}

/// One argument of a URL, as sent.
pub(super) fn arg<'u>(url: &'u str, name: &str) -> Option<&'u str> {
    let (_, args) = url.split_once('?')?;
    args.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// `name=value` of a cookie that a response sets.
pub(super) fn cookie(response: &Response, name: &str) -> Option<String> {
    let mut set = response.values("Set-Cookie");
    let set = set.find(|set| set.starts_with(&format!("{name}=")))?;
    Some(set.split(';').next().unwrap().to_owned())
}

pub(super) fn get_with(server: &Server, target: &str, cookie: &str) -> Response {
    request(server, &format!("GET {target}"), &[&format!("Cookie: {cookie}")])
}

/// Login up to the provider: the URL of the authentication request, and the cookie of the browser.
pub(super) fn begin(server: &Server, target: &str) -> (String, String) {
    let response = get(server, target);
    assert_eq!(response.status, 302, "{}", response.text());
    let browser = cookie(&response, "NGX_OIDC_SESSION_LOGIN").unwrap();
    (response.field("Location").unwrap().to_owned(), browser)
}

/// Login with these claims.
pub(super) fn log_in(provider: &Provider, server: &Server, target: &str) -> Response {
    let (url, browser) = begin(server, target);
    provider.change(|script| merge(&mut script.claims, &json!({ "nonce": arg(&url, "nonce").unwrap() })));
    get_with(server, &format!("/oidc_callback?code=c%2Bd&state={}", arg(&url, "state").unwrap()), &browser)
}

/// A login that ends with a session: its cookie.
pub(super) fn session(provider: &Provider, server: &Server, target: &str) -> String {
    let back = log_in(provider, server, target);
    cookie(&back, "NGX_OIDC_SESSION").unwrap_or_else(|| panic!("{} {}", back.status, server.error_log()))
}
