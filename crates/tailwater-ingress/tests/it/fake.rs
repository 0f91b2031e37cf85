//! API server for tests: lists page by page, watches with bookmarks, versions that are forgotten, connections that break.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

/// Objects of one page of a list, so that every list has several.
const PAGE_COUNT: usize = 2;

#[derive(Default)]
struct State {
    version: u64,
    /// Objects by the path of their collection, and by namespace and name.
    objects: BTreeMap<String, BTreeMap<String, Value>>,
    /// Changes: version, collection, kind of the event, object.
    changes: Vec<(u64, String, &'static str, Value)>,
    /// Versions up to this one are forgotten.
    forgotten: u64,
    is_down: bool,
    /// Collections that the server does not have.
    absent: Vec<String>,
    /// Number of times that watches were broken off.
    broken: u64,
    requests: Vec<(String, String, Value)>,
}

/// The API server.
#[derive(Clone)]
pub struct FakeApi {
    addr: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl FakeApi {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let api = Self { addr: listener.local_addr().unwrap(), state: Arc::default() };
        let served = api.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let api = served.clone();
                thread::spawn(move || api.serve(stream));
            }
        });
        api
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap()
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.lock());
        self.state.1.notify_all();
    }

    /// Creates or replaces an object. Gives it a version, an identifier and a time of creation.
    pub fn put(&self, collection: &str, mut object: Value) {
        let name = &object["metadata"]["name"];
        let key = format!(
            "{}/{}",
            object["metadata"]["namespace"].as_str().unwrap_or(""),
            name.as_str().unwrap_or("?")
        );
        self.change(|state| {
            state.version += 1;
            let version = state.version;
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            if object["metadata"].is_object() {
                object["metadata"]["uid"] = json!(format!("uid-{collection}-{key}"));
            }
            let before = state.objects.entry(collection.to_owned()).or_default().insert(key, object.clone());
            let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
            state.changes.push((version, collection.to_owned(), kind, object));
        });
    }

    pub fn delete(&self, collection: &str, key: &str) {
        self.change(|state| {
            state.version += 1;
            let version = state.version;
            let mut object = state.objects.get_mut(collection).unwrap().remove(key).unwrap();
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            state.changes.push((version, collection.to_owned(), "DELETED", object));
        });
    }

    /// Breaks all watches off and forgets all versions, so the next watch gets 410.
    pub fn forget(&self) {
        self.change(|state| {
            state.version += 1;
            state.forgotten = state.version;
            state.changes.clear();
            state.broken += 1;
        });
    }

    /// Breaks all connections off, and refuses new ones while it is down.
    pub fn set_down(&self, is_down: bool) {
        self.change(|state| {
            state.is_down = is_down;
            state.broken += 1;
        });
    }

    /// Names collections that do not exist, by a part of their path; all exist without one.
    pub fn set_absent(&self, part: &[&str]) {
        self.change(|state| state.absent = part.iter().map(|part| (*part).to_owned()).collect());
    }

    /// Requests with a content: method, target, content.
    pub fn requests(&self, method: &str, part: &str) -> Vec<Value> {
        let state = self.lock();
        let results =
            state.requests.iter().filter(|(name, target, _)| name == method && target.contains(part));
        results.map(|(.., content)| content.clone()).collect()
    }

    /// Number of requests with this in their target.
    pub fn count(&self, part: &str) -> usize {
        self.lock().requests.iter().filter(|(_, target, _)| target.contains(part)).count()
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        if self.lock().is_down || reader.read_line(&mut line).is_err() {
            return;
        }
        let mut words = line.split(' ');
        let method = words.next().unwrap_or("").to_owned();
        let target = words.next().unwrap_or("").to_owned();
        let mut length = 0;
        loop {
            let mut field = String::new();
            if reader.read_line(&mut field).unwrap_or(0) == 0 || field.trim().is_empty() {
                break;
            }
            if let Some((name, value)) = field.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
        }
        let mut content = vec![0; length];
        reader.read_exact(&mut content).unwrap();
        let content: Value = serde_json::from_slice(&content).unwrap_or_default();
        self.change(|state| state.requests.push((method.clone(), target.clone(), content.clone())));
        let stream = reader.into_inner();
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        match &*method {
            "GET" if self.lock().absent.iter().any(|part| path.contains(part)) => {
                answer(stream, 404, &json!({"message": "the server could not find the requested resource"}))
            }
            "GET" if query.contains("watch=1") => self.watch(stream, path, query),
            "GET" if query.contains("limit=") => answer(stream, 200, &self.list(path, query)),
            "GET" => {
                let (collection, key) = path.rsplit_once('/').unwrap();
                let found_value = self
                    .lock()
                    .objects
                    .get(collection)
                    .and_then(|all| all.values().find(|o| o["metadata"]["name"] == key))
                    .cloned();
                match found_value {
                    Some(object) => answer(stream, 200, &object),
                    None => answer(stream, 404, &json!({"message": "not found"})),
                }
            }
            "POST" if path.contains("/leases") => {
                self.put(path, content.clone());
                answer(stream, 201, &content);
            }
            "PUT" => {
                self.put(path.rsplit_once('/').unwrap().0, content.clone());
                answer(stream, 200, &content);
            }
            "POST" | "PATCH" => answer(stream, 201, &content),
            _ => answer(stream, 405, &json!({})),
        }
    }

    fn list(&self, path: &str, query: &str) -> Value {
        let state = self.lock();
        let from: usize = argument(query, "continue").parse().unwrap_or(0);
        let all: Vec<_> = state.objects.get(path).into_iter().flat_map(BTreeMap::values).cloned().collect();
        let page: Vec<_> = all.iter().skip(from).take(PAGE_COUNT).cloned().collect();
        let mut metadata = json!({ "resourceVersion": state.version.to_string() });
        if from + PAGE_COUNT < all.len() {
            metadata["continue"] = json!((from + PAGE_COUNT).to_string());
        }
        json!({ "metadata": metadata, "items": page })
    }

    fn watch(&self, mut stream: TcpStream, path: &str, query: &str) {
        let mut version: u64 = argument(query, "resourceVersion").parse().unwrap();
        if stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").is_err() {
            return;
        }
        let broken = self.lock().broken;
        loop {
            let mut state = self.lock();
            if version < state.forgotten {
                let gone =
                    json!({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}});
                drop(state);
                let _ = chunk(&mut stream, &gone);
                let _ = stream.write_all(b"0\r\n\r\n");
                return;
            }
            let next = state.changes.iter().find(|(number, of, ..)| *number > version && of == path).cloned();
            let event = match next {
                Some((number, _, kind, object)) => {
                    version = number;
                    json!({"type": kind, "object": object})
                }
                None => {
                    let before = state.version;
                    state = self.state.1.wait_timeout(state, Duration::from_millis(100)).unwrap().0;
                    // The watch breaks in the middle, without an end.
                    if state.broken != broken {
                        return;
                    }
                    if state.version != before {
                        continue;
                    }
                    version = state.version;
                    json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version.to_string()}}})
                }
            };
            drop(state);
            if chunk(&mut stream, &event).is_err() {
                return;
            }
        }
    }
}

/// Sends an event in two chunks, none of which ends where the event does.
fn chunk(stream: &mut TcpStream, event: &Value) -> std::io::Result<()> {
    let text = format!("{event}\n");
    let (first, second) = text.split_at(text.len() / 2);
    for part in [first, second] {
        stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes())?;
    }
    Ok(())
}

fn answer(mut stream: TcpStream, status: u16, json: &Value) {
    let text = json.to_string();
    let _ = stream
        .write_all(format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{text}", text.len()).as_bytes());
}

fn argument(query: &str, name: &str) -> String {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).unwrap_or_default()
}
