//! `r.subrequest()`.

use super::scripted;
use crate::support::{page, start};

#[test]
fn subrequests_run_side_by_side_and_give_their_responses() {
    let script = "
        async function both(r) {
            const replies = await Promise.all([r.subrequest('/a', 'x=1'), r.subrequest('/b?y=2')]);
            r.return(200, replies.map(reply => `${reply.status}:${reply.responseText}`).join(' '));
        }
        async function post(r) {
            const reply = await r.subrequest('/echo', {method: 'POST', body: 'the body', args: 'q=3'});
            r.return(200, `${reply.responseText} ${reply.headersOut['X-Method']} ${reply.variables.args}`);
        }
        function callback(r) { r.subrequest('/a', reply => r.return(reply.status, reply.responseText)); }
        async function missing(r) { const reply = await r.subrequest('/none'); r.return(200, `${reply.status}`); }
        async function large(r) {
            try { await r.subrequest('/large'); r.return(200, 'read'); } catch (e) { r.return(200, e.message); }
        }
        async function itself(r) {
            const reply = await r.subrequest('/itself');
            r.return(reply.status, reply.responseText);
        }
        async function purge(r) {
            const reply = await r.subrequest('/echo', {method: 'PURGE'});
            r.return(200, `${reply.responseText} ${reply.headersOut['X-Method']}`);
        }
        function refused(r) {
            const text = {toString() { return {}; }};
            const wrong = [['../up'], ['/a/../../b'], ['/a%00b'], [text], ['/a', {args: text}], ['/a', '', 'no function']];
            r.return(200, wrong.map(list => { try { r.subrequest(...list); return 'begun'; } catch (e) { return e.message; } }).join());
        }
        function detached(r) { r.subrequest('/detached', {detached: true}); r.return(200, 'at once'); }
        export default {both, post, callback, missing, large, itself, purge, refused, detached};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder.file("html/large", "x".repeat(100_000)),
        "js_import main.js; server { listen 127.0.0.1:{port}; root html; error_log logs/error.log info; \
           location /both { js_content main.both; } location /post { js_content main.post; } \
           location /callback { js_content main.callback; } location /missing { js_content main.missing; } \
           location /toolarge { js_content main.large; } location /itself { js_content main.itself; } \
           location /detach { js_content main.detached; } location /purge { js_content main.purge; } \
           location /refused { js_content main.refused; } \
           location /a { return 200 \"a $args\"; } location /b { return 201 \"b $args\"; } \
           location /echo { proxy_pass http://127.0.0.1:{port1}; } \
           location /detached { log_subrequest on; access_log logs/detached.log; return 204; } } \
         server { listen 127.0.0.1:{port1}; \
           location / { add_header X-Method $request_method; client_body_in_single_buffer on; \
             proxy_pass http://127.0.0.1:{port2}; } } \
         server { listen 127.0.0.1:{port2}; location / { js_import main.js; return 200 \"$request_method $args $content_length\"; } }",
    );
    assert_eq!(page(&server, "/both").1, "200:a x=1 201:b y=2");
    assert_eq!(page(&server, "/post").1, "POST q=3 8 POST q=3");
    assert_eq!(page(&server, "/callback"), (200, "a ".to_owned()));
    assert_eq!(page(&server, "/missing").1, "404");
    assert_eq!(page(&server, "/toolarge").1, "too big subrequest response: more than 4096 bytes");
    assert_eq!(page(&server, "/purge").1, "PURGE   PURGE");
    assert_eq!(
        page(&server, "/refused").1,
        "unsafe uri,unsafe uri,unsafe uri,failed to convert uri arg,failed to convert options.args,callback is not a function"
    );
    assert_eq!(page(&server, "/detach").1, "at once");
    assert_eq!(server.log("logs/detached.log", 1).unwrap().len(), 1);
}

#[test]
fn subrequest_that_asks_for_itself_ends_with_an_error() {
    let script = "
        async function itself(r) {
            const reply = await r.subrequest('/itself');
            r.return(reply.status, reply.responseText);
        }
        export default {itself};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder,
        "js_import main.js; server { listen 127.0.0.1:{port}; error_log logs/error.log info; \
           location /itself { js_content main.itself; } location /fine { return 200 fine; } }",
    );
    assert_eq!(page(&server, "/itself").0, 500);
    server.wait_error_log("subrequest can only be created for the primary request").unwrap();
    assert_eq!(page(&server, "/fine").1, "fine");
}
