//! `js_header_filter`, `js_body_filter` and `js_access`.

use super::{scripted, start_scripted};
use crate::support::{get, page, raw, request, start};

#[test]
fn functions_change_head_and_body_of_a_response() {
    let script = "
        function head(r) {
            r.headersOut['X-Status'] = r.status;
            r.headersOut['X-Type'] = r.headersOut['Content-Type'];
            delete r.headersOut['Content-Length'];
        }
        function upper(r, data, flags) { r.sendBuffer(data.toUpperCase(), flags); }
        function first(r, data, flags) { r.sendBuffer('<' + data, flags); r.done(); }
        function swallow(r, data, flags) { if (flags.last) { r.sendBuffer('end', flags); } }
        function bytes(r, data, flags) { r.sendBuffer(Buffer.isBuffer(data) ? data.toString('hex') : 'text', flags); }
        function breaks(r, data, flags) { r.sendBuffer('part', flags); throw new Error('body filter fails'); }
        function fails(r) { throw new Error('filter fails'); }
        export default {head, upper, first, swallow, bytes, breaks, fails};";
    let Some(builder) = scripted(script) else { return };
    let large = "abc ".repeat(50_000);
    let server = start(
        builder.file("html/page.txt", "some text").file("html/large.txt", &large),
        "js_import main.js; server { listen 127.0.0.1:{port}; root html; error_log logs/error.log info; \
           location / { js_header_filter main.head; js_body_filter main.upper; add_header X-After $sent_http_x_status; } \
           location /first/ { alias html/; js_body_filter main.first; } \
           location /swallow/ { alias html/; js_body_filter main.swallow; } \
           location /bytes/ { alias html/; js_body_filter main.bytes buffer_type=buffer; } \
           location /breaks/ { alias html/; js_body_filter main.breaks; } \
           location /head/ { alias html/; js_header_filter main.head; } \
           location /fails/ { alias html/; js_header_filter main.fails; } \
           location /passed { js_body_filter main.upper buffer_type=string; proxy_pass http://127.0.0.1:{port1}; } } \
         server { listen 127.0.0.1:{port1}; location / { return 200 'from upstream'; } }",
    );
    let response = get(&server, "/page.txt");
    assert_eq!(response.text(), "SOME TEXT");
    assert_eq!(response.field("X-Status"), Some("200"));
    assert_eq!(response.field("X-Type"), Some("text/plain"));
    assert_eq!(response.field("Content-Length"), None);
    assert_eq!(get(&server, "/large.txt").text(), large.to_uppercase());
    let first = get(&server, "/first/large.txt").text();
    assert_eq!((first.len(), &first[..4]), (large.len() + 1, "<abc"));
    assert_eq!(page(&server, "/swallow/large.txt").1, "end");
    assert_eq!(page(&server, "/bytes/page.txt").1, "736f6d652074657874");
    let head = get(&server, "/head/page.txt");
    assert_eq!((head.text().as_str(), head.field("X-Status")), ("some text", Some("200")));
    assert_eq!(page(&server, "/passed").1, "FROM UPSTREAM");
    assert_eq!(get(&server, "/fails/page.txt").status, 500);
    server.wait_error_log("filter fails").unwrap();
    let broken = raw(&server, "GET /breaks/page.txt HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(!broken.ends_with("0\r\n\r\n"), "{broken}");
    server.wait_error_log("body filter fails").unwrap();
    let range = request(&server, "GET /first/page.txt", &["Range: bytes=0-1"]);
    assert_eq!(range.status, 200, "a filtered body has no parts");
}

#[test]
fn function_decides_about_access() {
    let script = "
        async function access(r) {
            await null;
            switch (r.args.do) {
            case 'forbid': r.return(403); break;
            case 'text': r.return(200, 'by the function'); break;
            case 'decline': r.decline(); break;
            case 'throw': throw new Error('access fails');
            case 'redirect': r.internalRedirect('/other'); break;
            }
        }
        export default {access};";
    let locations = "location /open { js_access main.access; return 200 open; } \
         location /page { js_access main.access; alias html/page; } \
         location /any { satisfy any; deny all; js_access main.access; alias html/page; } \
         location /other { internal; return 200 other; }";
    let Some(builder) = scripted(script) else { return };
    let conf = format!(
        "js_import main.js; server {{ listen 127.0.0.1:{{port}}; error_log logs/error.log info; {locations} }}"
    );
    let server = start(builder.file("html/page", "page"), &conf);
    for (target, status, body) in [
        ("/page", 200, "page"),
        ("/page?do=text", 200, "by the function"),
        ("/page?do=decline", 200, "page"),
        ("/page?do=redirect", 200, "other"),
        ("/any", 200, "page"),
    ] {
        assert_eq!(page(&server, target), (status, body.to_owned()), "{target}");
    }
    for (target, status) in [("/page?do=forbid", 403), ("/page?do=throw", 500), ("/any?do=decline", 403)] {
        assert_eq!(get(&server, target).status, status, "{target}");
    }
    server.wait_error_log("access fails").unwrap();
}

#[test]
fn body_of_an_upstream_server_ends_with_an_empty_piece() {
    let script = "
        function show(r, data, flags) { r.sendBuffer(`<${data} ${flags.last}>`, flags); }
        function waits(r, data, flags) { setTimeout(() => {}, 1); r.sendBuffer(data, flags); }
        function late(r) { setTimeout(() => {}, 1); }
        export default {show, waits, late};";
    let Some(builder) = scripted(script) else { return };
    let server = start(
        builder,
        "js_import main.js; server { listen 127.0.0.1:{port}; error_log logs/error.log info; \
           location /own { js_body_filter main.show; return 200 body; } \
           location /passed { js_body_filter main.show; proxy_pass http://127.0.0.1:{port1}; } \
           location /waits { js_body_filter main.waits; return 200 body; } \
           location /late { js_header_filter main.late; return 200 body; } } \
         server { listen 127.0.0.1:{port1}; location / { return 200 body; } }",
    );
    assert_eq!(page(&server, "/own").1, "<body true>");
    assert_eq!(page(&server, "/passed").1, "<body false>< true>");
    raw(&server, "GET /waits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    server.wait_error_log("async operation inside \"main.waits\" body filter").unwrap();
    assert_eq!(get(&server, "/late").status, 500);
    server.wait_error_log("async operation inside \"main.late\" header filter").unwrap();
}

#[test]
fn body_that_cannot_be_read_ends_the_request_with_its_status() {
    let script = "
        async function access(r) { await r.readRequestText(); }
        export default {access};";
    let locations = "location / { client_max_body_size 4; js_access main.access; return 200 page; }";
    let Some(server) = start_scripted(script, &locations.replace("return 200 page;", "alias html/page;"))
    else {
        return;
    };
    let refused = raw(
        &server,
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n8\r\ntoolarge\r\n0\r\n\r\n",
    );
    assert!(refused.starts_with("HTTP/1.1 413 "), "{refused}");
}

#[test]
fn filters_apply_to_subrequests_and_error_pages() {
    let script = "
        function mark(r) { r.headersOut['X-Mark'] = `${r.headersOut['X-Mark'] || ''}m`; }
        async function content(r) {
            const part = await r.subrequest('/part');
            r.return(200, `${part.status} ${part.headersOut['X-Mark']} ${part.responseText}`);
        }
        export default {mark, content};";
    let locations = "location /content { js_content main.content; } \
         location /part { js_header_filter main.mark; return 200 part; } \
         location /missing { js_header_filter main.mark; return 404; }";
    let Some(server) = start_scripted(script, locations) else { return };
    assert_eq!(page(&server, "/content").1, "200 m part");
    let missing = get(&server, "/missing");
    assert_eq!((missing.status, missing.field("X-Mark")), (404, Some("m")));
}
