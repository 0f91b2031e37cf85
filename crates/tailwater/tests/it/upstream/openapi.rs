//! Description of the API (OpenAPI): it has every path and method that the server has, and bodies are as it says.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tw_testkit::{Response, Server};

use crate::support::{own_user, server};

/// A server with everything that the API shows: groups with a name in DNS and a queue, a cache, a zone, and tables.
fn start() -> Server {
    let user = own_user();
    server()
        .start(&format!(
            "{user}
            http {{
                proxy_cache_path cache keys_zone=c:1m max_size=10m;
                keyval_zone zone=k:64k; keyval $uri $of_uri zone=k;
                upstream u {{ zone u 64k; server 127.0.0.1:1; server 127.0.0.1:2 down; server localhost:3; queue 10; }}
                server {{ listen 127.0.0.1:{{port}};
                    location /api/ {{ api write=on; }}
                    location / {{ proxy_pass http://u; proxy_cache c; }} }}
            }}
            stream {{
                keyval_zone zone=l:64k; keyval $remote_addr $of_addr zone=l;
                upstream s {{ zone s 64k; server 127.0.0.1:4; }}
                server {{ listen 127.0.0.1:{{port1}}; status_zone z; proxy_pass s; }}
            }}
            mail {{
                keyval_zone zone=m:64k; keyval $remote_addr $of_addr zone=m;
                upstream a {{ zone a 64k; server 127.0.0.1:5; }} auth_http http://a/;
                server {{ listen 127.0.0.1:{{port2}}; protocol imap; status_zone z; }}
            }}"
        ))
        .unwrap()
}

fn send(server: &Server, method: &str, path: &str, body: &str) -> Response {
    let mut client = server.connect().unwrap();
    let length = body.len();
    client
        .send(format!(
            "{method} /api{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        ))
        .unwrap();
    client.read_response().unwrap()
}

fn json(response: &Response) -> Value {
    serde_json::from_str(&response.text()).unwrap_or_else(|e| panic!("{e}: {}", response.text()))
}

fn description(server: &Server) -> Value {
    json(&send(server, "GET", "/openapi.json", ""))
}

fn object(value: &Value) -> &Map<String, Value> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}"))
}

/// Checks a value against the part of JSON Schema that the description uses.
fn check(document: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(name) = schema["$ref"].as_str() {
        let pointer = name.strip_prefix('#').unwrap();
        return check(document, document.pointer(pointer).unwrap(), value, at);
    }
    let is_right = match schema["type"].as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.as_u64().is_some(),
        other => panic!("{at}: unknown type {other}"),
    };
    assert!(is_right, "{at}: {value} is not as {schema}");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{at}: {value}");
    }
    if let Some(limit) = schema["minimum"].as_u64() {
        assert!(value.as_u64().unwrap() >= limit, "{at}: {value}");
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        check(document, &schema["items"], item, &format!("{at}/{index}"));
    }
    let Some(members) = value.as_object() else { return };
    for name in schema["required"].as_array().into_iter().flatten() {
        assert!(members.contains_key(name.as_str().unwrap()), "{at}: {name} is missing in {value}");
    }
    for (name, member) in members {
        let known_value = schema["properties"].get(name).or_else(|| schema.get("additionalProperties"));
        match known_value {
            // The schema is an object with open members.
            None => {}
            Some(Value::Bool(false)) => panic!("{at}: {name} is not described"),
            Some(schema) => check(document, schema, member, &format!("{at}/{name}")),
        }
    }
}

/// A path with names of the configuration in place of parameters.
fn real(path: &str) -> String {
    let kinds = [
        ("/http/upstreams", "u"),
        ("/stream/upstreams", "s"),
        ("/http/caches", "c"),
        ("/http/keyvals", "k"),
        ("/stream/keyvals", "l"),
        ("/mail/upstreams", "a"),
        ("/mail/keyvals", "m"),
    ];
    let name = kinds.iter().find(|(start, _)| path.starts_with(start)).map_or("z", |(_, name)| name);
    path.replace("{name}", name).replace("{id}", "0")
}

/// Body of a request that changes something, and the status of its response.
fn request_for(method: &str, path: &str) -> (&'static str, &'static str) {
    match (method, path) {
        ("POST", path) if path.ends_with("purge") => ("{\"prefix\":\"\"}", "200"),
        ("POST", path) if path.contains("keyvals") => ("{\"a\":\"1\"}", "201"),
        ("PATCH", path) if path.contains("keyvals") => ("{\"a\":\"2\"}", "204"),
        ("DELETE", path) if path.contains("keyvals") => ("", "204"),
        ("POST", _) => ("{\"server\":\"127.0.0.1:9\",\"drain\":true}", "201"),
        ("PATCH", _) => ("{\"weight\":2,\"max_fails\":0}", "200"),
        _ => ("", "200"),
    }
}

#[test]
fn every_described_operation_answers_as_described() {
    let server = start();
    let document = description(&server);
    let mut count = 0;
    for (path, operations) in object(&document["paths"]) {
        for method in ["GET", "POST", "PATCH", "DELETE"] {
            let Some(operation) = operations.get(method.to_lowercase()) else { continue };
            let at = format!("{method} {path}");
            let (body, status) = request_for(method, path);
            if !body.is_empty() {
                let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
                check(&document, schema, &serde_json::from_str(body).unwrap(), &at);
            }
            let response = send(&server, method, &real(path), body);
            assert_eq!(response.status.to_string(), status, "{at}: {}", response.text());
            match operation["responses"][status].get("content") {
                Some(content) => {
                    check(&document, &content["application/json"]["schema"], &json(&response), &at)
                }
                None => assert_eq!(response.text(), "", "{at}"),
            }
            count += 1;
        }
        let refused = send(&server, "PUT", &real(path), "");
        assert_eq!(refused.status, 405, "{path}");
        check(&document, &document["components"]["schemas"]["Error"], &json(&refused), path);
        let described = object(operations).keys().filter(|key| *key != "parameters");
        let mut described: BTreeSet<String> = described.map(|key| key.to_uppercase()).collect();
        if described.contains("GET") {
            described.insert("HEAD".to_owned());
        }
        let allowed = refused.field("Allow").unwrap().split(", ").map(str::to_owned).collect();
        assert_eq!(described, allowed, "{path}");
    }
    assert!(count > 20, "{count}");
}

#[test]
fn everything_that_lists_name_is_described() {
    let server = start();
    let document = description(&server);
    let described: BTreeSet<String> = object(&document["paths"]).keys().map(|path| real(path)).collect();
    let mut open = vec![String::new()];
    let mut seen_count = 0;
    while let Some(path) = open.pop() {
        let listed = json(&send(&server, "GET", &format!("{path}/"), ""));
        let names: Vec<String> = match &listed {
            Value::Array(names) if names.iter().all(Value::is_string) => {
                names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
            }
            // The keys are the names of groups, caches and zones. Deeper objects are not lists of names.
            Value::Object(all) if path.matches('/').count() == 2 => all.keys().cloned().collect(),
            _ => continue,
        };
        for name in names {
            let below = format!("{path}/{name}");
            assert!(described.contains(&below), "{below} is not described");
            open.push(below);
            seen_count += 1;
        }
    }
    assert!(seen_count >= 10, "{seen_count}");
}
