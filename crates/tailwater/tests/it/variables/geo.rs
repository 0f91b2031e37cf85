//! `geo`

use crate::support::{get, refusal_of, request, server, start};

/// Output of `-t` for this content of an `http` block.
fn check(http: &str) -> String {
    let output = server().arg("-t").run(&format!("http {{ {http} }}")).unwrap();
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn most_specific_network_wins() {
    let server = start(
        server().file("conf/more.geo", "198.51.100.0/24 included; 2001:db8:1::/48 inner;"),
        "geo $arg_ip $x {
             default none; 0.0.0.0/1 half; 10.0.0.0/8 ten; 10.1.0.0/16 'ten one'; 10.1.2.3 host; include more.geo;
             192.0.2.0/24 gone; delete 192.0.2.0/24; 2001:db8::/32 outer; ::1 loopback; 255.255.255.255 no-address;
         }
         geo $arg_ip $nothing { 10.0.0.0/8 ten; }
         geo $client { 127.0.0.0/8 $literal; }
         server { listen 127.0.0.1:{port}; location / { return 200 '$x|$nothing|$client'; } }",
    );
    for (ip, expected, nothing) in [
        ("10.1.2.3", "host", "ten"),
        ("10.1.2.4", "ten one", "ten"),
        ("10.2.0.0", "ten", "ten"),
        ("::ffff:10.2.0.0", "ten", "ten"),
        ("9.255.255.255", "half", ""),
        ("11.0.0.0", "half", ""),
        ("127.255.255.255", "half", ""),
        ("128.0.0.0", "none", ""),
        ("192.0.2.1", "none", ""),
        ("198.51.100.7", "included", ""),
        ("2001:db8::1", "outer", ""),
        ("2001:db8:1::1", "inner", ""),
        ("2001:db9::", "none", ""),
        ("::1", "loopback", ""),
        ("junk", "no-address", ""),
        ("", "no-address", ""),
        ("10.1.2.3:80", "host", "ten"),
        ("[2001:db8:1::1]:80", "inner", ""),
        ("[::ffff:10.2.0.0]:80", "ten", "ten"),
        ("10.1.2.3:", "no-address", ""),
        ("10.1.2.3:x", "no-address", ""),
        ("unix:/a", "no-address", ""),
    ] {
        assert_eq!(
            get(&server, &format!("/?ip={ip}")).text(),
            format!("{expected}|{nothing}|$literal"),
            "{ip}"
        );
    }
}

#[test]
fn ranges_split_each_other() {
    let server = start(
        server(),
        "geo $arg_ip $x {
             ranges; default none; 10.0.0.0-10.0.255.255 wide; 10.0.1.0-10.0.1.255 inner; 10.0.2.0-10.2.0.255 gone;
             delete 10.0.2.0-10.0.2.255;
         }
         server { listen 127.0.0.1:{port}; location / { return 200 $x; } }",
    );
    for (ip, expected) in [
        ("10.0.0.255", "wide"),
        ("10.0.1.7", "inner"),
        ("10.0.1.255", "inner"),
        ("10.1.255.255", "gone"),
        ("10.2.0.255", "gone"),
        ("10.2.1.0", "none"),
        ("2001:db8::1", "none"),
        ("junk", "none"),
    ] {
        assert_eq!(get(&server, &format!("/?ip={ip}")).text(), expected, "{ip}");
    }
}

#[test]
fn proxy_parameter_takes_the_forwarded_address() {
    let networks = "default none; 127.0.0.0/8 here; 192.0.2.0/24 test; 198.51.100.0/24 proxy;";
    let server = start(
        server(),
        &format!(
            "geo $last {{ proxy 127.0.0.1; proxy 198.51.100.0/24; {networks} }}
             geo $all {{ proxy 127.0.0.0/8; proxy 198.51.100.0/24; proxy_recursive; {networks} }}
             geo $untrusted {{ proxy 10.0.0.0/8; {networks} }}
             server {{ listen 127.0.0.1:{{port}}; location / {{ return 200 '$last $all $untrusted'; }} }}"
        ),
    );
    for (fields, expected) in [
        (&[][..], "here here here"),
        (&["X-Forwarded-For: 192.0.2.1"][..], "test test here"),
        (&["X-Forwarded-For: 192.0.2.1, 198.51.100.1"][..], "proxy test here"),
        (&["X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 198.51.100.1:80"][..], "proxy test here"),
        (&["X-Forwarded-For: junk"][..], "here here here"),
        (&["X-Forwarded-For: 203.0.113.1"][..], "none none here"),
    ] {
        assert_eq!(request(&server, "GET /", fields).text(), expected, "{fields:?}");
    }
}

#[test]
fn meaningless_and_duplicate_networks_are_warned_of() {
    let said = check(
        "geo $a { 10.0.0.1/8 one; 10.0.0.0/8 two; default a; default b; delete 192.0.2.0/24; proxy 10.0.0.1/9; }
         geo $b { ranges; default a; default b; 1.0.0.0-1.0.0.9 x; 1.0.0.0-1.0.0.9 y; delete 1.0.0.0-1.0.0.8; }",
    );
    for expected in [
        "low address bits of 10.0.0.1/8 are meaningless in ",
        "duplicate network \"10.0.0.0/8\", value: \"two\", old value: \"one\" in ",
        "duplicate network \"default\", value: \"b\", old value: \"a\" in ",
        "no network \"192.0.2.0/24\" to delete in ",
        "low address bits of 10.0.0.1/9 are meaningless in ",
        "duplicate default geo range value: \"b\", old value: \"a\" in ",
        "duplicate range \"1.0.0.0-1.0.0.9\", value: \"y\", old value: \"x\" in ",
        "no address range \"1.0.0.0-1.0.0.8\" to delete in ",
    ] {
        assert!(said.contains(&format!("[warn] {expected}")), "{expected}: {said}");
    }
    assert!(said.contains("test is successful"), "{said}");
}

#[test]
fn malformed_blocks_are_refused() {
    for (geo, expected) in [
        ("geo $a { 10.0.0.0/33 x; }", "invalid network \"10.0.0.0/33\" in"),
        ("geo $a { 10.0.0 x; }", "invalid network \"10.0.0\" in"),
        ("geo $a { 10.0.0.0-10.0.0.1 x; }", "invalid network \"10.0.0.0-10.0.0.1\" in"),
        ("geo $a { 2001:db8::/129 x; }", "invalid network \"2001:db8::/129\" in"),
        ("geo $a { delete junk; }", "invalid network \"junk\" in"),
        ("geo $a { proxy unix:; }", "invalid network \"unix:\" in"),
        ("geo $a { ranges; 10.0.0.0/8 x; }", "invalid range \"10.0.0.0/8\" in"),
        ("geo $a { ranges; 10.0.0.2-10.0.0.1 x; }", "invalid range \"10.0.0.2-10.0.0.1\" in"),
        (
            "geo $a { ranges; 10.0.0.0-10.0.0.9 x; 10.0.0.5-10.0.0.15 y; }",
            "range \"10.0.0.5-10.0.0.15\" overlaps \"10.0.0.0-10.0.0.9\" in",
        ),
        (
            "geo $a { default x; ranges; }",
            "the \"ranges\" directive must be the first directive inside \"geo\"",
        ),
        ("geo $a { 10.0.0.0/8; }", "invalid number of the geo parameters in"),
        ("geo $a { 10.0.0.0/8 x y; }", "invalid number of the geo parameters in"),
        ("geo $a { 10.0.0.0/8 { } }", "unexpected \"{\" in"),
        ("geo a { }", "invalid variable name \"a\" in"),
        ("geo a $b { }", "invalid variable name \"a\" in"),
        ("geo $uri { }", "the duplicate \"uri\" variable in"),
        ("geo $missing $b { }", "unknown \"missing\" variable"),
    ] {
        let said = refusal_of(&format!("http {{ {geo} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(said.contains(expected), "{geo}: {said}");
    }
}

#[test]
fn recursive_include_is_refused() {
    let conf = "http { geo $x { include loop.geo; } server { listen 127.0.0.1:{port}; } }";
    let error = server().file("conf/loop.geo", "10.0.0.0/8 a; include loop.geo;").start(conf);
    let said = error.unwrap_err().to_string();
    assert!(said.contains("is included deeper than 64 levels"), "{said}");
}

#[test]
fn value_is_kept_unless_volatile() {
    let server = start(
        server(),
        "geo $arg_ip $kept { default none; 10.0.0.0/8 ten; } geo $arg_ip $fresh { volatile; default none; 10.0.0.0/8 ten; }
         server { listen 127.0.0.1:{port}; root html;
             location /first { try_files /no$kept$fresh /second?ip=192.0.2.1; }
             location /second { return 200 '$kept $fresh'; }
         }",
    );
    assert_eq!(get(&server, "/first?ip=10.0.0.1").text(), "ten none");
}
