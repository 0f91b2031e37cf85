//! `js_periodic`: functions that are called in intervals.

use std::time::{Duration, Instant};

use tw_testkit::{Client, Server, Signal, wait};

use super::scripted;
use crate::support::page;

const SCRIPT: &str = "
    function tick() { ngx.shared.counts.incr('tick', 1, 0); }
    function worker() { ngx.shared.counts.set(`worker ${ngx.worker_id}`, 1); }
    function facts(s) { ngx.shared.texts.set('facts', `${s.variables.own} ${s.variables.computed} ${typeof s.on}`); }
    async function slow() { ngx.shared.counts.incr('slow', 1, 0); await new Promise(done => setTimeout(done, 100000)); }
    async function fetch() { const reply = await ngx.fetch('http://127.0.0.1:' + ngx.shared.texts.get('port') + '/plain');
        ngx.shared.texts.set('fetched', await reply.text()); }
    function throws() { throw new Error('periodic mistake'); }
    function computed() { return 'script'; }
    function text() { return Math.min(ngx.shared.counts.get('tick') ?? 0, 3) + ' ' + ngx.shared.texts.get('facts'); }
    function counts(r) { r.return(200, ngx.shared.counts.items().map(([key, value]) => `${key}=${value}`).sort().join(' ')); }
    function texts(r) { r.return(200, ngx.shared.texts.items().map(([key, value]) => `${key}=${value}`).sort().join(' ')); }
    function port(r) { ngx.shared.texts.set('port', r.args.port); r.return(204); }
    export default {tick, worker, facts, slow, fetch, throws, computed, text, counts, texts, port};";

const HTTP: &str = "js_import main.js; js_shared_dict_zone zone=counts:1m type=number; js_shared_dict_zone zone=texts:1m; \
     js_set $computed main.computed; js_var $own variable;";

fn start(periodic: &str) -> Option<Server> {
    let conf = conf(periodic);
    Some(scripted(SCRIPT)?.start(&conf).unwrap())
}

fn conf(periodic: &str) -> String {
    format!(
        "worker_processes 3; http {{ {HTTP} server {{ listen 127.0.0.1:{{port}}; error_log logs/error.log info; \
           location / {{ {periodic} js_content main.counts; }} location /texts {{ js_content main.texts; }} \
           location /port {{ js_content main.port; }} location /plain {{ return 200 plain; }} }} }}"
    )
}

/// Waits until a page has the text.
fn wait_for(server: &Server, target: &str, text: &str) {
    let has = || page(server, target).1.contains(text);
    assert!(wait::until(wait::TIMEOUT, has), "no {text} in {}", page(server, target).1);
}

fn count(server: &Server, key: &str) -> u64 {
    let text = page(server, "/").1;
    let value = text.split(' ').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    value.map_or(0, |value| value.parse().unwrap())
}

#[test]
fn functions_are_called_on_their_workers() {
    let periodic = "js_periodic main.tick interval=20ms jitter=5ms; \
         js_periodic main.worker interval=50ms worker_affinity=101; \
         js_periodic main.facts interval=20ms; js_periodic main.throws interval=50ms; js_periodic main.fetch interval=50ms;";
    let Some(server) = start(periodic) else { return };
    assert!(wait::until(wait::TIMEOUT, || count(&server, "tick") >= 3));
    let port = server.addr().port();
    assert_eq!(page(&server, &format!("/port?port={port}")).0, 204);
    wait_for(&server, "/texts", "facts=variable script undefined");
    wait_for(&server, "/texts", "fetched=plain");
    server.wait_error_log("periodic mistake").unwrap();
    assert!(wait::until(wait::TIMEOUT, || page(&server, "/").1.contains("worker 0=1 worker 2=1")));
    assert!(!page(&server, "/").1.contains("worker 1"));
}

#[test]
fn call_that_is_not_over_in_time_is_ended() {
    let Some(server) = start("js_periodic main.slow interval=50ms;") else { return };
    assert!(wait::until(wait::TIMEOUT, || count(&server, "slow") >= 3));
    let line = server.wait_error_log("is already running, killing previous instance").unwrap();
    assert!(line.contains("main.slow"), "{line}");
}

#[test]
fn calls_end_with_the_configuration_that_has_them() {
    let Some(mut server) = start("js_periodic main.tick interval=10ms;") else { return };
    assert!(wait::until(wait::TIMEOUT, || count(&server, "tick") >= 2));
    server.write_conf(&conf("")).unwrap();
    server.signal(Signal::HUP).unwrap();
    server.wait_error_log("the configuration is taken over").unwrap();
    let mut last = (count(&server, "tick"), Instant::now());
    let settled = wait::until(wait::TIMEOUT, || {
        let now = count(&server, "tick");
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() >= Duration::from_millis(200)
    });
    assert!(settled, "the function is still called");
}

#[test]
fn functions_of_stream_are_called_too() {
    let Some(builder) = scripted(SCRIPT) else { return };
    let server = builder
        .start(&format!(
            "worker_processes 2; stream {{ {HTTP} js_set $text main.text; error_log logs/error.log info; \
               server {{ listen 127.0.0.1:{{port}}; \
                 js_periodic main.tick interval=20ms; js_periodic main.facts interval=20ms; return $text; }} }}"
        ))
        .unwrap();
    let text = || {
        let mut client = Client::connect(server.addr()).unwrap();
        String::from_utf8(client.read_until_close().unwrap()).unwrap()
    };
    assert!(wait::until(wait::TIMEOUT, || text() == "3 variable script undefined"), "{}", text());
}
