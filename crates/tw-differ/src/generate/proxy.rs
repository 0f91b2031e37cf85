//! `proxy_pass` in its shapes, and odd responses of the origin server.

use tw_testkit::random::Random;

use crate::node::{Node, line};

pub(super) fn settings(random: &mut Random, nodes: &mut Vec<Node>) {
    if random.happens(50) {
        nodes.push(setting(random));
    }
}

fn setting(random: &mut Random) -> Node {
    line(random.one_of(&[
        "proxy_http_version 1.1",
        "proxy_http_version 1.0",
        "proxy_set_header Host $host",
        "proxy_set_header X-A ''",
        "proxy_set_header X-N $request_uri",
        "proxy_set_header Connection ''",
        "proxy_pass_request_headers off",
        "proxy_pass_request_body off",
        "proxy_set_body \"b:$request_body\"",
        "proxy_method POST",
        "proxy_method $arg_b",
        "proxy_intercept_errors on",
        "proxy_hide_header X-O",
        "proxy_pass_header Server",
        "proxy_pass_header Date",
        "proxy_ignore_headers X-Accel-Redirect",
        "proxy_ignore_headers Expires Cache-Control",
        "proxy_buffering off",
        "proxy_request_buffering off",
        "proxy_redirect off",
        "proxy_redirect http://o.test/ /r/",
        "proxy_redirect ~^http://([^/]+)(.*)$ /$1$2",
        "proxy_redirect / /p/",
        "proxy_cookie_domain o.test a.test",
        "proxy_cookie_path / /c/",
        "proxy_cookie_flags o secure httponly",
        "proxy_cookie_flags ~ samesite=lax",
        "error_page 404 500 502 /err.html",
        "error_page 503 = @n1",
        "add_header X-U $upstream_status",
        "add_header X-C $upstream_http_x_o always",
        "expires 1h",
        "proxy_force_ranges on",
        "chunked_transfer_encoding off",
        "proxy_next_upstream off",
        "gzip on",
        "proxy_store off",
        "proxy_buffer_size 4k",
        "client_body_buffer_size 8",
        "proxy_set_header TE trailers",
        "proxy_pass_trailers on",
        "proxy_set_header Accept-Encoding ''",
        "proxy_set_header A $upstream_addr",
        "proxy_set_header X-F $proxy_add_x_forwarded_for",
        "proxy_limit_rate 0",
        "client_max_body_size 4",
    ]))
}

pub(super) fn contents(random: &mut Random, path: &str, nodes: &mut Vec<Node>) {
    for _ in 0..random.below(4) {
        let setting = setting(random);
        if !nodes.contains(&setting) {
            nodes.push(setting);
        }
    }
    if random.happens(20) {
        nodes.push(line(random.one_of(&[
            "rewrite ^/(.*)$ /rw/$1 break",
            "rewrite ^ /rw?k=1 break",
            "set $args b=3",
            "rewrite ^/l0/(.*) /rw/%20$1? break",
            "limit_except GET { deny all; }",
        ])));
    }
    let origin = "http://127.0.0.1:@ORIGIN@";
    // A pattern and a named location allow no URI.
    let plain = path.starts_with(['~', '@']);
    let suffix = if plain {
        random.one_of(&["", "", "$request_uri", "/v$uri$is_args$args"])
    } else {
        random.one_of(&["", "", "/", "/base", "/base/", "/b?x=1", "$request_uri", "/v$uri", "/$arg_a"])
    };
    nodes.push(line(format!("proxy_pass {origin}{suffix}")));
}

/// Response of the origin server.
pub(super) fn response(random: &mut Random) -> String {
    let status = random.one_of(&[
        "200 OK",
        "200 OK",
        "200 OK",
        "404 Not Found",
        "302 Found",
        "500 Oops",
        "204 No Content",
        "304 Not Modified",
        "206 Partial Content",
        "401 Unauthorized",
        "299 Odd Words",
        "503 Busy",
        "201 Created",
        "200",
        "301 Moved",
        "418 x",
    ]);
    let protocol = random.one_of(&["HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"]);
    let mut head = format!("{protocol} {status}\r\n");
    for _ in 0..random.below(5) {
        head += random.one_of(&[
            "X-O: 1\r\n",
            "X-O: two words\r\n",
            "x-o: \r\n",
            "Location: http://o.test/x?y\r\n",
            "Location: /rel\r\n",
            "Location: http://127.0.0.1:@ORIGIN@/base/z\r\n",
            "Set-Cookie: o=1; Domain=o.test; Path=/\r\n",
            "Set-Cookie: p=2; path=/x; secure\r\n",
            "Cache-Control: max-age=60\r\n",
            "Cache-Control: no-cache\r\nCache-Control: private\r\n",
            "Expires: Thu, 01 Jan 1970 00:00:01 GMT\r\n",
            "Vary: Accept-Encoding\r\n",
            "ETag: \"o\"\r\n",
            "ETag: W/\"o\"\r\n",
            "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n",
            "X-Accel-Redirect: /a.txt\r\n",
            "X-Accel-Redirect: @n1\r\n",
            "X-Accel-Expires: 0\r\n",
            "X-Accel-Limit-Rate: 0\r\n",
            "X-Accel-Buffering: no\r\n",
            "X-Accel-Charset: utf-8\r\n",
            "Content-Type: text/html\r\n",
            "Content-Type: text/html; charset=koi8-r\r\n",
            "Content-Type: text/plain; a=b\r\n",
            "Content-Encoding: identity\r\n",
            "Accept-Ranges: bytes\r\n",
            "Accept-Ranges: none\r\n",
            "Refresh: 1; url=http://127.0.0.1:@ORIGIN@/base/r\r\n",
            "WWW-Authenticate: Basic realm=o\r\n",
            "Server: origin\r\n",
            "Date: Wed, 01 Jan 2025 00:00:00 GMT\r\n",
            "Link: </s>; rel=preload\r\n",
            "Keep-Alive: timeout=5\r\n",
            "Trailer: X\r\n",
            "Upgrade: h2c\r\n",
            "Status: 201\r\n",
            "P3P: x\r\n",
            "X_Under: 1\r\n",
            "Age: 5\r\n",
            "Content-Disposition: a\r\n",
            "Content-Range: bytes 0-1/9\r\n",
        ]);
    }
    let body = random.one_of(&["", "hello", "<p>one two</p>", "0123456789012345678901234567890123456789"]);
    let has_body = !(status.starts_with("204") || status.starts_with("304"));
    match random.below(6) {
        _ if !has_body => head += "Connection: close\r\n\r\n",
        0 | 1 if protocol == "HTTP/1.1" => {
            head +=
                &format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\nchunk{body}\r\n0\r\n\r\n", body.len() + 5)
        }
        2 => head += &format!("Connection: close\r\n\r\n{body}"),
        3 => head += &format!("Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len() + 3),
        _ => head += &format!("Content-Length: {}\r\n\r\n{body}", body.len()),
    }
    head
}
