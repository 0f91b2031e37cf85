//! `echo` and its like: programs that make a response, and lines around one

use std::time::{Duration, Instant};

use tw_testkit::Client;

use crate::support::http2::{connect, start_http2};
use crate::support::http3::start_http3;
use crate::support::origin::mirror;
use crate::support::{get, page, raw, refusal, request, server, start_server};

#[test]
fn texts_make_a_response() {
    let server = start_server(
        server(),
        "default_type text/x;
         location /echo { echo hello; echo -n 'a  b' $arg_x; echo; echo -- -n is; echo $arg_n y; }
         location /dup { echo_duplicate 3 '--'; echo_duplicate 1 ' END '; echo_duplicate 1_0 'x'; echo_duplicate 0 y; echo_duplicate $arg_n z; echo; }
         location /status { echo_status 404; echo $echo_response_status; }
         location = /quiet { echo_reset_timer; }
         location ^~ /if { set $res miss; if ($arg_val ~* '^a') { set $res hit; echo if $res; } echo $res; }
         location /vars { echo \"$echo_request_method $echo_client_request_method $echo_request_uri $echo_cacheable_request_uri [$echo_it] $echo_incr $echo_incr\"; }",
    );
    for (target, status, expected) in [
        ("/echo?x=1&n=-n", 200, "hello\na  b 1\n-n is\n-n y\n"),
        ("/dup?n=1", 200, "------ END xxxxxxxxxxz\n"),
        ("/status", 404, "404\n"),
        ("/quiet", 200, ""),
        ("/if?val=abc", 200, "if hit\n"),
        ("/if?val=bcd", 200, "miss\n"),
        ("/vars/%61", 200, "GET GET /vars/a /vars/a [] 1 2\n"),
    ] {
        assert_eq!(page(&server, target), (status, expected.to_owned()), "{target}");
    }
    let response = get(&server, "/echo");
    assert_eq!(
        (response.field("Content-Type"), response.field("Transfer-Encoding")),
        (Some("text/x"), Some("chunked"))
    );
    assert_eq!(request(&server, "HEAD /echo", &[]).status, 200);
    assert!(raw(&server, "GET /echo HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nhello\na  b \n-n is\n y\n"));
}

#[test]
fn huge_counts_are_made_as_the_client_reads() {
    let server = start_server(
        server(),
        "location /bounded { echo_duplicate 1_000_000 'hello'; } location /huge { echo_duplicate 1_000_000_000_000_000_000 'hello'; }
         location /bad { echo_duplicate $arg_n x; } location /cut { echo x; echo_sleep 0.001; echo_duplicate $arg_n x; }",
    );
    assert_eq!(get(&server, "/bounded").body.len(), 5_000_000);
    let mut client = server.connect().unwrap();
    client.send("GET /huge HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert_eq!(client.read_head().unwrap().status, 200);
    let start = client.read_bytes(3_000_000).unwrap();
    assert!(start.windows(10).any(|bytes| bytes == b"hellohello"));
    drop(client);
    assert_eq!(get(&server, "/bounded").body.len(), 5_000_000);
    assert_eq!(page(&server, "/bad?n=99999999999999999999").0, 500);
    let cut = raw(&server, "GET /cut?n=-1 HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(cut.contains("x\n") && !cut.ends_with("0\r\n\r\n"), "{cut}");
    server.wait_error_log("invalid count \"99999999999999999999\" in a command of \"echo\"").unwrap();
}

#[test]
fn pauses_hold_one_request_only() {
    let server = start_server(
        server(),
        "location /slow { echo first; echo_flush; echo_sleep 3600; echo second; }
         location /short { echo_reset_timer; echo_sleep 0.05; echo_blocking_sleep $arg_s; echo -n $echo_timer_elapsed; }
         location /quick { echo quick; } location /bad { echo a; echo_sleep $arg_s; echo b; }",
    );
    let mut slow = server.connect().unwrap();
    slow.send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    slow.read_head().unwrap();
    assert_eq!(slow.read_bytes(11).unwrap(), b"6\r\nfirst\n\r\n");
    assert_eq!(page(&server, "/quick").1, "quick\n");
    let began = Instant::now();
    let elapsed: f64 = page(&server, "/short?s=.05").1.parse().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(100) && elapsed >= 0.099, "{elapsed}");
    assert_eq!(page(&server, "/bad?s=soon").0, 500);
    server.wait_error_log("invalid time \"soon\"").unwrap();
}

#[test]
fn subrequests_answer_in_their_order() {
    let server = start_server(
        server(),
        &format!(
            "location /sync {{ echo_reset_timer; echo_location /sub1; echo_location /sub2 x=y; echo $echo_timer_elapsed; }}
             location /async {{ echo_reset_timer; echo_location_async /sub3; echo_location_async /sub2 'x=y'; echo $echo_timer_elapsed; }}
             location /sub3 {{ echo_sleep 2; echo -n one; }}
             location /sub1 {{ echo_sleep 0.2; echo -n one; }} location /sub2 {{ echo_sleep 0.1; echo -n two$arg_x; }}
             location /incr {{ echo pre $echo_incr; echo_location_async /count; echo_location_async /count; echo post $echo_incr; }}
             location /count {{ echo sub $echo_incr; }}
             location /multi {{ echo_subrequest POST /own -q 'foo=Foo' -b 'hi'; echo_subrequest_async PUT '/own?bar' -b 'hello'; echo_subrequest DELETE /own; }}
             location /own {{ echo \"$query_string $echo_request_method $echo_client_request_method $echo_request_body [$http_content_length]\"; echo_read_request_body; echo_request_body; echo; }}
             location /pass {{ echo_subrequest POST /proxied -b 'a body'; echo_location /proxied; }} location /proxied {{ proxy_pass http://{}; }}
             location /own-file {{ echo_location /page.txt; echo_location /none; }}
             location /up {{ echo_location $arg_u; }} location /cycle {{ echo x; echo_location /cycle; }}",
            mirror()
        ),
    );
    let sync = page(&server, "/sync").1;
    let elapsed =
        |text: &str| text.strip_prefix("onetwoy").and_then(|text| text.trim_end().parse::<f64>().ok());
    assert!(elapsed(&sync).is_some_and(|elapsed| elapsed >= 0.3), "{sync}");
    let asynchronous = page(&server, "/async").1;
    assert!(elapsed(&asynchronous).is_some_and(|elapsed| elapsed < 1.0), "{asynchronous}");
    assert_eq!(page(&server, "/incr").1, "pre 1\nsub 3\nsub 4\npost 2\n");
    let multi = "foo=Foo POST GET hi [2]\nhi\nbar PUT GET hello [5]\nhello\n DELETE GET  []\n\n";
    assert_eq!(page(&server, "/multi").1, multi);
    let passed = request(&server, "POST /pass", &["Content-Length: 3", "X-A: b", "\r\nabc"]).text();
    let (own, plain) = passed.split_once("6 bytes").unwrap_or_else(|| panic!("{passed}"));
    assert!(
        own.starts_with("POST /proxied ") && own.contains("Content-Length: 6\r\n") && own.contains("X-A: b"),
        "{own}"
    );
    assert!(plain.starts_with("GET /proxied ") && plain.ends_with("0 bytes"), "{plain}");
    let (status, text) = page(&server, "/own-file");
    assert!(status == 200 && text.contains("404 Not Found"), "{text}");
    for unsafe_uri in ["/../etc/passwd", "/a/%2e%2e/b", "@name", "relative"] {
        assert_eq!(page(&server, &format!("/up?u={unsafe_uri}")).0, 500, "{unsafe_uri}");
    }
    server.wait_error_log("unsafe URI \"/../etc/passwd\" was detected").unwrap();
    let cycle = raw(&server, "GET /cycle HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(!cycle.ends_with("0\r\n\r\n"));
    server.wait_error_log("subrequests cycle while processing \"/cycle\"").unwrap();
}

#[test]
fn loops_run_for_each_part() {
    let server = start_server(
        server().file("html/a.js", "A").file("html/b.js", "B"),
        "location /loop { echo_foreach_split ',' $arg_list; echo item: $echo_it; echo_end; echo_foreach_split '-a-' 'x-a-y'; echo -n $echo_it; echo_end; echo [$echo_it]; }
         location /merge { echo_foreach_split '&' $query_string; echo \"/* $echo_it */\"; echo_location_async $echo_it; echo; echo_end; }
         location /long { echo_foreach_split x $arg_x; echo_reset_timer; echo_end; echo done; }
         location /body { client_body_buffer_size 1m; echo_read_request_body; echo_foreach_split ',' $echo_request_body; echo -n $arg_none; echo_end; echo done; }",
    );
    assert_eq!(page(&server, "/loop?list=cat,dog").1, "item: cat\nitem: dog\nxy[]\n");
    assert_eq!(page(&server, "/loop").1, "xy[]\n");
    assert_eq!(
        page(&server, "/merge?/a.js&/b.js&/a.js").1,
        "/* /a.js */\nA\n/* /b.js */\nB\n/* /a.js */\nA\n"
    );
    assert_eq!(page(&server, &format!("/long?x={}", "x".repeat(6000))).1, "done\n");
    // Parts without output neither pile up nor keep the loop.
    let parts = format!("\r\n{}", "a,".repeat(100_000));
    assert_eq!(request(&server, "POST /body", &["Content-Length: 200000", &parts]).text(), "done\n");
    let many = "/a.js&".repeat(900);
    let merged = page(&server, &format!("/merge?{many}")).1;
    assert_eq!((merged.matches("\nA\n").count(), merged.matches("/* /a.js */").count()), (900, 900));
}

#[test]
fn request_body_and_head_are_sent_back() {
    let server = start_server(
        server(),
        "client_body_buffer_size 1k; client_max_body_size 1m;
         location /back { echo_duplicate 1 $echo_client_request_headers; echo '\r'; echo_read_request_body; echo_request_body; }
         location /variable { echo_read_request_body; echo -n [$echo_request_body]; } location /unread { echo_request_body; echo -n end; }",
    );
    let back = request(&server, "POST /back", &["Content-Length: 5", "X-A: b", "\r\nhello"]).text();
    let head =
        "POST /back HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 5\r\nX-A: b\r\n";
    assert_eq!(back, format!("{head}\r\nhello"));
    assert_eq!(request(&server, "POST /variable", &["Content-Length: 5", "\r\nhello"]).text(), "[hello]");
    assert_eq!(request(&server, "POST /unread", &["Content-Length: 5", "\r\nhello"]).text(), "end");
    let long = "0123456789".repeat(20_000);
    let sent = request(&server, "POST /back", &["Content-Length: 200000", &format!("\r\n{long}")]);
    assert!(sent.text().ends_with(&long));
    assert_eq!(request(&server, "POST /back", &["Content-Length: 2000000"]).status, 413);
}

#[test]
fn other_locations_take_over() {
    let server = start_server(
        server(),
        "location /plain { echo_exec /bar weight=5; } location /args { echo_exec /bar?weight=6; } location /named { echo_exec @name; }
         location /later { echo_sleep 0.02; echo_read_request_body; echo_exec $arg_u; } location /late { echo x; echo_exec /bar; }
         location /bar { echo $arg_weight $echo_request_uri; } location @name { echo named $echo_request_uri; }
         location /round { echo_exec /round; }",
    );
    for (target, status, expected) in [
        ("/plain", 200, "5 /bar\n"),
        ("/args", 200, "6 /bar\n"),
        ("/named", 200, "named /named\n"),
        ("/later?u=/bar", 200, " /bar\n"),
    ] {
        assert_eq!(page(&server, target), (status, expected.to_owned()), "{target}");
    }
    assert_eq!(page(&server, "/round").0, 500);
    assert_eq!(page(&server, "/later?u=/../x").0, 500);
    assert_eq!(page(&server, "/later").0, 500);
    assert_eq!(page(&server, "/late").0, 500);
    server.wait_error_log("\"echo_exec\" to \"/bar\" after a part of the response").unwrap();
}

#[test]
fn lines_stand_around_any_body() {
    let server = start_server(
        server().file("html/a.txt", "hello\n"),
        &format!(
            "location / {{ echo_before_body before $uri; echo_before_body -n; echo_after_body after; echo_after_body -n 'end $echo_incr'; }}
             location /echo {{ echo_before_body '<'; echo mid; echo_after_body '>'; }}
             location /proxy {{ echo_before_body '<'; echo_after_body '>'; proxy_pass http://{}; }}
             location /outer {{ echo_location /echo; }}
             location = /204 {{ echo_before_body x; return 204; }} location /inner/ {{ alias html/; }}
             location /gzip {{ gzip on; gzip_types *; gzip_min_length 1; echo_before_body '<'; echo mid; }}",
            mirror()
        ),
    );
    assert_eq!(page(&server, "/a.txt").1, "before /a.txt\nhello\nafter\nend 1");
    let response = request(&server, "GET /a.txt", &["Range: bytes=0-1"]);
    assert_eq!(
        (response.status, response.field("Content-Length"), response.field("Accept-Ranges")),
        (200, None, None)
    );
    assert!(response.field("ETag").is_some_and(|tag| tag.starts_with("W/")));
    let missing = page(&server, "/none");
    assert!(
        missing.0 == 404 && missing.1.starts_with("before /none\n") && missing.1.ends_with("end 1"),
        "{missing:?}"
    );
    assert_eq!(page(&server, "/echo").1, "<\nmid\n>\n");
    assert_eq!(page(&server, "/outer").1, "<\nmid\n>\n");
    let proxied = page(&server, "/proxy").1;
    assert!(proxied.starts_with("<\nGET /proxy") && proxied.ends_with(">\n"), "{proxied}");
    assert_eq!(page(&server, "/204"), (204, String::new()));
    assert_eq!(request(&server, "GET /a.txt", &["If-None-Match: *"]).status, 304);
    assert_eq!(page(&server, "/inner/a.txt").1, "hello\n");
    let gzip = request(&server, "GET /gzip", &["Accept-Encoding: gzip"]);
    assert_eq!(gzip.field("Content-Encoding"), Some("gzip"));
}

#[test]
fn every_protocol_gets_the_same_response() {
    let content = "location = /said { echo_read_request_body; echo one; echo_flush; echo_sleep 0.01; echo_location /sub; echo $echo_request_body; } location = /sub { echo sub; }";
    let server = start_http2(content);
    let answer = connect(&server).request("POST", "/said", &[], b"body").unwrap();
    assert_eq!(answer.text(), "one\nsub\nbody\n");
    let server = start_http3(content);
    assert_eq!(server.client().request("POST", "/said", &[], b"body").text(), "one\nsub\nbody\n");
}

#[test]
fn clients_that_leave_end_their_programs() {
    let server = start_server(
        server(),
        "access_log logs/access.log; location /wait { echo_sleep 3600; echo_exec /other; } location /other { echo other; }",
    );
    let mut client = server.connect().unwrap();
    client.send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(client.silent_for(Duration::from_millis(50)).unwrap());
    drop(client);
    assert!(server.access_log(1).unwrap()[0].contains("\" 499 "));
    assert_eq!(Client::get(server.addr(), "/other").unwrap().text(), "other\n");
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("echo x;", "\"echo\" directive is not allowed here"),
        ("location / { echo_duplicate x y; }", "invalid value \"x\""),
        ("location / { echo_duplicate -1 y; }", "invalid value \"-1\""),
        ("location / { echo_duplicate 99999999999999999999 y; }", "invalid value \"99999999999999999999\""),
        ("location / { echo_sleep 1.2345; }", "invalid value \"1.2345\""),
        ("location / { echo_status 99; }", "\"echo_status\" directive value must be between 200 and 599"),
        ("location / { echo_location sub; }", "invalid value \"sub\""),
        ("location / { echo_location @sub; }", "invalid value \"@sub\""),
        ("location / { echo_subrequest BREW /sub; }", "invalid value \"BREW\""),
        ("location / { echo_subrequest POST /sub -x y; }", "invalid parameter \"-x\""),
        ("location / { echo_subrequest POST /sub -b; }", "has no value behind \"-b\""),
        ("location / { echo_subrequest POST /sub -f /a; }", "\"-f\" is not supported"),
        ("location / { echo_foreach_split , a; echo x; }", "a loop without \"echo_end\""),
        ("location / { echo_end; }", "no loop to end here"),
        (
            "location / { echo_foreach_split , a; echo_foreach_split , b; echo_end; echo_end; }",
            "loops cannot be nested",
        ),
        ("location / { echo_foreach_split '' a; echo_end; }", "has an empty separator"),
        ("location / { echo_exec sub; }", "invalid value \"sub\""),
        ("location / { echo $nonsense; }", "unknown \"nonsense\" variable"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
}
