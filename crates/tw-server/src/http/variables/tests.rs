use std::time::Duration;

use bytes::Bytes;
use tw_core::vars::write::put_seconds;
use tw_http::HeaderName;

use super::*;
use tw_http_testkit::{eval, with_request};
use tw_request::request::{After, RequestArrival};
use tw_request::vars::VarTable;

const CONF: &str = "server { listen 127.0.0.1:8080; server_name first.example second.example; root site; }";

/// Evaluates templates for a request with this head.
fn check(head: &str, table: &[(&str, &str)]) {
    check_after(CONF, head, |_| {}, table);
}

/// Checks values after a change of the request.
fn check_after(
    conf: &str,
    head: &str,
    change: impl FnOnce(&mut Request) + Send + 'static,
    table: &[(&str, &str)],
) {
    let templates: Vec<_> = table.iter().map(|(template, _)| (*template).to_owned()).collect();
    let values = with_request(conf, head, move |r| {
        change(r);
        templates.iter().map(|template| eval(r, template)).collect::<Vec<_>>()
    });
    for ((template, expected), value) in table.iter().zip(values) {
        assert_eq!(value, *expected, "{template} of {head:?}");
    }
}

#[test]
fn the_request_line() {
    check(
        "GET /a%20b/../c?x=1&Y=2&xy=&x=3&&=5 HTTP/1.1\r\nHost: SECOND.example:81\r\n\r\n",
        &[
            ("$uri $document_uri", "/c /c"),
            ("$args|$query_string|$is_args", "x=1&Y=2&xy=&x=3&&=5|x=1&Y=2&xy=&x=3&&=5|?"),
            ("$arg_x,$arg_X,$arg_y,$arg_xy,$arg_z,$arg_", "1,1,2,,-,-"),
            ("$request_uri", "/a%20b/../c?x=1&Y=2&xy=&x=3&&=5"),
            ("$request", "GET /a%20b/../c?x=1&Y=2&xy=&x=3&&=5 HTTP/1.1"),
            ("$request_method $server_protocol", "GET HTTP/1.1"),
            ("$host$is_request_port$request_port", "second.example:81"),
            ("$server_name $request_length", "first.example 73"),
            ("$document_root $request_filename", "/prefix/site /prefix/site/c"),
        ],
    );
    check(
        "POST / HTTP/1.0\r\n\r\n",
        &[
            ("$args,$is_args,$arg_x", "-,,-"),
            ("$host,$is_request_port,$request_port", "first.example,,"),
            ("$http_host,$content_type,$content_length", "-,-,-"),
            ("$request_body,$request_body_file", "-,-"),
        ],
    );
    check("GET /9\r\n", &[("$uri,$server_protocol,$request", "/9,-,GET /9")]);
}

#[test]
fn requests_that_are_refused() {
    check(
        "GET /a%zz HTTP/1.1\r\n",
        &[
            ("$uri,$request_uri,$args,$request_method,$request", ",-,-,GET,GET /a%zz HTTP/1.1"),
            ("$request_length", "20"),
            ("$host", "first.example"),
        ],
    );
    check(
        "get / HTTP/1.1\r\n",
        &[("$uri,$request_uri,$request_method,$request", "-,-,-,get / HTTP/1.1"), ("$request_length", "0")],
    );
    check(
        "GET /x?y HTTP/1.1\r\nHost: h.example\r\nBad\u{1}: 1\r\n\r\n",
        &[("$uri,$args,$is_args,$host,$request_uri", "/x,y,?,h.example,/x?y")],
    );
}

#[test]
fn fields_of_the_request() {
    check(
        "GET / HTTP/1.1\r\nHost: a\r\nX-Two: 1\r\nx-two: 2\r\nCookie: a=1; b = 2;c=\r\nCookie: B=3; d=a=b ; e\r\n\
         Content-Type: text/x\r\nUser-Agent: \"u\"\r\nVia: 1.1 x\r\nVia: 1.1 y\r\nX-Forwarded-For: 1\r\n\
         Empty:\r\nContent-Length: 012\r\n\r\n",
        &[
            ("$http_x_two|$HTTP_X_Two|$http_x_three|$http_", "1, 2|1, 2|-|-"),
            ("$http_host,$http_user_agent,$http_referer,$http_via", "a,\"u\",-,1.1 x, 1.1 y"),
            ("$http_cookie", "a=1; b = 2;c=; B=3; d=a=b ; e"),
            ("$cookie_a,$cookie_B,$cookie_c,$cookie_d,$cookie_e,$cookie_f", "1,2,,a=b ,-,-"),
            ("$content_type,$http_content_type,$http_empty,$http_x_forwarded_for", "text/x,text/x,,1"),
            ("$content_length", "012"),
            ("$scheme,$https", "http,"),
        ],
    );
}

#[test]
fn basic_authentication() {
    for (field, expected) in [
        ("Basic dXNlcjpwYXNz", "user"),
        ("bAsIc   dXNlcjpwYXNz", "user"),
        ("Basic dTo=", "u"),
        ("Basic dTo", "u"),
        ("Basic dTo6Og==", "u"),
        ("Basic w6k6eA==", "é"),
        ("Basic OnBhc3M=", "-"),
        ("Basic dXNlcg==", "-"),
        ("Basic dXNlcjpwYXNz!", "-"),
        ("Basic dXNlcjpwYXNzA", "-"),
        ("Basic ", "-"),
        ("Bearer dXNlcjpwYXNz", "-"),
        ("", "-"),
    ] {
        let head = format!("GET / HTTP/1.1\r\nHost: a\r\nAuthorization: {field}\r\n\r\n");
        let user = with_request(CONF, &head, |r| eval(r, "$remote_user"));
        assert_eq!(user, expected, "{field}");
    }
    check("GET / HTTP/1.0\r\nProxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n", &[("$remote_user", "-")]);
}

#[test]
fn the_connection() {
    with_request(CONF, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |r| {
        let peer = r.client().peer().inet().unwrap();
        let local = r.local_addr().inet().unwrap();
        assert_eq!(eval(r, "$remote_addr $remote_port"), format!("127.0.0.1 {}", peer.port()));
        assert_eq!(eval(r, "$server_addr $server_port"), format!("127.0.0.1 {}", local.port()));
        assert_eq!(eval(r, "$binary_remote_addr").as_bytes(), [127, 0, 0, 1]);
        assert_eq!(eval(r, "$connection $connection_requests $worker"), "42 0 3");
        assert_eq!(eval(r, "$connection_time"), "0.000");
        assert!(eval(r, "$tcpinfo_snd_cwnd").parse::<u32>().is_ok_and(|window| window > 0));
        assert!(eval(r, "$tcpinfo_rtt$tcpinfo_rttvar$tcpinfo_rcv_space").parse::<u128>().is_ok());
        assert_eq!(eval(r, "$pipe"), ".");
        r.context.started.arrival = RequestArrival::Pipelined;
        assert_eq!(eval(r, "$pipe"), "p");
    });
}

/// From 127.0.0.1:1 to 127.0.0.2:2, with alpn `h2` and TLS that was not verified (7), version `TLSv`.
const V2: &str = "\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x20\x7f\0\0\x01\x7f\0\0\x02\0\x01\0\x02\
                  \x01\0\x02h2\x20\0\x0c\x01\0\0\0\x07\x21\0\x04TLSv";

#[test]
fn the_proxy_protocol() {
    let head = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    check(head, &[("$proxy_protocol_addr,$proxy_protocol_server_port,$proxy_protocol_tlv_alpn", "-,-,-")]);
    let with_header = |line: &'static [u8]| {
        move |r: &mut Request| {
            let (header, _) = tw_net::proxy_protocol::parse(line).unwrap().unwrap();
            r.client().proxy.set(Box::new(header)).unwrap();
        }
    };
    let all =
        "$proxy_protocol_addr,$proxy_protocol_port,$proxy_protocol_server_addr,$proxy_protocol_server_port";
    for (line, expected) in [
        ("PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", "192.0.2.1,56324,192.0.2.2,443"),
        ("PROXY TCP6 2001:db8::1 ::1 1 0\r\n", "2001:db8::1,1,::1,"),
        ("PROXY UNKNOWN\r\n", "-,-,-,-"),
        (V2, "127.0.0.1,1,127.0.0.2,2"),
    ] {
        check_after(CONF, head, with_header(line.as_bytes()), &[(all, expected)]);
    }
    check_after(
        CONF,
        head,
        with_header(V2.as_bytes()),
        &[(
            "$proxy_protocol_tlv_alpn,$proxy_protocol_tlv_0x01,$proxy_protocol_tlv_ssl_verify,\
             $proxy_protocol_tlv_ssl_version,$proxy_protocol_tlv_netns,$proxy_protocol_tlv_what",
            "h2,h2,7,TLSv,-,-",
        )],
    );
    let clouds =
        "$proxy_protocol_tlv_aws_vpce_id,$proxy_protocol_tlv_azure_pel_id,$proxy_protocol_tlv_gcp_conn_id";
    check_after(CONF, head, with_header(CLOUDS), &[(clouds, "vpce-1,513,258")]);
    check_after(CONF, head, with_header(OTHER_CLOUDS), &[(clouds, "-,-,-")]);
    check_after(CONF, head, with_header(V2.as_bytes()), &[(clouds, "-,-,-")]);
}

/// Values of three clouds, each in its form.
const CLOUDS: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x29\x7f\0\0\x01\x7f\0\0\x02\0\x01\0\x02\
    \xea\0\x07\x01vpce-1\xee\0\x05\x01\x01\x02\0\0\xe0\0\x08\0\0\0\0\0\0\x01\x02";
/// Values of the same types in no cloud's form.
const OTHER_CLOUDS: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x16\x7f\0\0\x01\x7f\0\0\x02\0\x01\0\x02\
    \xea\0\x01\x02\xee\0\0\xe0\0\0";

/// As if this much of a response had been sent.
fn sent(r: &mut Request, head: u64, body: u64) {
    r.costs.sent.head = head;
    r.costs.sent.bytes = head + body;
}

#[test]
fn the_response() {
    let head = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let conf = "server { listen 127.0.0.1:8080; limit_rate 4k; keepalive_timeout 60 20; }";
    let fields = "$sent_http_content_type|$sent_http_content_length|$sent_http_last_modified";
    let framing = "$sent_http_connection|$sent_http_keep_alive|$sent_http_transfer_encoding";
    check_after(
        conf,
        head,
        |r| r.response.status = 7,
        &[
            ("$status,$bytes_sent,$body_bytes_sent,$request_completion,$limit_rate", "007,0,0,,0"),
            (fields, "-|-|-"),
            ("$sent_http_server,$sent_http_date,$sent_http_location,$sent_trailer_x", "-,-,-,-"),
        ],
    );
    let full = |r: &mut Request| {
        r.response.content_type = Bytes::from_static(b"text/html");
        r.response.charset = Bytes::from_static(b"utf-8");
        r.response.content_length = Some(5);
        r.response.last_modified = Some(784_111_777);
        r.response.fields.append("X-A", "1");
        r.response.fields.append("x-a", "2");
        r.response.set_etag("\"v\"");
        r.costs.sent.complete = true;
        sent(r, 100, 5);
    };
    check_after(
        conf,
        head,
        full,
        &[
            ("$status,$bytes_sent,$body_bytes_sent,$request_completion,$limit_rate", "200,105,5,OK,4096"),
            (fields, "text/html; charset=utf-8|5|Sun, 06 Nov 1994 08:49:37 GMT"),
            ("$sent_http_x_a,$sent_http_etag,$sent_http_x_b", "1, 2,\"v\",-"),
            (framing, "keep-alive|timeout=20|-"),
        ],
    );
    let none = move |r: &mut Request| {
        full(r);
        r.response.status = 204;
        r.state.after = After::Close;
    };
    check_after(conf, head, none, &[(fields, "-|-|-"), (framing, "close|-|-")]);
    let refused = move |r: &mut Request| {
        full(r);
        r.state.error_status = Some(404);
        r.response.status = 404;
        r.response.fields.append(HeaderName::ContentLength, "6");
    };
    check_after(conf, head, refused, &[("$status", "404"), (fields, "text/html; charset=utf-8|6|-")]);
    let unknown = move |r: &mut Request| {
        full(r);
        r.response.content_length = None;
        r.costs.limit_rate = Some(0);
    };
    check_after(conf, head, unknown, &[(framing, "keep-alive|timeout=20|chunked"), ("$limit_rate", "0")]);
    check_after(conf, head, |r| sent(r, 100, 0), &[("$body_bytes_sent", "0")]);
}

#[test]
fn location_field_is_absolute_after_the_head_is_sent() {
    let head = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let to = |r: &mut Request| r.response.location = Bytes::from_static(b"/dir/");
    check_after(CONF, head, to, &[("$sent_http_location", "/dir/")]);
    for (conf, expected) in [
        ("", "http://a.example/dir/"),
        ("server_name_in_redirect on;", "http://s.example/dir/"),
        ("absolute_redirect off;", "/dir/"),
    ] {
        let conf = format!(
            "server {{ listen 127.0.0.1:8080; server_name s.example; port_in_redirect off; {conf} }}"
        );
        let moved = move |r: &mut Request| {
            to(r);
            sent(r, 100, 0);
        };
        check_after(&conf, head, moved, &[("$sent_http_location", expected)]);
    }
    let field = |r: &mut Request| {
        r.response.fields.append(HeaderName::Location, "http://origin.example/");
        sent(r, 100, 0);
    };
    check_after(CONF, head, field, &[("$sent_http_location", "http://origin.example/")]);
}

#[test]
fn changeable_variables() {
    with_request(CONF, "GET /?a=1 HTTP/1.1\r\nHost: a\r\n\r\n", |r| {
        let mut vars = VarTable::new(tw_conf::NginxVariables::HTTP);
        VARIABLES.iter().for_each(|variables| vars.declare(variables));
        let mut set = |r: &mut Request, name: &str, value: &str| {
            vars.target(name, tw_conf::Span::default())
                .map(|place| place.store(r, value.into()))
                .map_err(|error| error.message)
        };
        assert_eq!(set(r, "args", "b=2"), Ok(()));
        assert_eq!(eval(r, "$args $arg_b $query_string $request_uri"), "b=2 2 b=2 /?a=1");
        for (value, expected) in [("40k", "40960"), ("", "40960"), ("x", "40960"), ("0", "0")] {
            assert_eq!(set(r, "Limit_Rate", value), Ok(()));
            assert_eq!(eval(r, "$limit_rate"), expected, "{value:?}");
        }
        assert_eq!(set(r, "uri", "/"), Err("the duplicate \"uri\" variable".to_owned()));
    });
}

#[test]
fn time_and_process() {
    with_request(CONF, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |r| {
        let now = tw_rt::clock::unix();
        assert_eq!(eval(r, "$msec"), format!("{}.{:03}", now.secs, now.msec));
        assert_eq!(eval(r, "$time_local").as_bytes(), tw_log::time::time_local(now.secs));
        let iso8601 = eval(r, "$time_iso8601");
        let (time, zone) = iso8601.split_at(19);
        assert_eq!(eval(r, "$time_iso8601_ms"), format!("{time}.{:03}{zone}", now.msec));
        assert_eq!(eval(r, "$request_time"), "0.000");
        assert_eq!(eval(r, "$pid $hostname"), format!("{} host.example", std::process::id()));
        assert_eq!(eval(r, "$nginx_version"), tw_core::NGINX_VERSION);
        assert_eq!(eval(r, "$disk_inline $disk_wait_time $disk_queue_time"), "1 0.000000 0.000000");
        assert_eq!(eval(r, "$realpath_root"), "-");
    });
}

#[test]
fn request_ids_are_32_digits_that_stay_and_differ() {
    let mut seen_values = std::collections::HashSet::new();
    for _ in 0..8 {
        let ids = with_request(CONF, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", |r| {
            let first = eval(r, "$request_id");
            assert_eq!(eval(r, "$request_id"), first);
            r.context.id.set(None);
            [first, eval(r, "$request_id")]
        });
        for id in ids {
            assert!(id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{id}");
            assert!(seen_values.insert(id));
        }
    }
}

#[test]
fn seconds_have_three_decimals() {
    for (ms, expected) in [(0, "0.000"), (7, "0.007"), (1_234, "1.234"), (3_600_050, "3600.050")] {
        let mut out = Vec::new();
        put_seconds(&mut out, Duration::from_millis(ms));
        assert_eq!(out, expected.as_bytes());
    }
}
