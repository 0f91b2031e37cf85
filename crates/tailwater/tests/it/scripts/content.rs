//! `js_content`: responses, bodies of requests, redirects, exceptions.

use tw_testkit::{Client, wait};

use super::{scripted, start_scripted};
use crate::support::{get, page, raw, request, start};

#[test]
fn function_answers_with_what_it_returns() {
    let script = "
        function hello(r) { r.return(200, `hello ${r.args.name} from ${r.method} ${r.uri}\\n`); }
        function moved(r) { r.return(302, '/elsewhere'); }
        function missing(r) { r.return(404); }
        function own_page(r) { r.return(404, 'own page'); }
        function fields(r) {
            r.headersOut['X-Host'] = r.headersIn.host;
            r.headersOut['Content-Type'] = 'application/json';
            r.headersOut['Set-Cookie'] = ['a=1', 'b=2'];
            r.headersOut['X-Gone'] = 'x';
            delete r.headersOut['X-Gone'];
            r.return(201, JSON.stringify({agent: r.headersIn['user-agent']}));
        }
        function smuggle(r) {
            r.headersOut['Transfer-Encoding'] = 'chunked';
            r.return(200, 'body');
        }
        async function later(r) { await new Promise(done => setTimeout(done, 10)); r.return(200, 'later'); }
        export default {hello, moved, missing, own_page, fields, smuggle, later};";
    let Some(server) = start_scripted(
        script,
        "location /hello { js_content main.hello; } location /moved { js_content main.moved; } \
         location /missing { js_content main.missing; error_page 404 /404.html; } location /404.html { return 200 page; } \
         location /own { js_content main.own_page; error_page 404 /404.html; } \
         location /fields { js_content main.fields; } location /smuggle { js_content main.smuggle; } \
         location /later { js_content main.later; }",
    ) else {
        return;
    };
    assert_eq!(page(&server, "/hello?name=you"), (200, "hello you from GET /hello\n".to_owned()));
    let moved = get(&server, "/moved");
    assert_eq!(moved.status, 302);
    assert!(moved.field("Location").unwrap().ends_with("/elsewhere"));
    assert_eq!(page(&server, "/missing"), (404, "page".to_owned()));
    assert_eq!(page(&server, "/own"), (404, "own page".to_owned()));
    let fields = request(&server, "GET /fields", &["User-Agent: test"]);
    assert_eq!((fields.status, fields.text()), (201, "{\"agent\":\"test\"}".to_owned()));
    assert_eq!(fields.field("X-Host"), Some("localhost"));
    assert_eq!(fields.field("Content-Type"), Some("application/json"));
    assert_eq!(fields.values("Set-Cookie").collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(fields.field("X-Gone"), None);
    let smuggled = raw(&server, "GET /smuggle HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(!smuggled.contains("Transfer-Encoding") && smuggled.ends_with("\r\n\r\nbody"), "{smuggled}");
    assert_eq!(page(&server, "/later"), (200, "later".to_owned()));
}

#[test]
fn response_is_sent_piece_by_piece() {
    let script = "
        function pieces(r) {
            r.status = 202;
            r.headersOut['X-Pieces'] = '3';
            r.sendHeader();
            r.send('one ');
            r.send('two ');
            r.send('three');
            r.finish();
        }
        function length(r) {
            r.headersOut['Content-Length'] = 3;
            r.sendHeader();
            r.send('abc');
            r.finish();
        }
        function short(r) {
            r.headersOut['Content-Length'] = 9;
            r.sendHeader();
            r.send('abc');
            r.finish();
        }
        function unfinished(r) { r.sendHeader(); r.send('abc'); }
        export default {pieces, length, short, unfinished};";
    let Some(server) = start_scripted(
        script,
        "location /pieces { js_content main.pieces; } location /length { js_content main.length; } \
         location /short { js_content main.short; } location /unfinished { js_content main.unfinished; }",
    ) else {
        return;
    };
    let pieces = get(&server, "/pieces");
    assert_eq!((pieces.status, pieces.text().as_str()), (202, "one two three"));
    assert_eq!(pieces.field("X-Pieces"), Some("3"));
    let length = get(&server, "/length");
    assert_eq!((length.field("Content-Length"), length.text().as_str()), (Some("3"), "abc"));
    for (target, line) in [("/short", "6 bytes shorter"), ("/unfinished", "was not finished by r.finish()")] {
        let cut = raw(&server, format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
        assert!(cut.contains("abc") && !cut.ends_with("\r\n0\r\n\r\n"), "{cut}");
        server.wait_error_log(line).unwrap();
    }
}

#[test]
fn body_of_a_request_is_read_from_memory_and_from_its_file() {
    let script = "
        function text(r) { r.return(200, `${r.requestText.length} ${r.requestText.slice(0, 5)}`); }
        async function read(r) { const text = await r.readRequestText(); r.return(200, `${text.length} ${text.slice(-5)}`); }
        export default {text, read};";
    let Some(server) = start_scripted(
        script,
        "client_body_buffer_size 1k; client_max_body_size 1m; \
         location /text { js_content main.text; } location /read { js_content main.read; }",
    ) else {
        return;
    };
    let post = |target: &str, body: &str| {
        let mut client: Client = server.connect().unwrap();
        let length = body.len();
        client
            .send(format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}"))
            .unwrap();
        let response = client.read_response().unwrap();
        (response.status, response.text())
    };
    assert_eq!(post("/text", "hello world"), (200, "11 hello".to_owned()));
    let large = format!("{}the end", "x".repeat(100_000));
    assert_eq!(post("/read", &large), (200, "100007 e end".to_owned()));
    assert_eq!(post("/text", &large), (200, "100007 xxxxx".to_owned()));
    server.wait_error_log("reading request body from a temporary file").unwrap();
}

#[test]
fn internal_redirect_goes_on_in_another_location() {
    let script = "
        function path(r) { r.internalRedirect('/target?a=b'); }
        function named(r) { r.internalRedirect('@named'); }
        function up(r) { r.internalRedirect('/../etc'); }
        export default {path, named, up};";
    let Some(server) = start_scripted(
        script,
        "location /path { js_content main.path; } location /named { js_content main.named; } \
         location /up { js_content main.up; } \
         location /target { internal; return 200 \"$uri $args\"; } location @named { return 200 named; }",
    ) else {
        return;
    };
    assert_eq!(page(&server, "/path"), (200, "/target a=b".to_owned()));
    assert_eq!(page(&server, "/named"), (200, "named".to_owned()));
    assert_eq!(get(&server, "/up").status, 500);
    assert_eq!(get(&server, "/target").status, 404);
}

#[test]
fn exception_is_logged_with_its_place_and_answered_with_500() {
    let script = "function fails(r) {\n    throw new TypeError('on purpose');\n}\n\
         function nothing(r) {}\n\
         async function rejects(r) { await null; throw new Error('in a promise'); }\n\
         export default {fails, nothing, rejects};";
    let Some(server) = start_scripted(
        script,
        "location /fails { js_content main.fails; } location /nothing { js_content main.nothing; } \
         location /rejects { js_content main.rejects; } location /unknown { js_content main.unknown; }",
    ) else {
        return;
    };
    for target in ["/fails", "/nothing", "/rejects", "/unknown"] {
        assert_eq!(get(&server, target).status, 500, "{target}");
    }
    let line = server.wait_error_log("on purpose").unwrap();
    assert!(
        line.contains("js exception: ") && line.contains("fails") && line.contains("main.js:2"),
        "{line}"
    );
    server.wait_error_log("js: \"main.nothing\" has sent no response").unwrap();
    let line = server.wait_error_log("in a promise").unwrap();
    assert!(line.contains("js unhandled rejection: Error: in a promise"), "{line}");
}

#[test]
fn response_stands_whatever_happens_behind_it() {
    let script = "
        function rejects(r) { Promise.reject(new Error('nobody handles it')); r.return(200, 'one'); }
        function throws(r) { r.return(200, 'two'); throw new Error('behind the response'); }
        function handled(r) {
            const late = Promise.reject(new Error('handled late'));
            setTimeout(() => late.catch(error => r.return(200, error.message)), 1);
        }
        function number(r) { r.return(Number(r.args.code)); }
        export default {rejects, throws, handled, number};";
    let Some(server) = start_scripted(
        script,
        "location /rejects { js_content main.rejects; } location /throws { js_content main.throws; } \
         location /handled { js_content main.handled; } location /number { js_content main.number; }",
    ) else {
        return;
    };
    assert_eq!(page(&server, "/rejects"), (200, "one".to_owned()));
    server.wait_error_log("js unhandled rejection: Error: nobody handles it").unwrap();
    assert_eq!(page(&server, "/throws"), (200, "two".to_owned()));
    server.wait_error_log("js exception: Error: behind the response").unwrap();
    assert_eq!(page(&server, "/handled"), (200, "handled late".to_owned()));
    for (code, status) in [("204", 204), ("no", 500), ("1e100", 500)] {
        assert_eq!(get(&server, &format!("/number?code={code}")).status, status, "{code}");
    }
    server.wait_error_log("TypeError: invalid number").unwrap();
    server.wait_error_log("RangeError: number is out of range").unwrap();
}

#[test]
fn client_does_not_wait_for_work_behind_its_response() {
    let script = "
        function begin(r) {
            r.return(200, 'begun');
            const wait = () => ngx.shared.state.get('go') ? r.error(`at the end: ${r.variables.arg_n}`) : setTimeout(wait, 1);
            wait();
        }
        function go(r) { ngx.shared.state.set('go', 'yes'); r.return(204); }
        export default {begin, go};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder,
        "js_import main.js; js_shared_dict_zone zone=state:64k; \
         server { listen 127.0.0.1:{port}; error_log logs/error.log info; access_log logs/access.log; \
           location /begin { js_content main.begin; } location /go { js_content main.go; } }",
    );
    let mut waiting = server.connect().unwrap();
    waiting.send("GET /begin?n=7 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(waiting.read_response().unwrap().text(), "begun");
    assert_eq!(get(&server, "/go").status, 204);
    server.wait_error_log("at the end: 7").unwrap();
    // The connection is free again.
    waiting.send("GET /go HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(waiting.read_response().unwrap().status, 204);
}

#[test]
fn client_that_reads_slowly_holds_no_process() {
    let script = "
        const part = 'x'.repeat(5e6);
        const states = ngx.shared.states;
        function send(r) { r.sendHeader(); r.send(part); r.send(part); r.send(part); }
        function asks(r) { send(r); r.send(r.variables.arg_n); r.finish(); }
        function later(r) {
            send(r);
            setTimeout(() => {
                states.set('later', 'asks');
                try {
                    r.send(r.variables.arg_n);
                } catch (e) {
                    states.set('later', e.message);
                }
                r.finish();
            }, 1);
        }
        function state(r) { r.return(200, `${r.variables.arg_n}: ${states.get('later')}`); }
        export default {asks, later, state};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder,
        "js_import main.js; js_shared_dict_zone zone=states:64k; \
         server { listen 127.0.0.1:{port}; error_log logs/error.log info; \
           location /asks { js_content main.asks; } location /later { js_content main.later; } \
           location /state { js_content main.state; } }",
    );
    let begin = |path: &str| {
        let mut client = server.connect().unwrap();
        client.send(format!("GET {path}?n=end HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")).unwrap();
        client
    };
    let length_and_end = |mut client: Client| {
        let body = client.read_response().unwrap().body;
        (body.len(), body.last().copied())
    };
    // The clients of these responses do not read; another request gets its response meanwhile.
    let asks = begin("/asks");
    assert_eq!(get(&server, "/state?n=1").text(), "1: undefined");
    let later = begin("/later");
    let refused = "2: the client does not take the response";
    assert!(wait::until(wait::TIMEOUT, || get(&server, "/state?n=2").text() == refused));
    assert_eq!(length_and_end(asks), (15_000_003, Some(b'd')));
    assert_eq!(length_and_end(later), (15_000_000, Some(b'x')));
}

#[test]
fn exit_hook_runs_at_the_end_of_the_request() {
    let script = "
        function content(r) {
            njs.on('exit', () => {
                ngx.log(ngx.WARN, `exit: ${r.variables.bytes_sent > 0} ${r.variables.status}`);
                Promise.resolve().then(() => ngx.log(ngx.WARN, 'exit job'));
            });
            r.return(201, 'body');
        }
        function fails(r) { njs.on('exit', () => { throw new Error('exit fails'); }); r.return(204); }
        export default {content, fails};";
    let Some(server) = start_scripted(
        script,
        "location /content { js_content main.content; } location /fails { js_content main.fails; }",
    ) else {
        return;
    };
    for _ in 0..2 {
        assert_eq!(page(&server, "/content"), (201, "body".to_owned()));
    }
    let line = server.wait_error_log("exit: ").unwrap();
    assert!(
        line.contains("[warn]") && line.contains("exit: true 201") && line.contains("GET /content"),
        "{line}"
    );
    server.wait_error_log("exit job").unwrap();
    assert_eq!(get(&server, "/fails").status, 204);
    server.wait_error_log("js exception: Error: exit fails").unwrap();
}

#[test]
fn lines_outside_of_calls_reach_the_error_log_of_main() {
    let script = "
        console.error('while it is loaded');
        function content(r) { njs.on('exit', () => console.error('at the end')); r.return(204); }
        export default {content};";
    let Some(server) = start_scripted(script, "location / { js_content main.content; }") else { return };
    assert_eq!(get(&server, "/").status, 204);
    for text in ["js: while it is loaded", "js: at the end"] {
        assert!(server.wait_error_log(text).unwrap().contains("[error]"), "{text}");
    }
}

#[test]
fn script_writes_to_the_error_log() {
    let script = "
        function log(r) { r.log('an info'); r.warn('a warning'); r.error('an error'); ngx.log(ngx.WARN, 'of ngx'); r.return(204); }
        export default {log};";
    let Some(server) = start_scripted(script, "location /log { js_content main.log; }") else { return };
    assert_eq!(get(&server, "/log").status, 204);
    for (level, text) in
        [("info", "an info"), ("warn", "a warning"), ("error", "an error"), ("warn", "of ngx")]
    {
        let line = server.wait_error_log(text).unwrap();
        assert!(line.contains(&format!("[{level}]")) && line.contains("request: \"GET /log"), "{line}");
    }
}
