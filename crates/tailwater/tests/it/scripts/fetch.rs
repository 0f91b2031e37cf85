//! `ngx.fetch()`.

use super::scripted;
use crate::support::{page, start};

#[test]
fn script_asks_other_servers() {
    let script = "
        async function get(r) {
            const reply = await ngx.fetch(`http://127.0.0.1:${r.args.port}/ask?x=1`, {headers: {'X-From': 'script'}});
            r.return(200, `${reply.status} ${reply.headers.get('X-Reply')} ${await reply.text()}`);
        }
        async function post(r) {
            const reply = await ngx.fetch(`http://127.0.0.1:${r.args.port}/post`, {method: 'POST', body: 'the body'});
            r.return(200, await reply.text());
        }
        async function fails(r) {
            try { await ngx.fetch(r.args.url); r.return(200, 'no error'); } catch (e) { r.return(200, e.message); }
        }
        async function large(r) {
            try { const reply = await ngx.fetch(`http://127.0.0.1:${r.args.port}/large`); r.return(200, 'read'); }
            catch (e) { r.return(200, e.message); }
        }
        export default {get, post, fails, large};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder.file("html/large", "x".repeat(100_000)),
        "js_import main.js; js_fetch_max_response_buffer_size 64k; \
         server { listen 127.0.0.1:{port}; error_log logs/error.log info; \
           location /get { js_content main.get; } location /post { js_content main.post; } \
           location /fails { js_content main.fails; } location /size { js_content main.large; } } \
         server { listen 127.0.0.1:{port1}; root html; \
           location /ask { add_header X-Reply $http_x_from; return 201 \"$request_method $args $http_host\"; } \
           location /post { return 200 \"$request_method $content_length $http_content_type\"; } }",
    );
    let port = server.addr_of(1).port();
    let (_, text) = page(&server, &format!("/get?port={port}"));
    assert_eq!(text, format!("201 script GET x=1 127.0.0.1:{port}"));
    let (_, text) = page(&server, &format!("/post?port={port}"));
    assert!(text.starts_with("POST 8 "), "{text}");
    for url in ["ftp://a/", "http://127.0.0.1:1/"] {
        let (status, text) = page(&server, &format!("/fails?url={url}"));
        assert!(status == 200 && text != "no error", "{url}: {status} {text}");
    }
    assert_ne!(page(&server, &format!("/size?port={port}")).1, "read");
}
