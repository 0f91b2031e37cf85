//! `gzip`, `brotli`, `zstd`: compression of responses.

use std::io::Read;
use std::time::Duration;

use tw_testkit::{Response, Server};

use crate::support::content::noise;
use crate::support::{get, raw, refusal, request, server, start, start_server};

/// Body as a decoder of `coding` reads it.
fn decoded(coding: &str, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    match coding {
        "gzip" => {
            let mut rest = body;
            while !rest.is_empty() {
                let mut inflate = zlib_rs::Inflate::new(true, 31);
                let mut room = vec![0; 64 << 20];
                let status = inflate.decompress(rest, &mut room, zlib_rs::InflateFlush::Finish);
                assert_eq!(status, Ok(zlib_rs::Status::StreamEnd));
                out.extend_from_slice(&room[..inflate.total_out() as usize]);
                rest = &rest[inflate.total_in() as usize..];
            }
        }
        "br" => brotli::Decompressor::new(body, 4096).read_to_end(&mut out).map(drop).unwrap(),
        "zstd" => {
            out = vec![0; 64 << 20];
            let len = zstd_safe::decompress(&mut out[..], body).unwrap();
            out.truncate(len);
        }
        other => panic!("unknown coding {other}"),
    }
    out
}

/// Text of this length that compresses well, and differs everywhere.
fn text(len: usize) -> String {
    let mut text: String = (0..len / 8 + 1).map(|n| format!("line {n}\n")).collect();
    text.truncate(len);
    text
}

fn gzipped(server: &Server, target: &str) -> Response {
    request(server, &format!("GET {target}"), &["Accept-Encoding: gzip"])
}

fn coding(response: &Response) -> Option<&str> {
    response.field("Content-Encoding")
}

#[test]
fn compressed_responses_decode_to_the_original() {
    for (on, accepted, name) in
        [("gzip on", "gzip", "gzip"), ("brotli on", "br", "br"), ("zstd on", "zstd", "zstd")]
    {
        let conf = format!(
            "{on}; {}_types text/plain; location /text {{ return 200 {}; }}",
            on.split(' ').next().unwrap(),
            "x".repeat(100)
        );
        let builder = server()
            .file("html/small.txt", text(1000))
            .file("html/large.txt", text(3_000_000))
            .file("html/empty.txt", "");
        let server = start_server(builder, &conf);
        let accept = format!("Accept-Encoding: {accepted}");
        for (target, expected) in
            [("/small.txt", text(1000)), ("/large.txt", text(3_000_000)), ("/text", "x".repeat(100))]
        {
            // The first response may come from the disk, the second one comes from memory.
            for _ in 0..2 {
                let plain = get(&server, target);
                assert_eq!((coding(&plain), plain.text().len()), (None, expected.len()));
                let response = request(&server, &format!("GET {target}"), &[&accept]);
                assert_eq!(coding(&response), Some(name), "{target}");
                assert_eq!(decoded(name, &response.body), expected.as_bytes(), "{name} {target}");
                assert!(response.body.len() < expected.len());
                assert_eq!(response.field("Accept-Ranges"), None);
                let weak = plain.field("ETag").map(|tag| format!("W/{tag}"));
                assert_eq!(response.field("ETag"), weak.as_deref());
                assert_eq!(response.field("Last-Modified"), plain.field("Last-Modified"));
            }
            let head = request(&server, &format!("HEAD {target}"), &[&accept]);
            assert_eq!((coding(&head), head.field("Content-Length")), (Some(name), None));
            let part = request(&server, &format!("GET {target}"), &[&accept, "Range: bytes=1-2"]);
            assert_eq!((part.status, coding(&part)), (200, Some(name)));
        }
        let empty = request(&server, "GET /empty.txt", &[&accept]);
        assert_eq!((empty.status, coding(&empty), empty.body.len()), (200, None, 0));
    }
}

#[test]
fn small_compressed_response_has_a_length() {
    let server = start_server(
        server().file("html/a.html", text(200_000)),
        "gzip on; location /b { return 200 <b>; }
        location /c { default_type text/html; return 200 'a long enough text of html'; }",
    );
    let response = gzipped(&server, "/c");
    assert_eq!(response.field("Content-Length"), Some(response.body.len().to_string()).as_deref());
    assert_eq!(response.field("Transfer-Encoding"), None);
    let response = gzipped(&server, "/a.html");
    assert_eq!(
        (response.field("Content-Length"), response.field("Transfer-Encoding")),
        (None, Some("chunked"))
    );

    // HTTP/1.0 has no chunked coding: closing the connection ends the body.
    let bytes = raw(&server, "GET /a.html HTTP/1.0\r\nAccept-Encoding: gzip\r\n\r\n");
    assert!(bytes.contains("Content-Length: 200000\r\n"), "gzip_http_version is 1.1");
}

#[test]
fn gzip_http_version_admits_http_1_0() {
    let server = start_server(server().file("html/a.html", text(200_000)), "gzip on; gzip_http_version 1.0;");
    let mut client = server.connect().unwrap();
    client.send("GET /a.html HTTP/1.0\r\nAccept-Encoding: gzip\r\nConnection: keep-alive\r\n\r\n").unwrap();
    let bytes = client.read_until_close().unwrap();
    let head_len = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
    let head = String::from_utf8_lossy(&bytes[..head_len]).into_owned();
    assert!(head.contains("Content-Encoding: gzip\r\n") && head.contains("Connection: close\r\n"), "{head}");
    assert!(!head.contains("Content-Length") && !head.contains("chunked"), "{head}");
    assert_eq!(decoded("gzip", &bytes[head_len..]), text(200_000).as_bytes());
}

#[test]
fn types_lengths_and_proxied_decide_compression() {
    let builder = server().file("html/a.html", text(1000)).file("html/a.css", text(1000));
    let server = start_server(
        builder,
        "gzip on; default_type text/html; types { text/html html; text/css css; } add_header X-Status $status;
         location /short { return 200 'nineteen characters'; } location /enough { return 200 'twenty characters, x'; }
         location /any/ { gzip_types *; alias html/; }
         location /css/ { gzip_types text/css; alias html/; }
         location /long { gzip_min_length 1001; alias html/; }
         location /encoded { add_header Content-Encoding x; alias html/a.html; }
         location /empty-encoding { add_header Content-Encoding ''; alias html/a.html; }
         location /201 { return 201 'a text that is long enough'; }
         location /403 { return 403; } location /404 { return 404; } location /500 { return 500; }
",
    );
    let table = [
        ("/a.html", true),
        ("/a.css", false),
        ("/any/a.css", true),
        ("/css/a.css", true),
        ("/css/a.html", true),
        ("/long/a.html", false),
        ("/short", false),
        ("/enough", true),
        ("/encoded", false),
        ("/empty-encoding", true),
        ("/201", false),
        ("/403", true),
        ("/404", true),
        ("/missing", true),
        ("/500", false),
    ];
    for (target, expected) in table {
        let response = gzipped(&server, target);
        assert_eq!(coding(&response) == Some("gzip"), expected, "{target}: {}", response.head);
    }
    let not_modified = request(&server, "GET /a.html", &["Accept-Encoding: gzip", "If-None-Match: *"]);
    assert_eq!((not_modified.status, coding(&not_modified)), (304, None));
    let tag = gzipped(&server, "/a.html").field("ETag").unwrap().to_owned();
    assert!(tag.starts_with("W/\""), "{tag}");
    let field = format!("If-None-Match: {tag}");
    assert_eq!(request(&server, "GET /a.html", &["Accept-Encoding: gzip", &field]).status, 304);
}

#[test]
fn preferred_accepted_coding_is_chosen() {
    let server = start_server(
        server().file("html/a.html", text(1000)),
        "gzip on; gzip_vary on; brotli on; zstd on; location /zstd/ { brotli off; alias html/; }
         location /off/ { gzip off; brotli off; zstd off; alias html/; }",
    );
    for (target, accept, expected) in [
        ("/a.html", "gzip, deflate, br, zstd", Some("br")),
        ("/a.html", "gzip, zstd", Some("zstd")),
        ("/a.html", "gzip, zstd;q=0, br;q=0", Some("gzip")),
        ("/zstd/a.html", "gzip, br, zstd", Some("zstd")),
        ("/zstd/a.html", "gzip, br", Some("gzip")),
        ("/a.html", "identity", None),
        ("/a.html", "*", None),
        ("/a.html", "deflate, x-br, brotli", None),
        ("/off/a.html", "gzip, br, zstd", None),
    ] {
        let response = request(&server, &format!("GET {target}"), &[&format!("Accept-Encoding: {accept}")]);
        assert_eq!(coding(&response), expected, "{target} {accept}");
        assert_eq!(
            response.values("Vary").collect::<Vec<_>>().len(),
            usize::from(!target.starts_with("/off")),
            "{target}"
        );
        if let Some(coding) = expected {
            assert_eq!(decoded(coding, &response.body), text(1000).as_bytes());
        }
    }
}

#[test]
fn malformed_accept_encoding_is_harmless() {
    let server = start_server(server().file("html/a.html", text(1000)), "gzip on; brotli on; zstd on;");
    for accept in [
        "gzip;q=".to_owned(),
        "gzip;q=0.".to_owned(),
        format!("gzip;q=0.{}", "9".repeat(3000)),
        "x-gzip,".repeat(500),
        ";;;,,,;q=1".to_owned(),
        "\u{ff}\u{fe}gzip;q=\u{ff}".to_owned(),
        "gzip;q=1.0001".to_owned(),
        String::new(),
    ] {
        let response = request(&server, "GET /a.html", &[&format!("Accept-Encoding: {accept}")]);
        assert_eq!((response.status, coding(&response)), (200, None), "{accept}");
        assert_eq!(response.body, text(1000).as_bytes());
    }
}

#[test]
fn ratios_are_logged() {
    let builder = server().file("html/a.html", "X".repeat(10_000)).file("html/large.html", text(2_000_000));
    let server = start(
        builder,
        "log_format ratio '$uri $gzip_ratio $brotli_ratio $zstd_ratio'; access_log ratio.log ratio;
         server { listen 127.0.0.1:{port}; root html; gzip on;
         location /br/ { brotli on; alias html/; } location /zstd/ { zstd on; alias html/; } }",
    );
    let accept = ["Accept-Encoding: gzip, br, zstd"];
    let mut expected = Vec::new();
    for (target, column) in [("/a.html", 1), ("/large.html", 1), ("/br/a.html", 2), ("/zstd/a.html", 3)] {
        let response = request(&server, &format!("GET {target}"), &accept);
        let before = decoded(coding(&response).unwrap(), &response.body).len() as f64;
        expected.push((target, column, before / response.body.len() as f64));
    }
    get(&server, "/a.html");
    let lines = server.log("ratio.log", 5).unwrap();
    for (line, (target, column, ratio)) in lines.iter().zip(expected) {
        let words: Vec<_> = line.split(' ').collect();
        assert_eq!(words[0], target);
        for (at, word) in words.iter().enumerate().skip(1) {
            if at == column {
                assert!((word.parse::<f64>().unwrap() - ratio).abs() <= 0.006, "{line}: {ratio}");
                assert_eq!(word.split_once('.').unwrap().1.len(), 2, "{line}");
            } else {
                assert_eq!(*word, "-", "{line}");
            }
        }
    }
    assert_eq!(lines[4], "/a.html - - -");
}

#[test]
fn costly_levels_do_not_block_the_loop() {
    let server = start_server(
        server().file("html/a.html", text(2_000_000)),
        "brotli on; brotli_comp_level 9; zstd on; zstd_comp_level 19; gzip on; gzip_comp_level 9;
         location /zstd/ { brotli off; alias html/; } location /fast { return 204; }",
    );
    let mut slow: Vec<_> = ["br", "zstd", "gzip"]
        .map(|coding| {
            let mut client = server.connect().unwrap().timeout(Duration::from_secs(60));
            let target = if coding == "zstd" { "/zstd/a.html" } else { "/a.html" };
            client
                .send(format!("GET {target} HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n"))
                .unwrap();
            (coding, client)
        })
        .into();
    assert_eq!(get(&server, "/fast").status, 204);
    for (coding, client) in &mut slow {
        let response = client.read_response().unwrap();
        assert!(decoded(coding, &response.body) == text(2_000_000).as_bytes(), "{coding}");
    }
}

#[test]
fn closed_client_connections_leak_no_encoder() {
    let server = start_server(
        server().file("html/a.html", text(5_000_000)),
        "brotli on; brotli_comp_level 11; gzip on;",
    );
    for coding in ["br", "gzip", "br", "gzip"] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET /a.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: {coding}\r\n\r\n")).unwrap();
        client.read_head().unwrap();
        drop(client);
    }
    let response = gzipped(&server, "/a.html");
    assert!(decoded("gzip", &response.body) == text(5_000_000).as_bytes());
}

#[test]
fn shrinking_file_ends_the_response() {
    let server = start_server(server().file("html/a.html", noise(24 << 20)), "gzip on;");
    let path = server.prefix().join("html/a.html");
    let mut client = server.connect().unwrap();
    client.send("GET /a.html HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n").unwrap();
    client.read_head().unwrap();
    std::fs::File::options().write(true).open(path).unwrap().set_len(0).unwrap();
    // Most of the response did not fit into the socket buffers.
    let rest = client.read_until_close().unwrap_or_default();
    assert!(!rest.ends_with(b"\r\n0\r\n\r\n"), "{} bytes", rest.len());
    server.wait_error_log("file was truncated while sending response to client").unwrap();
}

#[test]
fn subrequests_are_compressed_with_the_main_response() {
    let builder = server()
        .file("html/page.html", "before <!--#include virtual=\"/part.html\" --> after")
        .file("html/part.html", text(1000))
        .file("html/part.html.gz", "must not be included");
    let server = start_server(
        builder,
        "gzip on; brotli on; zstd on; ssi on; gunzip on; location = /part.html { gzip_static on; brotli_static on; }
         location = /framed.html { alias html/page.html; add_after_body /part.html; }",
    );
    let page = format!("before {} after", text(1000));
    let part = text(1000);
    for (target, expected) in [("/page.html", page.clone()), ("/framed.html", format!("{page}{part}"))] {
        for coding in ["gzip", "br", "zstd"] {
            let response =
                request(&server, &format!("GET {target}"), &[&format!("Accept-Encoding: {coding}")]);
            assert_eq!(response.field("Content-Encoding"), Some(coding), "{}", response.head);
            let body = String::from_utf8(decoded(coding, &response.body)).unwrap();
            assert!(body == expected, "{target} {coding}: {body}");
        }
        assert_eq!(get(&server, target).text(), expected);
    }
}

#[test]
fn gzip_in_an_if_block_is_used() {
    let server = start_server(
        server(),
        "default_type text/html; gzip off; if ($arg_x) { set $y 1; }
         location / { if ($arg_on) { gzip on; return 200 'a text that is long enough'; } return 200 'a text that is long enough'; }",
    );
    assert_eq!(coding(&gzipped(&server, "/?on=1")), Some("gzip"));
    assert_eq!(coding(&gzipped(&server, "/")), None);
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        ("gzip_comp_level 0;", "value must be between 1 and 9"),
        ("gzip_comp_level 10;", "value must be between 1 and 9"),
        ("gzip_comp_level x;", "\"gzip_comp_level\" directive invalid number"),
        ("gzip_window 3k;", "\"gzip_window\" directive must be 512, 1k, 2k, 4k, 8k, 16k, or 32k"),
        ("gzip_hash 256;", "\"gzip_hash\" directive must be 512, 1k, 2k, 4k, 8k, 16k, 32k, 64k, or 128k"),
        ("gzip_http_version 2.0;", "invalid value \"2.0\""),
        ("gzip_proxied sometimes;", "invalid value \"sometimes\""),
        ("gzip_disable '(';", "regex compilation failed"),
        ("gzip maybe;", "it must be \"on\" or \"off\""),
        ("gzip_static maybe;", "invalid value \"maybe\""),
        ("postpone_gzipping x;", "invalid value"),
        ("brotli_comp_level 12;", "value must be between 0 and 11"),
        (
            "brotli_window 3k;",
            "\"brotli_window\" directive must be 1k, 2k, 4k, 8k, 16k, 32k, 64k, 128k, 256k, 512k, 1m, 2m, 4m, 8m or 16m",
        ),
        ("zstd_comp_level 0;", "zstd compress level must between -131072 and 22 excluding 0"),
        ("zstd_comp_level 23;", "zstd compress level must between -131072 and 22 excluding 0"),
        ("zstd_dict_file x;", "\"zstd_dict_file\" directive is not allowed here"),
        ("set $gzip_ratio 1;", "the duplicate \"gzip_ratio\" variable"),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
    let said = crate::support::refusal_of("http { zstd_dict_file x; server { listen 127.0.0.1:{port}; } }");
    assert!(said.contains("\"zstd_dict_file\" directive is not supported"), "{said}");
}

#[test]
fn every_setting_decodes() {
    let settings = [
        "gzip on; gzip_comp_level 9; gzip_window 512; gzip_hash 512;",
        "gzip on; gzip_window 1k; gzip_hash 128k; gzip_buffers 1 1; postpone_gzipping 4k; gzip_no_buffer on;",
        "brotli on; brotli_comp_level 0; brotli_window 1k; brotli_buffers 4 8k;",
        "brotli on; brotli_comp_level 5; brotli_window 16m; brotli_min_length 0;",
        "zstd on; zstd_comp_level -10; zstd_buffers 1 4k;",
        "zstd on; zstd_comp_level 20; zstd_min_length 0;",
    ];
    let locations: String = settings
        .iter()
        .enumerate()
        .map(|(at, conf)| format!("location /{at}/ {{ {conf} alias html/; }}\n"))
        .collect();
    let server = start_server(server().file("html/a.html", text(300_000)), &locations);
    for (at, conf) in settings.iter().enumerate() {
        let response = request(&server, &format!("GET /{at}/a.html"), &["Accept-Encoding: gzip, br, zstd"]);
        let coding = coding(&response).unwrap_or_else(|| panic!("{conf}: {}", response.head));
        assert!(decoded(coding, &response.body) == text(300_000).as_bytes(), "{conf}");
    }
}
