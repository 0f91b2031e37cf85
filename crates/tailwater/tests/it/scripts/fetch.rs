//! `ngx.fetch()`.

use tw_testkit::origin::origin;
use tw_testkit::tls::Authority;

use super::scripted;
use crate::support::{page, start};

#[test]
fn script_asks_other_servers() {
    let script = "
        async function get(r) {
            const reply = await ngx.fetch(`http://127.0.0.1:${r.args.port}/ask?x=1`, {headers: {'X-From': 'script'}});
            r.return(200, `${reply.status} ${reply.statusText} ${reply.headers.get('X-Reply')} ${await reply.text()}`);
        }
        async function post(r) {
            const reply = await ngx.fetch(`http://127.0.0.1:${r.args.port}/post`, {method: 'POST', body: 'the body'});
            r.return(200, await reply.text());
        }
        async function fails(r) {
            try { await ngx.fetch(r.args.url); r.return(200, 'no error'); } catch (e) { r.return(200, `${e.message} ${e.stack}`); }
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
           location /ask { add_header X-Reply $http_x_from; return 201 \"$request_method $args $http_host $http_user_agent\"; } \
           location /post { return 200 \"$request_method $content_length $http_content_type\"; } }",
    );
    let port = server.addr_of(1).port();
    let (_, text) = page(&server, &format!("/get?port={port}"));
    assert_eq!(text, format!("201 Created script GET x=1 127.0.0.1:{port} nginx-js"));
    let (_, text) = page(&server, &format!("/post?port={port}"));
    assert!(text.starts_with("POST 8 "), "{text}");
    for (url, expected) in [("ftp://a/", "unsupported URL schema"), ("http://127.0.0.1:1/", "connect failed")]
    {
        let (status, text) = page(&server, &format!("/fails?url={url}"));
        assert!(status == 200 && text.starts_with(expected), "{url}: {status} {text}");
        // The place is that of the script.
        assert!(text.contains("at fails (") && text.contains("main.js:11"), "{text}");
    }
    assert_ne!(page(&server, &format!("/size?port={port}")).1, "read");
}

const REPEATED: &str = "
    async function three(r) {
        const texts = [];
        for (let i = 0; i < 3; i++) {
            const reply = await ngx.fetch(`http://127.0.0.1:${r.args.port}/${r.args.path || ''}`, {method: r.args.method || 'GET'});
            texts.push(await reply.text());
            if (r.args.wait) { await new Promise(done => setTimeout(done, Number(r.args.wait))); }
        }
        r.return(200, texts.join());
    }
    export default {three};";

#[test]
fn connections_are_kept_within_their_limits() {
    let Some(builder) = scripted(REPEATED) else { return };
    let server = start(
        builder,
        "js_import main.js; \
         server { listen 127.0.0.1:{port}; error_log logs/error.log info; \
           location /never { js_content main.three; } \
           location /kept { js_fetch_keepalive 2; js_content main.three; } \
           location /twice { js_fetch_keepalive 2; js_fetch_keepalive_requests 2; js_content main.three; } \
           location /short { js_fetch_keepalive 2; js_fetch_keepalive_timeout 1ms; js_content main.three; } } \
         server { listen 127.0.0.1:{port1}; keepalive_requests 5; location / { return 200 $connection_requests; } }",
    );
    let port = server.addr_of(1).port();
    let texts = |location: &str| page(&server, &format!("/{location}?port={port}")).1;
    assert_eq!(texts("never"), "1,1,1");
    assert_eq!(texts("kept"), "1,2,3");
    // The connection outlives the request. Its server closes it after five requests.
    assert_eq!(texts("kept"), "4,5,1");
    assert_eq!(texts("twice"), "1,2,1");
    assert_eq!(page(&server, &format!("/short?port={port}&wait=20")).1, "1,1,1");
}

#[test]
fn kept_connection_that_its_server_closes_is_replaced() {
    // The first request of each connection is answered, the second one gets the end.
    let origin = origin(|mut connection| {
        connection.head();
        connection.send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes");
        connection.head();
    });
    let Some(builder) = scripted(REPEATED) else { return };
    let server = start(
        builder,
        "js_import main.js; server { listen 127.0.0.1:{port}; error_log logs/error.log info; \
           location / { js_fetch_keepalive 2; js_content main.three; } }",
    );
    assert_eq!(page(&server, &format!("/?port={}", origin.port())).1, "yes,yes,yes");
    // A request that may have had an effect is not sent twice.
    assert_eq!(page(&server, &format!("/?port={}&method=POST", origin.port())).0, 500);
    server.wait_error_log("prematurely closed connection").unwrap();
}

#[test]
fn requests_go_through_a_forward_proxy() {
    let script = "
        async function get(r) {
            try {
                const reply = await ngx.fetch(r.args.url);
                r.return(200, `${reply.status} ${await reply.text()}`);
            } catch (e) { r.return(200, e.message); }
        }
        export default {get};";
    let authority = Authority::new();
    let site = authority.certify(&["localhost"]);
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder
            .file("conf/site.pem", format!("{}{}", site.pem, site.key))
            .file("conf/authority.pem", authority.pem()),
        "js_import main.js; js_fetch_trusted_certificate authority.pem; resolver 127.0.0.1:1; \
         server { listen 127.0.0.1:{port}; error_log logs/error.log info; \
           location /through { js_fetch_proxy http://user%40a:pass@127.0.0.1:{port1}; js_content main.get; } \
           location /chosen { js_fetch_proxy $arg_proxy; js_content main.get; } } \
         server { listen 127.0.0.1:{port1}; \
           location / { if ($request_method = CONNECT) { tunnel_pass 127.0.0.1:{port2}; break; } \
             return 200 \"$request | $http_proxy_authorization\"; } } \
         server { listen 127.0.0.1:{port2} ssl; ssl_certificate site.pem; ssl_certificate_key site.pem; \
           location / { return 200 \"secured <$http_proxy_authorization>\"; } }",
    );
    let (proxy, site) = (server.addr_of(1).port(), server.addr_of(2).port());
    assert_eq!(
        page(&server, "/through?url=http://elsewhere.example/path").1,
        "200 GET http://elsewhere.example/path HTTP/1.1 | Basic dXNlckBhOnBhc3M="
    );
    assert_eq!(page(&server, &format!("/through?url=https://localhost:{site}/")).1, "200 secured <>");
    assert_eq!(
        page(&server, &format!("/chosen?proxy=http://127.0.0.1:{proxy}&url=http://elsewhere.example/")).1,
        "200 GET http://elsewhere.example/ HTTP/1.1 | "
    );
    let (_, text) = page(&server, "/chosen?proxy=http:/&url=http://elsewhere.example/");
    assert!(text.starts_with("failed to evaluate proxy URL"), "{text}");
}
