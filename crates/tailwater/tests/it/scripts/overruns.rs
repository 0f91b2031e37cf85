//! Scripts that use too much: loops that never end, native functions that take long, memory. No loop waits for them.

use std::thread;
use std::time::Instant;

use tw_testkit::wait;

use super::start_scripted;
use crate::support::{get, page, raw};

const SCRIPT: &str = "
    function endless(r) { for (;;); }
    function native(r) { for (;;) { 'x'.repeat(1e6); } }
    function json(r) { const text = '[' + '1,'.repeat(2e5) + '1]'; for (;;) { JSON.parse(text); } }
    function memory(r) { const all = []; for (;;) { all.push('y'.repeat(1e5) + all.length); } }
    function deep(r) { return deep(r); }
    function regex(r) { /^(a+)+$/.test('a'.repeat(40) + 'b'); r.return(200, 'matched'); }
    function endless_variable(r) { for (;;); }
    function fine(r) { r.return(200, 'fine'); }
    export default {endless, native, json, memory, deep, regex, endless_variable, fine};";

const LOCATIONS: &str = "js_timeout 100ms; js_set $never main.endless_variable; \
     location /endless { js_content main.endless; } location /native { js_content main.native; } \
     location /json { js_content main.json; } location /memory { js_content main.memory; } \
     location /deep { js_content main.deep; } location /regex { js_content main.regex; } \
     location /variable { return 200 <$never>; } \
     location /fine { js_content main.fine; } location /plain { return 200 plain; }";

#[test]
fn function_that_uses_too_much_ends_with_500() {
    let Some(server) = start_scripted(SCRIPT, LOCATIONS) else { return };
    for target in ["/endless", "/native", "/json", "/memory", "/deep", "/regex"] {
        assert_eq!(get(&server, target).status, 500, "{target}");
        assert_eq!(page(&server, "/fine"), (200, "fine".to_owned()), "after {target}");
    }
    let line = server.wait_error_log("main.native").unwrap();
    assert!(line.contains("js_timeout") || line.contains("js exception"), "{line}");
    assert_eq!(page(&server, "/variable"), (200, "<>".to_owned()));
}

#[test]
fn loops_serve_others_while_scripts_run_wild() {
    let Some(server) = start_scripted(SCRIPT, LOCATIONS) else { return };
    assert_eq!(page(&server, "/fine").1, "fine");
    thread::scope(|scope| {
        let wild: Vec<_> = (0..10)
            .map(|n| {
                let target = ["/native", "/json", "/endless", "/memory"][n % 4];
                let server = &server;
                scope.spawn(move || raw(server, format!("GET {target} HTTP/1.0\r\n\r\n")))
            })
            .collect();
        let begun = Instant::now();
        let mut served = 0;
        while wild.iter().any(|request| !request.is_finished()) && begun.elapsed() < wait::TIMEOUT {
            assert_eq!(page(&server, "/plain").1, "plain");
            served += 1;
        }
        assert!(served > 10, "{served} requests");
        for request in wild {
            assert!(request.join().unwrap().starts_with("HTTP/1.1 500 "));
        }
    });
    assert_eq!(page(&server, "/fine").1, "fine");
}
