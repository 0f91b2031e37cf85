//! `proxy_cache`: what decides that a response is stored, how long it is fresh, and what a later request gets of it.

use tw_testkit::random::Random;

use super::{Area, requests};
use crate::node::{Node, line};
use crate::request::{Exchange, Request, RequestBody, Wire};

/// Targets of a case: few, so that most requests find a response of an earlier one.
const TARGETS: usize = 5;

pub(super) fn settings(random: &mut Random, nodes: &mut Vec<Node>) {
    nodes.push(line("proxy_cache c"));
    if random.happens(70) {
        nodes.push(line(random.one_of(&[
            "proxy_cache_valid any 1h",
            "proxy_cache_valid 1h",
            "proxy_cache_valid 200 404 1h",
            "proxy_cache_valid 200 0",
        ])));
    }
    nodes.push(line("add_header X-Cache $upstream_cache_status always"));
    if random.happens(50) {
        nodes.push(setting(random));
    }
}

fn setting(random: &mut Random) -> Node {
    line(random.one_of(&[
        "proxy_cache_key $uri",
        "proxy_cache_key $uri$arg_a",
        "proxy_cache_key $request_method$request_uri",
        "proxy_cache_key ''",
        "proxy_cache_methods POST",
        "proxy_cache_methods GET HEAD",
        "proxy_cache_min_uses 2",
        "proxy_cache_bypass $http_x_a",
        "proxy_cache_bypass $arg_a $cookie_a",
        "proxy_no_cache $http_x_a",
        "proxy_no_cache $upstream_http_x_o",
        "proxy_ignore_headers Set-Cookie",
        "proxy_ignore_headers Cache-Control Expires",
        "proxy_ignore_headers Vary X-Accel-Expires",
        "proxy_cache_convert_head off",
        "proxy_cache_revalidate on",
        "proxy_cache_use_stale error http_500 http_503 http_404",
        "proxy_cache_use_stale error timeout updating",
        "proxy_cache_background_update on",
        "proxy_cache_lock on",
        "proxy_cache_max_range_offset 0",
        "proxy_cache_max_range_offset 10",
        "proxy_cache off",
        "proxy_buffering on",
        "proxy_hide_header Vary",
        "proxy_hide_header ETag",
        "proxy_intercept_errors on",
        "error_page 404 500 /err.html",
        "expires 1h",
        "etag off",
        "proxy_set_header If-None-Match $http_if_none_match",
        "proxy_set_header Accept-Encoding ''",
        "gzip on",
        "max_ranges 1",
        "if_modified_since before",
        "proxy_pass_header Date",
        "proxy_http_version 1.0",
    ]))
}

pub(super) fn contents(random: &mut Random, nodes: &mut Vec<Node>) {
    for _ in 0..random.below(3) {
        let setting = setting(random);
        if !nodes.contains(&setting) {
            nodes.push(setting);
        }
    }
    nodes.push(line("proxy_pass http://127.0.0.1:@ORIGIN@"));
}

/// Requests to few targets, several to each.
pub(super) fn exchanges(random: &mut Random, paths: &[String]) -> Vec<Exchange> {
    let targets: Vec<Request> = (0..TARGETS)
        .map(|index| {
            let mut first = requests::request(random, Area::Cache, paths);
            first.method = "GET".to_owned();
            first.protocol = "HTTP/1.1".to_owned();
            // Each target has a response of its own, which all its requests select.
            first.fields = vec![
                ("Host".to_owned(), "a.test".to_owned()),
                ("X-Script".to_owned(), format!("want={index}")),
            ];
            first.body = RequestBody::Absent;
            first
        })
        .collect();
    (0..super::EXCHANGES)
        .map(|_| {
            let Some(first) = targets.get(random.below(TARGETS)) else {
                return Exchange { wire: Wire::Http1, requests: Vec::new() };
            };
            let other = requests::request(random, Area::Cache, paths);
            let mut next = first.clone();
            if random.happens(20) {
                next.method = random.one_of(&["HEAD", "HEAD", "POST"]).to_owned();
            }
            if random.happens(60) {
                let extra = other.fields.into_iter().filter(|(name, _)| name != "Host" && name != "X-Script");
                next.fields.extend(extra);
            }
            Exchange { wire: Wire::Http1, requests: vec![next] }
        })
        .collect()
}

/// Response of the origin server.
pub(super) fn response(random: &mut Random) -> String {
    let status = random.one_of(&[
        "200 OK",
        "200 OK",
        "200 OK",
        "200 OK",
        "404 Not Found",
        "301 Moved",
        "302 Found",
        "204 No Content",
        "500 Oops",
        "503 Busy",
        "206 Partial Content",
        "410 Gone",
        "299 Odd",
    ]);
    let mut head = format!("HTTP/1.1 {status}\r\n");
    for _ in 0..random.below(5) {
        head += random.one_of(&[
            "Cache-Control: max-age=600\r\n",
            "Cache-Control: max-age=0\r\n",
            "Cache-Control: no-cache\r\n",
            "Cache-Control: no-store\r\n",
            "Cache-Control: private\r\n",
            "Cache-Control: public, s-maxage=500, max-age=0\r\n",
            "Cache-Control: max-age=x\r\n",
            "Cache-Control: max-age=600, must-revalidate\r\n",
            "Cache-Control: stale-while-revalidate=100, max-age=600\r\n",
            "Cache-Control: stale-if-error=100\r\n",
            "Expires: Thu, 31 Dec 2037 23:55:55 GMT\r\n",
            "Expires: Thu, 01 Jan 1970 00:00:01 GMT\r\n",
            "Expires: 0\r\n",
            "Vary: Accept-Encoding\r\n",
            "Vary: *\r\n",
            "Vary: X-A, Accept-Encoding\r\n",
            "Set-Cookie: o=1\r\n",
            "X-Accel-Expires: 600\r\n",
            "X-Accel-Expires: 0\r\n",
            "X-Accel-Expires: @2145916555\r\n",
            "X-Accel-Expires: off\r\n",
            "ETag: \"o\"\r\n",
            "ETag: W/\"o\"\r\n",
            "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n",
            "Age: 5\r\n",
            "Age: 700\r\n",
            "Date: Wed, 01 Jan 2025 00:00:00 GMT\r\n",
            "Accept-Ranges: bytes\r\n",
            "Content-Type: text/html\r\n",
            "Content-Encoding: gzip\r\n",
            "X-O: 1\r\n",
            "Pragma: no-cache\r\n",
            "Warning: 110 x\r\n",
            "Location: /rel\r\n",
            "Content-Range: bytes 0-4/9\r\n",
        ]);
    }
    let body = random.one_of(&["hello", "hello", "0123456789012345678901234567890123456789", ""]);
    match random.below(5) {
        _ if status.starts_with("204") => head += "Connection: close\r\n\r\n",
        0 => {
            head +=
                &format!("Transfer-Encoding: chunked\r\n\r\n{:x}\r\nchunk{body}\r\n0\r\n\r\n", body.len() + 5)
        }
        1 => head += &format!("Connection: close\r\n\r\n{body}"),
        _ => head += &format!("Content-Length: {}\r\n\r\n{body}", body.len()),
    }
    head
}
