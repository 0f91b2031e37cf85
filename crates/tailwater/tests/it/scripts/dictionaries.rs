//! `js_shared_dict_zone`.

use super::scripted;
use crate::support::{page, refusal_of, start};

const CONF: &str = "worker_processes 2; http { js_import main.js; \
     js_shared_dict_zone zone=words:64k timeout=60s; js_shared_dict_zone zone=counts:64k type=number; \
     server { listen 127.0.0.1:{port}; location /count { js_content main.count; } \
       location /words { js_content main.words; } } }";

#[test]
fn dictionaries_are_shared_by_loops_and_outlive_reloads() {
    let script = "
        function count(r) { r.return(200, `${ngx.shared.counts.incr('n', 1)}`); }
        function words(r) {
            const d = ngx.shared.words;
            d.set('a', '1');
            const added = d.add('a', '2');
            let refused = '';
            try { ngx.shared.counts.set('x', 'text'); } catch (e) { refused = e.name; }
            r.return(200, [d.get('a'), added, d.has('b'), d.get('b'), d.size(), d.capacity, d.delete('a'), refused].join(' '));
        }
        export default {count, words};";
    let Some(builder) = scripted(script) else { return };
    let mut server = builder.start(CONF).unwrap();
    for n in 1..=20 {
        assert_eq!(page(&server, "/count"), (200, n.to_string()));
    }
    assert_eq!(page(&server, "/words").1, "1 false false  1 65536 true TypeError");
    server.write_conf(&format!("{CONF} # another text")).unwrap();
    server.signal(tw_testkit::Signal::HUP).unwrap();
    server.wait_error_log("the configuration is taken over").unwrap();
    assert_eq!(page(&server, "/count").1, "21");
}

#[test]
fn wrong_dictionaries_are_refused() {
    for (zone, message) in [
        ("zone=d:1k", "is too small"),
        ("zone=d:64k evict", "evict requires timeout="),
        ("zone=d:64k type=bool", "invalid dict type \"bool\""),
        ("timeout=1s", "must have \"zone\" parameter"),
        ("zone=d:64k state=d.json", "is not supported"),
    ] {
        let error = refusal_of(&format!(
            "http {{ js_shared_dict_zone {zone}; server {{ listen 127.0.0.1:{{port}}; }} }}"
        ));
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn dictionary_that_is_not_declared_is_none() {
    let script = "function content(r) { r.return(200, typeof ngx.shared.none); } export default {content};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder,
        "js_import main.js; server { listen 127.0.0.1:{port}; location / { js_content main.content; } }",
    );
    assert_eq!(page(&server, "/").1, "undefined");
}
