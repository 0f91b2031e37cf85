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
        ("zone=d:64k state=", "invalid parameter \"state=\""),
        (
            "zone=d:64k state=d.json; js_shared_dict_zone zone=e:64k state=d.json",
            "state file \"d.json\" is already used",
        ),
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

const KEPT: &str = "js_import main.js; js_shared_dict_zone zone=words:64k state=words.json; \
     js_shared_dict_zone zone=counts:64k type=number timeout=1000s state=counts.json; \
     server { listen 127.0.0.1:{port}; location / { js_content main.run; } }";

const RUN: &str = "
    function run(r) {
        const answer = new Function(`return ${r.args.code}`)();
        r.return(200, `${answer}`);
    }
    export default {run};";

#[test]
fn state_of_a_dictionary_is_kept_in_a_file() {
    let Some(builder) = scripted(RUN) else { return };
    let builder = builder
        .file("words.json", "{\"a\":{\"value\":\"first\",\"expire\":0}, \"b\" : {\"value\":\"\\u0062\"},\n}")
        .file("counts.json", "{\"old\":{\"value\":1,\"expire\":1000}, \"n\":{\"value\":41}}");
    let mut server = builder.start(&format!("user root; http {{ {KEPT} }}")).unwrap();
    assert_eq!(page(&server, "/?code=ngx.shared.words.get('a')").1, "first");
    assert_eq!(page(&server, "/?code=ngx.shared.counts.get('old')").1, "undefined");
    assert_eq!(page(&server, "/?code=ngx.shared.counts.incr('n',1)").1, "42");
    page(&server, "/?code=ngx.shared.words.delete('b')");
    let words = server.prefix().join("words.json");
    wait_until(|| std::fs::read_to_string(&words).is_ok_and(|text| text == "{\"a\":{\"value\":\"first\"}}"));
    wait_until(|| {
        let text = std::fs::read_to_string(server.prefix().join("counts.json")).unwrap_or_default();
        text.starts_with("{\"n\":{\"value\":42,\"expire\":") && !text.contains("old")
    });
    // A change right before the end is not lost.
    page(&server, "/?code=ngx.shared.words.set('c','last').size()");
    server.stop().unwrap();
    assert_eq!(
        std::fs::read_to_string(&words).unwrap(),
        "{\"a\":{\"value\":\"first\"},\"c\":{\"value\":\"last\"}}"
    );
}

fn wait_until(condition: impl FnMut() -> bool) {
    assert!(tw_testkit::wait::until(tw_testkit::wait::TIMEOUT, condition));
}

#[test]
fn damaged_state_is_refused() {
    let Some(builder) = scripted(RUN) else { return };
    let builder = builder.file("words.json", "{\"a\":{\"value\":1}}");
    let output = builder.arg("-t").run(&format!("http {{ {KEPT} }}")).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains("invalid format while loading js_shared_dict_zone \"words\" from state file"),
        "{text}"
    );
    assert!(text.contains("expected string value for key \"a\""), "{text}");
}

#[test]
fn exit_callbacks_use_dictionaries() {
    let script = "
        function run(r) {
            const d = ngx.shared.words;
            const isNew = d.add('a', '1');
            njs.on('exit', () => d.delete('a'));
            r.return(200, `${isNew}`);
        }
        export default {run};";
    let Some(builder) = scripted(script) else { return };
    let conf = "js_import main.js; js_shared_dict_zone zone=words:64k; \
         server { listen 127.0.0.1:{port}; location / { js_content main.run; } }";
    let server = start(builder, conf);
    for _ in 0..3 {
        assert_eq!(page(&server, "/").1, "true");
    }
}
