//! The API server: its address, who we are, and the requests that the controller makes.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tw_fetch::{Body, Request, ServerAddress};
use tw_tls::rustls::pki_types::ServerName;

/// Directory in which every pod finds its account.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Field with the name of the program.
const USER_AGENT: &str = concat!("User-Agent: tailwater-ingress/", env!("CARGO_PKG_VERSION"));
/// Most bytes of one page of a list: 500 objects of 128 KiB.
const PAGE_SIZE_MAX: u64 = 64 << 20;
/// Most bytes of one event of a watch; etcd holds objects of 1.5 MiB, which JSON may make larger.
const EVENT_SIZE_MAX: u64 = 8 << 20;
/// Longest time of a request that is no watch.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Objects of one page.
const PAGE_COUNT: usize = 500;

/// Reason why a request has no result.
#[derive(Debug)]
pub enum ApiError {
    /// The server cannot be reached, or the connection breaks.
    Io(io::Error),
    /// Another status than one of success.
    Status(u16, String),
    /// No JSON.
    Malformed,
}

impl ApiError {
    /// Returns true if the versions that the request names are forgotten, so a new list is needed.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Status(410, _))
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                f.write_str("the API server does not answer in time")
            }
            Self::Io(error) => write!(f, "{error}"),
            Self::Status(status, message) => write!(f, "status {status}: {message}"),
            Self::Malformed => f.write_str("the response is not JSON"),
        }
    }
}

impl From<io::Error> for ApiError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Requests to the API server.
#[derive(Clone)]
pub struct ApiClient {
    endpoint: ServerAddress,
    /// File with the token, read for each request, because it is replaced every hour.
    token: Option<PathBuf>,
}

/// Access to an API server, as options have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// URL; that of the cluster the program runs in if it is missing.
    pub url: Option<String>,
    /// File with a token.
    pub token: Option<PathBuf>,
    /// File with the certificates of authorities that are trusted.
    pub authorities: Option<PathBuf>,
}

impl ApiClient {
    /// Prepares requests.
    ///
    /// # Errors
    /// There is no cluster around, or its certificates cannot be read.
    pub fn new(access: &Access) -> Result<Self, String> {
        let account = |name: &str| PathBuf::from(ACCOUNT).join(name);
        let (url, token, authorities) = match &access.url {
            Some(url) => (url.clone(), access.token.clone(), access.authorities.clone()),
            None => {
                let of = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
                let address = of("KUBERNETES_SERVICE_HOST").zip(of("KUBERNETES_SERVICE_PORT"));
                let (host, port) =
                    address.ok_or("no cluster is around this program: name one with --apiserver URL")?;
                let host = if host.contains(':') { format!("[{host}]") } else { host };
                let token = access.token.clone().unwrap_or_else(|| account("token"));
                let authorities = access.authorities.clone().unwrap_or_else(|| account("ca.crt"));
                (format!("https://{host}:{port}"), Some(token), Some(authorities))
            }
        };
        Ok(Self { endpoint: endpoint(&url, authorities)?, token })
    }

    fn authorization(&self) -> io::Result<Option<String>> {
        let Some(path) = &self.token else { return Ok(None) };
        let text = fs::read_to_string(path)?;
        let token = text.trim();
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(io::Error::other(format!("no token in \"{}\"", path.display())));
        }
        Ok(Some(format!("Authorization: Bearer {token}")))
    }

    fn send(
        &self,
        method: &str,
        target: &str,
        content: Option<(&str, &Value)>,
        within: Duration,
    ) -> Result<Body, ApiError> {
        let content = content.map(|(kind, json)| (kind, json.to_string().into_bytes()));
        let mut fields = vec![USER_AGENT.to_owned(), "Accept: application/json".to_owned()];
        fields.extend(self.authorization()?);
        let request = Request { method, target, host: None, fields, content };
        let mut response = tw_fetch::send(&self.endpoint, &request, within)?;
        if (200..300).contains(&response.status) {
            return Ok(response.body);
        }
        let text = response.body.read_all(PAGE_SIZE_MAX).unwrap_or_default();
        let json: Value = serde_json::from_slice(&text).unwrap_or_default();
        let message: String = json["message"].as_str().unwrap_or_default().chars().take(300).collect();
        Err(ApiError::Status(response.status, message))
    }

    /// Makes a request with a small response.
    ///
    /// # Errors
    /// The request fails.
    pub fn request(
        &self,
        method: &str,
        target: &str,
        content: Option<(&str, &Value)>,
    ) -> Result<Value, ApiError> {
        let mut body = self.send(method, target, content, REQUEST_TIMEOUT)?;
        serde_json::from_slice(&body.read_all(PAGE_SIZE_MAX)?).map_err(|_| ApiError::Malformed)
    }

    /// Lists all objects of a path, page by page. Returns the version of the list.
    ///
    /// # Errors
    /// One page fails.
    pub fn list(&self, path: &str, query: &str, mut each: impl FnMut(Value)) -> Result<String, ApiError> {
        let mut next = String::new();
        let mut version = None;
        loop {
            let target = format!("{path}?limit={PAGE_COUNT}{query}{}", token_argument(&next));
            let mut page = self.request("GET", &target, None)?;
            if let Value::Array(items) = page["items"].take() {
                items.into_iter().for_each(&mut each);
            }
            let metadata = &page["metadata"];
            // The version of the first page counts, because changes between pages come with the watch.
            version = version.or_else(|| metadata["resourceVersion"].as_str().map(str::to_owned));
            next = metadata["continue"].as_str().unwrap_or_default().to_owned();
            if next.is_empty() {
                return version.ok_or(ApiError::Malformed);
            }
        }
    }

    /// Watches the changes of a path after a version. The server ends the watch after `within`.
    ///
    /// # Errors
    /// The server refuses it.
    pub fn watch(&self, path: &str, query: &str, version: &str, within: Duration) -> Result<Watch, ApiError> {
        let version = escaped(version);
        let seconds = within.as_secs().max(1);
        let target = format!(
            "{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}{query}"
        );
        let body = self.send("GET", &target, None, within + REQUEST_TIMEOUT)?;
        Ok(Watch(BufReader::new(body)))
    }
}

/// Events of a watch.
#[derive(Debug)]
pub struct Watch(BufReader<Body>);

/// Change of an object.
#[derive(Debug, PartialEq)]
pub enum Event {
    /// A new or changed object.
    Applied(Value),
    /// A removed object.
    Deleted(Value),
    /// Nothing but a new version.
    Bookmark(Value),
}

impl Watch {
    /// Waits for the next event. `None` at the end of the watch.
    ///
    /// # Errors
    /// The connection breaks, the event is no JSON, or the server ends the watch with an error, such as 410.
    pub fn next_event(&mut self) -> Result<Option<Event>, ApiError> {
        let mut line = Vec::new();
        (&mut self.0).take(EVENT_SIZE_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        let mut json: Value = serde_json::from_slice(&line).map_err(|_| ApiError::Malformed)?;
        let object = json["object"].take();
        match json["type"].as_str() {
            Some("ADDED" | "MODIFIED") => Ok(Some(Event::Applied(object))),
            Some("DELETED") => Ok(Some(Event::Deleted(object))),
            Some("BOOKMARK") => Ok(Some(Event::Bookmark(object))),
            Some("ERROR") => {
                let status = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(500);
                Err(ApiError::Status(
                    status,
                    object["message"].as_str().unwrap_or_default().chars().take(300).collect(),
                ))
            }
            _ => Err(ApiError::Malformed),
        }
    }
}

/// Server of a URL such as `https://10.0.0.1:6443`.
fn endpoint(url: &str, authorities: Option<PathBuf>) -> Result<ServerAddress, String> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| format!("\"{url}\" is no URL"))?;
    let rest = rest.trim_end_matches('/');
    let invalid = || format!("\"{url}\" is no address of an API server");
    let (host, port) = match rest.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, Some(port.parse::<u16>().map_err(|_| invalid())?))
        }
        _ => (rest, None),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() || host.contains('/') {
        return Err(invalid());
    }
    match scheme {
        "http" => Ok(ServerAddress::Tcp(host, port.unwrap_or(80))),
        "https" => {
            let paths: Vec<PathBuf> = match authorities {
                Some(path) => vec![path],
                None => tw_tls::BUNDLES.iter().map(PathBuf::from).collect(),
            };
            let text = paths.iter().find_map(|path| fs::read(path).ok());
            let text = text.ok_or_else(|| {
                format!("no certificates of authorities in {paths:?}: name a file with --ca")
            })?;
            let name = ServerName::try_from(host.clone()).map_err(|error| format!("\"{host}\": {error}"))?;
            Ok(ServerAddress::Tls(host, port.unwrap_or(443), name, tw_tls::client_config(Some(&text))?))
        }
        _ => Err(invalid()),
    }
}

fn token_argument(next: &str) -> String {
    if next.is_empty() { String::new() } else { format!("&continue={}", escaped(next)) }
}

/// Text as a part of a query.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_are_read() {
        for (url, expected) in [
            ("http://127.0.0.1:8001", Some(("127.0.0.1", 8001))),
            ("http://[::1]:8001/", Some(("::1", 8001))),
            ("http://host", Some(("host", 80))),
            ("http://[::1]", Some(("::1", 80))),
            ("ftp://host", None),
            ("http://", None),
            ("http://host:x", None),
            ("http://host/path", None),
            ("host", None),
        ] {
            let server_address = endpoint(url, None).ok();
            let entry = server_address.map(|endpoint| match endpoint {
                ServerAddress::Tcp(host, port) => (host, port),
                _ => panic!("{url}"),
            });
            assert_eq!(entry, expected.map(|(host, port)| (host.to_owned(), port)), "{url}");
        }
    }

    #[test]
    fn arguments_are_escaped() {
        assert_eq!(escaped("a+b/=&"), "a%2Bb%2F%3D%26");
    }
}
