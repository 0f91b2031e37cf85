use super::response::{size, time_of};
use super::*;
use tw_core::config_thread::ConfigThread;
use tw_http_testkit::{generation, new_loop};

fn explanation(conf: &str, host: &str, port: u16, target: &str) -> Vec<String> {
    let request = RequestToExplain {
        method: b"GET".to_vec(),
        host: host.as_bytes().to_vec(),
        port: Some(port),
        scheme: None,
        fields: Vec::new(),
        body: Vec::new(),
        is_detailed: false,
        target: target.as_bytes().to_vec(),
    };
    let generation = ConfigThread::start(|| {}).unwrap().publish(generation(conf));
    match explain(generation, vec![request], new_loop).unwrap().remove(0) {
        Ok(explanation) => {
            explanation.lines.iter().map(|line| format!("{} {}", line.about, line.text)).collect()
        }
        Err(refused) => vec![refused],
    }
}

#[test]
fn listens_servers_and_locations() {
    let conf = "server { listen 80; listen 127.0.0.2:80; server_name a.example *.b.example; location = / { }
                  location / { } location ^~ /s/ { } location ~ \\.x$ { } location /in/ { internal; } }
                server { listen 80; server_name ~^c; } server { listen 127.0.0.2:81; }";
    for (host, port, target, expected) in [
        (
            "a.example",
            80,
            "/",
            ["listen 0.0.0.0:80", "server a.example: server_name is", "location = /: the URI"],
        ),
        (
            "x.b.example",
            80,
            "/y",
            ["listen 0.0.0.0:80", "fits server_name \"*.b.example\"", "location /: the longest"],
        ),
        (
            "a.example",
            80,
            "/s/y.x",
            ["listen 0.0.0.0:80", "server a.example", "location ^~ /s/: the longest prefix; with"],
        ),
        (
            "a.example",
            80,
            "/q/y.x",
            [
                "listen",
                "server a.example",
                "location ~ \\.x$: the first regular expression that matches; it comes before the prefix /",
            ],
        ),
        ("127.0.0.2", 80, "/q", ["listen 127.0.0.2:80", "the only server of the address", "location /"]),
        (
            "cc",
            80,
            "/q",
            [
                "listen 0.0.0.0:80",
                "matches server_name \"~^c\"",
                "location none: the server has no locations",
            ],
        ),
        ("other", 80, "/q", ["listen 0.0.0.0:80", "no server_name fits \"other\"", "location /"]),
        ("a.example", 80, "/in/", ["location /in/", "internal: requests of clients get 404", "response 404"]),
        ("127.0.0.2", 81, "/", ["listen 127.0.0.2:81", "server without a name", "location none"]),
    ] {
        let explanation = explanation(conf, host, port, target);
        for expected in expected {
            assert!(
                explanation.iter().any(|line| line.contains(expected)),
                "{expected} is not in {explanation:#?}"
            );
        }
    }
    assert!(
        explanation(conf, "a", 8080, "/")[0]
            .starts_with("no server listens on port 8080 (listening: 0.0.0.0:80, ")
    );
    assert!(explanation(conf, "127.0.0.3", 81, "/")[0].starts_with("no server listens on port 81"));
    assert!(explanation(conf, "a", 80, "x")[0].starts_with("such a request is refused with 400"));
}

#[test]
fn sizes_and_times() {
    for (bytes, expected) in [(1, "1"), (1024, "1k"), (1 << 20, "1m"), (3 << 30, "3g"), (1500, "1500")] {
        assert_eq!(size(bytes), expected);
    }
    assert_eq!([60_000, 1500].map(|ms| time_of(Duration::from_millis(ms))), ["60s", "1500ms"]);
}
