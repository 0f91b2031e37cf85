//! Choice of server and location.

use tw_testkit::{Client, Server};

use crate::support::{page, raw, refusal, server, start, start_server};

/// A server whose locations answer with their own names. A `$` in one would be a variable.
fn named(locations: &[&str]) -> Server {
    let block = |name: &&str| format!("location {name} {{ return 200 '{}'; }}\n", name.replace('$', "!"));
    start_server(server(), &locations.iter().map(block).collect::<String>())
}

fn check(server: &Server, table: &[(&str, &str)]) {
    for (target, expected) in table {
        assert_eq!(page(server, target).1, *expected, "{target}");
    }
}

#[test]
fn exact_prefix_and_regex_locations_have_their_precedence() {
    let server = named(&[
        "= /",
        "/",
        "/documents/",
        "^~ /images/",
        "~* \\.(gif|jpg|jpeg)$",
        "~ \\.GIF$",
        "= /exact",
        "/exact",
        "/a",
        "/ab",
        "/abc",
        "~ ^/regex/first",
        "~ ^/regex/",
        "/with%20space",
        "\"/with space\"",
    ]);
    check(
        &server,
        &[
            ("/", "= /"),
            ("/index.html", "/"),
            ("/documents/document.html", "/documents/"),
            ("/documents", "/"),
            ("/images/1.gif", "^~ /images/"),
            ("/documents/1.jpg", "~* \\.(gif|jpg|jpeg)!"),
            ("/x.GIF", "~* \\.(gif|jpg|jpeg)!"),
            ("/exact", "= /exact"),
            ("/exact?x", "= /exact"),
            ("/exactly", "/exact"),
            ("/exact/", "/exact"),
            ("/a", "/a"),
            ("/ab", "/ab"),
            ("/abcd", "/abc"),
            ("/ac", "/a"),
            ("/regex/first/x", "~ ^/regex/first"),
            ("/regex/x", "~ ^/regex/"),
            // Locations are compared with the decoded and normalised URI.
            ("/%61bc", "/abc"),
            ("/x/../documents/./x", "/documents/"),
            ("//documents//x", "/documents/"),
            ("/with%2520space", "/with%20space"),
            ("/with%20space", "\"/with space\""),
            ("/%2569mages/1.gif", "~* \\.(gif|jpg|jpeg)!"),
            ("/%69mages/1.gif", "^~ /images/"),
        ],
    );
}

#[test]
fn merge_slashes_off_keeps_slashes() {
    let server = start_server(
        server(),
        "merge_slashes off; location / { return 200 root; } location //a/ { return 200 'two'; }",
    );
    check(&server, &[("//a/", "two"), ("/a/", "root")]);
}

#[test]
fn nested_locations_are_searched() {
    let server = start_server(
        server(),
        "location / { return 200 root; }
         location /a/ {
           location /a/b/ { return 200 b; } location ~ \\.x$ { return 200 nested-regex; } location = /a/exact { return 200 exact; }
           location ^~ /a/stop/ { return 200 stop; }
           return 200 a;
         }
         location ~ ^/r/ { location ~ \\.y$ { return 200 regex-in-regex; } return 200 r; }
         location ~ \\.x$ { return 200 outer-regex; }",
    );
    check(
        &server,
        &[
            ("/a/", "a"),
            ("/a/b/c", "b"),
            ("/a/b/c.x", "nested-regex"),
            ("/a/c.x", "nested-regex"),
            // `^~` stops only the expressions of the same block.
            ("/a/stop/c.x", "outer-regex"),
            ("/a/exact", "exact"),
            ("/b/c.x", "outer-regex"),
            ("/r/x", "r"),
            ("/r/x.y", "regex-in-regex"),
        ],
    );
}

#[test]
fn captures_are_set_by_regex_locations() {
    let server = start_server(
        server(),
        "location ~ ^/n/(?<first>\\w+)/(?<second>\\w+)$ { return 200 '$first-$second-$1-$2-$3'; }
         location ~ ^/p/(.)(.)?$ { return 200 '[$1][$2]'; }
         location ~* ^/case/(A+)$ { return 200 $1; } location / { return 200 '[$1]'; }
         location ~ ^/(?<user>[a-z]+)/of/ { location ~ \\.(php)$ { return 200 '$user $1'; } return 200 '$user only'; }
         location ~ ^/mixed/(?<MixedCase>.*) { return 200 $mixedcase; }
         # What `set` may change may be hidden.
         location ~ ^/args/(?<args>.*) { return 200 '$args $query_string'; }",
    );
    check(
        &server,
        &[
            ("/n/a/b", "a-b-a-b-"),
            ("/p/xy", "[x][y]"),
            ("/p/x", "[x][]"),
            ("/case/aAa", "aAa"),
            ("/other", "[]"),
            // The groups of an outer expression are gone, its names are not.
            ("/joe/of/x.php", "joe php"),
            ("/joe/of/x", "joe only"),
            ("/mixed/x", "x"),
            ("/args/x?y", "x y"),
        ],
    );
}

#[test]
fn predicate_locations_come_after_regexes_and_before_prefixes() {
    let server = start(
        server(),
        "map $a $b { default $a; } map $b $a { default $b; }
         map $uri $is_secret { volatile; /secret 1; }
         server {
           listen 127.0.0.1:{port}; root html; error_page 418 = @named;
           location $arg_a { return 200 a; }
           location = /exact { return 200 exact; }
           location /prefix { return 200 prefix; }
           location ^~ /stop { return 200 stop; location $arg_b { return 200 'stop b'; } }
           location ~ ^/(regex) { return 200 regex; location $arg_b { return 200 'regex b $1'; } }
           location = /named { return 418; }
           location @named { return 200 named; }
           location $arg_c {
             if ($arg_c = 2) { return 200 'c if'; }
             return 200 c;
             location = /c/exact { return 200 'c exact'; }
             location /c/prefix { return 200 'c prefix'; }
             location ~ ^/c/regex { return 200 'c regex'; }
             location $arg_d { return 200 'c d'; }
           }
           location $is_secret { internal; return 200 secret; }
           location /to-secret { rewrite ^ /secret last; }
           location ~ ^/set$ { set $arg_a 1; rewrite ^ /x last; }
           location $arg_e { location $a { return 200 never; } return 200 never; }
         }",
    );
    check(
        &server,
        &[
            ("/x?a=1", "a"),
            ("/x?a=00", "a"),
            ("/prefix", "prefix"),
            ("/prefix?a=0", "prefix"),
            ("/prefix?a=", "prefix"),
            ("/prefix?a=1", "a"),
            ("/exact?a=1", "exact"),
            ("/stop?a=1", "stop"),
            ("/stop?a=1&b=1", "stop b"),
            ("/regex?a=1", "regex"),
            ("/regex?a=1&b=1", "regex b regex"),
            ("/named?a=1", "named"),
            ("/x?c=1", "c"),
            ("/x?c=2", "c if"),
            ("/x?a=1&c=1", "a"),
            ("/c/exact?c=1&d=1", "c exact"),
            ("/c/prefix?c=1", "c prefix"),
            ("/c/prefix?c=1&d=1", "c d"),
            ("/c/regex?c=1&d=1", "c regex"),
            ("/x?c=1&d=1", "c d"),
            ("/to-secret", "secret"),
            // A value of `set` counts when the location is chosen once more.
            ("/set", "a"),
        ],
    );
    assert_eq!(page(&server, "/x").0, 404);
    assert_eq!(page(&server, "/secret").0, 404);
    // A variable that cannot be evaluated is an error of the request, not a location that does not match.
    assert_eq!(page(&server, "/x?e=1").0, 500);
}

#[test]
fn wrong_predicate_locations_are_refused() {
    for (wrong, message) in [
        ("location $ { }", "invalid variable name \"$\""),
        ("location $nothing { }", "unknown \"nothing\" variable"),
        ("location $arg_a { proxy_pass http://127.0.0.1/x; }", "\"proxy_pass\" cannot have URI part"),
        ("location = /x { location $arg_a { } }", "cannot be inside the exact location \"/x\""),
        ("location @x { location $arg_a { } }", "cannot be inside the named location \"@x\""),
        ("location $arg_a { location @x { } }", "named location \"@x\" can be on the server level only"),
    ] {
        let refused = refusal(wrong);
        assert!(refused.contains(message), "{wrong}: {refused}");
    }
}

#[test]
fn internal_and_named_locations_are_hidden_from_clients() {
    let server = start_server(
        server().file("html/secret/a", "secret"),
        "location /secret/ { internal; } location /try/ { try_files /none /secret/a; }
         location /named/ { error_page 418 = @name; return 418; } location @name { return 200 'named: $uri'; } location @name { return 200 never; }
         location = /@name { return 200 'not named'; }",
    );
    check(&server, &[("/try/", "secret"), ("/named/x", "named: /named/x"), ("/@name", "not named")]);
    assert_eq!(page(&server, "/secret/a").0, 404);
    assert_eq!(page(&server, "/secret/").0, 404);
}

#[test]
fn locations_inside_of_internal_ones_are_internal() {
    let server = start_server(
        server(),
        "location /in/ { internal; return 200 outer; location /in/nested { return 200 nested; }
           location ~ \\.txt$ { if ($arg_a) { return 200 if; } return 200 regex; } }
         location /try/ { try_files /none /in/nested; } location /other/ { try_files /none /in/a.txt?a=1; }",
    );
    check(&server, &[("/try/", "nested"), ("/other/", "if")]);
    for target in ["/in/", "/in/nested", "/in/a.txt", "/in/a.txt?a=1"] {
        assert_eq!(page(&server, target).0, 404, "{target}");
    }
}

fn host(addr: std::net::SocketAddr, host: &str) -> String {
    let mut client = Client::connect(addr).unwrap();
    client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")).unwrap();
    client.read_response().unwrap().text()
}

#[test]
fn server_name_selects_the_server() {
    let names = [
        "first.example",
        "exact.example.com other.example.com",
        "*.example.com",
        "*.deep.example.com",
        ".dot.example",
        "mail.*",
        "mail.example.*",
        "~^www(?<number>\\d+)\\.regex$",
        "~^(.+)\\.regex$",
        "MixedCase.Example",
        "_",
        "\"\"",
    ];
    let servers: String = names
        .iter()
        .map(|names| {
            let shown = names.replace('$', "!").replace("\"\"", "none");
            format!(
                "server {{ listen 127.0.0.1:{{port}}; server_name {names}; return 200 '{shown}|$number'; }}\n"
            )
        })
        .collect();
    let server = start(server(), &servers);
    for (name, expected) in [
        ("exact.example.com", "exact.example.com other.example.com|"),
        ("other.example.com", "exact.example.com other.example.com|"),
        ("EXACT.example.COM", "exact.example.com other.example.com|"),
        ("exact.example.com:8080", "exact.example.com other.example.com|"),
        ("exact.example.com.", "exact.example.com other.example.com|"),
        ("x.example.com", "*.example.com|"),
        ("x.y.example.com", "*.example.com|"),
        ("x.deep.example.com", "*.deep.example.com|"),
        ("deep.example.com", "*.example.com|"),
        ("example.com", "first.example|"),
        ("dot.example", ".dot.example|"),
        ("x.dot.example", ".dot.example|"),
        // An empty label is one.
        (".example.com", "*.example.com|"),
        (".deep.example.com", "*.deep.example.com|"),
        (".dot.example", ".dot.example|"),
        (".mail.org", "first.example|"),
        ("mail.org", "mail.*|"),
        ("mail.x.org", "mail.*|"),
        ("mail.example.org", "mail.example.*|"),
        // A name before a wildcard at the beginning, that before one at the end, that before a regex.
        ("mail.example.com", "*.example.com|"),
        ("www12.regex", "~^www(?<number>\\d+)\\.regex!|12"),
        ("www.regex", "~^(.+)\\.regex!|"),
        ("mixedcase.example", "MixedCase.Example|"),
        ("unknown", "first.example|"),
        ("127.0.0.1", "first.example|"),
        ("[::1]:80", "first.example|"),
        ("_", "_|"),
    ] {
        assert_eq!(host(server.addr(), name), expected, "{name}");
    }
    // A request without a host name.
    let text = raw(&server, "GET / HTTP/1.0\r\n\r\n");
    assert!(text.ends_with("none|"), "{text}");
    // The name in the request line comes before the field.
    let text =
        raw(&server, "GET http://x.example.com/ HTTP/1.1\r\nHost: mail.org\r\nConnection: close\r\n\r\n");
    assert!(text.ends_with("*.example.com|"), "{text}");
}

#[test]
fn default_server_answers_unknown_names() {
    let conf = "server { listen 127.0.0.1:{port}; server_name a; return 200 a; }
        server { listen 127.0.0.1:{port} default_server; server_name b; return 200 b; }
        server { listen 127.0.0.1:{port1}; server_name c; return 200 c; }
        server { listen 127.0.0.1:{port1}; server_name d; return 200 d; }
        server { listen 127.0.0.1:{port1}; server_name d; return 200 never; }";
    let server = start(server(), conf);
    for (port, name, expected) in
        [(0, "a", "a"), (0, "b", "b"), (0, "x", "b"), (1, "x", "c"), (1, "d", "d"), (1, "a", "c")]
    {
        assert_eq!(host(server.addr_of(port), name), expected, "{port} {name}");
    }
    let warned = "conflicting server name \"d\" on 127.0.0.1:";
    assert!(server.stderr().contains(warned), "{}", server.stderr());
}

#[test]
fn empty_server_name_matches_requests_without_host() {
    let first = "server { listen 127.0.0.1:{port}; server_name a; return 200 a; }";
    for second in ["", "server_name \"\";"] {
        let second = format!("server {{ listen 127.0.0.1:{{port}}; {second} return 200 nameless; }}");
        let server = start(server(), &format!("{first} {second}"));
        assert!(raw(&server, "GET / HTTP/1.0\r\n\r\n").ends_with("nameless"), "{second}");
        assert_eq!(host(server.addr(), "other"), "a");
        assert!(!server.stderr().contains("conflicting"), "{}", server.stderr());
        let server = start(self::server(), &format!("{first} {second} {second}"));
        let warned = "conflicting server name \"\" on 127.0.0.1:";
        assert!(server.stderr().contains(warned), "{}", server.stderr());
    }
}

#[test]
fn server_without_locations_serves_its_root() {
    let server = start_server(server().file("html/a", "a"), "");
    check(&server, &[("/a", "a")]);
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("location /a { } location /a { }", "duplicate location \"/a\""),
        ("location = /a { } location = /a { }", "duplicate location \"/a\""),
        ("location ~ ( { }", "\"(\""),
        ("location ~ ^/(?<uri>.*)$ { }", "the duplicate \"uri\" variable"),
        ("server_name ~^(?<host>.*)$;", "the duplicate \"host\" variable"),
        ("location % /a { }", "invalid location modifier \"%\""),
        ("location /a { location /b { } }", "location \"/b\" is outside location \"/a\""),
        (
            "location = /a { location /a/b { } }",
            "location \"/a/b\" cannot be inside the exact location \"/a\"",
        ),
        ("location ~ ^/a { location /a/b { } }", "location \"/a/b\" is outside location \"^/a\""),
        ("location @a { location /b { } }", "location \"/b\" cannot be inside the named location \"@a\""),
        ("location /a { location @b { } }", "named location \"@b\" can be on the server level only"),
        ("location { }", "invalid number of arguments in \"location\" directive"),
        ("server_name *a;", "server name \"*a\" is invalid"),
        ("server_name .;", "server name \".\" is invalid"),
        ("server_name ~;", "empty regex in server name \"~\""),
        ("listen 127.0.0.1:{port};", "duplicate listen"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
    // nginx looks at these only if there are several servers.
    for name in ["a..b", "a*b", "*.a.*"] {
        let error = refusal(&format!("server_name {name}; }} server {{ listen 127.0.0.1:{{port}};"));
        assert!(error.contains(&format!("invalid server name or wildcard \"{name}\"")), "{name}: {error}");
    }
    let server = start_server(server(), "server_name http://example.com/;");
    let warning = "server name \"http://example.com/\" has suspicious symbols";
    assert!(server.stderr().contains(warning), "{}", server.stderr());
}
