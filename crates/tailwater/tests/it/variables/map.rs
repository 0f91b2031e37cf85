//! `map`

use crate::support::{get, page, refusal_of, request, server, start};

/// The refusal of this content of an `http` block.
fn refused(http: &str) -> String {
    refusal_of(&format!("http {{ {http} server {{ listen 127.0.0.1:{{port}}; }} }}"))
}

#[test]
fn names_wildcards_and_expressions_match() {
    let server = start(
        server().file("conf/more.map", "included yes; ~^more(?<tail>.)$ 'more $tail';"),
        "map $arg_a$arg_b $x {
             include more.map; default 'none of $arg_a'; EXACT exact; '' empty; \\default escaped; \\~^t tilde;
             \\\\two backslash; ~^r(.)(.) $2$1; '~*^R(?<named>.)' 'named $named'; volatile found;
         }
         map $host $h {
             hostnames; .example.com dot; *.example.org below; www.example.* prefix; plain.net plain;
             ~^www\\.other\\. regex;
         }
         map $arg_a $nothing { a 1; }
         server { listen 127.0.0.1:{port}; location / { return 200 '$x|$h|$nothing|'; } }",
    );
    for (target, expected) in [
        ("/?a=exact", "exact"),
        ("/?a=EX&b=aCt", "exact"),
        ("/", "empty"),
        ("/?a=default", "escaped"),
        ("/?a=~^t", "tilde"),
        ("/?a=two", "backslash"),
        ("/?a=rxy", "yx"),
        ("/?a=RZ", "named Z"),
        ("/?a=included", "yes"),
        ("/?a=more1", "more 1"),
        ("/?a=volatile", "found"),
        ("/?a=other", "none of other"),
    ] {
        assert_eq!(get(&server, target).text(), format!("{expected}|||"), "{target}");
    }
    for (host, expected) in [
        ("example.com", "dot"),
        ("EXAMPLE.com.", "dot"),
        ("a.b.example.com", "dot"),
        ("example.org", ""),
        ("a.example.org", "below"),
        ("www.example.net", "prefix"),
        ("plain.net.", "plain"),
        ("www.other.net", "regex"),
        ("other.net", ""),
    ] {
        let mut client = server.connect().unwrap();
        client.send(format!("GET /?a=a HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).unwrap();
        assert_eq!(client.read_response().unwrap().text(), format!("none of a|{expected}|1|"), "{host}");
    }
}

#[test]
fn value_is_kept_unless_volatile() {
    let server = start(
        server(),
        "map $uri $kept { ~^/(\\w+) $1; } map $uri $fresh { volatile; ~^/(\\w+) $1; }
         server { listen 127.0.0.1:{port}; root html;
             location /first { try_files /no$kept$fresh /second; }
             location /second { return 200 '$kept $fresh'; }
         }",
    );
    assert_eq!(page(&server, "/second"), (200, "second second".to_owned()));
    assert_eq!(page(&server, "/first"), (200, "first second".to_owned()));
}

#[test]
fn map_may_replace_a_map_but_no_built_in_variable() {
    let server = start(
        server(),
        "map $arg_a $x { default first; } map $arg_a $X { default second; } map $arg_a $http_a { default family; }
         map $x $args { default args; }
         server { listen 127.0.0.1:{port}; location / { return 200 '$x $http_a $args'; } }",
    );
    assert_eq!(request(&server, "GET /", &["A: field"]).text(), "second family args");
    for (map, expected) in [
        ("map $arg_a $uri { a 1; }", "the duplicate \"uri\" variable in"),
        ("map $arg_a $x { ~(?<uri>a) 1; }", "the duplicate \"uri\" variable in"),
        ("map $arg_a x { a 1; }", "invalid variable name \"x\" in"),
        ("map $arg_a $ { a 1; }", "invalid variable name \"$\" in"),
        ("map $arg_a $x { a; }", "invalid number of the map parameters in"),
        ("map $arg_a $x { a b c; }", "invalid number of the map parameters in"),
        ("map $arg_a $x { a 1 { } }", "unexpected \"{\" in"),
        ("map $arg_a $x { a 1; A 2; }", "conflicting parameter \"a\" in"),
        ("map $arg_a $x { hostnames; .a.b 1; *.a.b 2; }", "conflicting parameter \"*.a.b\" in"),
        ("map $arg_a $x { hostnames; a*b 1; }", "invalid hostname or wildcard \"a*b\" in"),
        ("map $arg_a $x { default 1; default 2; }", "duplicate default map parameter in"),
        ("map $arg_a $x { ~( 1; }", "regex compilation failed"),
        ("map $arg_a $x { a $missing; }", "unknown \"missing\" variable"),
        ("map $arg_a $x { a 1; } map_hash_max_size 0;", "should increase map_hash_max_size: 0"),
        (
            "map_hash_bucket_size 70000; map $arg_a $x { a 1; }",
            "could not build map_hash, too large map_hash_bucket_size: 70016",
        ),
        ("map_hash_max_size 1k;", "\"map_hash_max_size\" directive invalid number"),
    ] {
        let said = refused(map);
        assert!(said.contains(expected), "{map}: {said}");
    }
}

#[test]
fn includes_and_values_have_limits() {
    let value = "v".repeat(64 << 10);
    let said = refused(&format!("map $arg_a $x {{ a {value}; }}"));
    assert!(said.contains("too long parameter \"vvvvvvvvvv...\" started in"), "{said}");
    let error = server()
        .file("conf/loop.map", "a 1; include loop.map;")
        .start("http { map $arg_a $x { include loop.map; } server { listen 127.0.0.1:{port}; } }");
    let said = error.unwrap_err().to_string();
    assert!(said.contains("is included deeper than 64 levels"), "{said}");
}

#[test]
fn long_value_passes() {
    let value = "v".repeat(6000);
    let server = start(
        server(),
        "large_client_header_buffers 4 16k; map $http_a $x { ~^(v+)$ '$1$1$1'; }
         server { listen 127.0.0.1:{port}; location / { return 200 $x; } }",
    );
    assert_eq!(request(&server, "GET /", &[&format!("A: {value}")]).text().len(), 18_000);
}

#[test]
fn cyclic_maps_end() {
    let server = start(
        server(),
        "map $b $a { volatile; default a$b$b; } map $a $b { volatile; default b$a$a; }
         map $c $c { default c$c; }
         server { listen 127.0.0.1:{port}; location / { return 200 '$c|'; } location /v { return 200 '$a|'; } }",
    );
    assert_eq!(page(&server, "/"), (200, "c|".to_owned()));
    server.wait_error_log("cycle while evaluating variable \"c\"").unwrap();
    assert_eq!(page(&server, "/v").0, 200);
    server.wait_error_log("cycle while evaluating variable \"a\"").unwrap();
}

#[test]
fn catastrophic_expression_is_an_error() {
    let server = start(
        server().file("html/f", "file"),
        "map $arg_a $x { ~^((a|aa)+)+(?!x)\\1c$ 1; default 0; }
         server { listen 127.0.0.1:{port}; root html; add_header X-Map $x;
             location /return { return 200 $x; } location /f { } location /try { try_files /$x /f; }
             location /page { error_page 500 /fallback; try_files /$x /f; } location /fallback { return 200 fallback; }
         }",
    );
    let bad = "a".repeat(60);
    assert_eq!(page(&server, "/return?a=aab"), (200, "0".to_owned()));
    assert_eq!(get(&server, &format!("/return?a={bad}")).status, 500);
    assert_eq!(get(&server, &format!("/try?a={bad}")).status, 500);
    assert_eq!(page(&server, &format!("/page?a={bad}")), (500, "fallback".to_owned()));
    // Only a response field uses the map here, so its failure decides nothing.
    assert_eq!(get(&server, &format!("/f?a={bad}")).status, 200);
    server.wait_error_log("exceeded its limit of backtracking on \"aaaa").unwrap();
}
