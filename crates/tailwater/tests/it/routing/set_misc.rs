//! `set_md5` and its like: functions of values in the programs of `set` and `if`

use std::collections::HashSet;

use crate::support::{get, page, refusal, server, start, start_server};

#[test]
fn functions_take_a_value_or_the_variable() {
    let server = start_server(
        server(),
        r#"location = /all { set $text "hello\n'\"\\"; set $a abcde;
             set_quote_sql_str $sql $text; set_quote_pgsql_str $pgsql $text; set_quote_json_str $json $text; set_quote_json_str $null '';
             set_unescape_uri $un 'a%20b+c'; set_escape_uri $esc 'a b/c';
             set_encode_base32 $b32 $a; set_decode_base32 $d32 $b32; set_encode_base64 $b64 $a; set_decode_base64 $d64 $b64;
             set_encode_base64url $b64u '>>>???>'; set_decode_base64url $d64u $b64u; set_encode_hex $hex $a; set_decode_hex $dhex $hex;
             set_sha1 $sha hello; set_md5 $md hello;
             set_hmac_sha1 $h1 thisisverysecretstuff 'some string we want to sign'; set_encode_base64 $h1;
             set_hmac_sha256 $h2 thisisverysecretstuff 'some string we want to sign'; set_encode_base64 $h2;
             return 200 "$sql|$pgsql|$json|$null|$un|$esc|$b32|$d32|$b64|$d64|$b64u|$d64u|$hex|$dhex|$sha|$md|$h1|$h2"; }
           location = /place { set $x $arg_x; set_unescape_uri $x; set_sha1 $x; return 200 $x; }"#,
    );
    let expected = [
        r#"'hello\n\'\"\\'"#,
        r#"E'hello\n\'\"\\'"#,
        r#""hello\n'\"\\""#,
        "null",
        "a b c",
        "a%20b%2Fc",
        "c5h66p35",
        "abcde",
        "YWJjZGU=",
        "abcde",
        "Pj4-Pz8_Pg",
        ">>>???>",
        "6162636465",
        "abcde",
        "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d",
        "5d41402abc4b2a76b9719d911017c592",
        "R/pvxzHC4NLtj7S+kXFg/NePTmk=",
        "4pU3GRQrKKIoeLb9CqYsavHE2l6Hx+KMmRmesU+Cfrs=",
    ];
    assert_eq!(page(&server, "/all"), (200, expected.join("|")));
    assert_eq!(page(&server, "/place?x=%68ello").1, "aaf4c61ddcc5e8a2dabede0f3b482cd9aea9434d");
}

#[test]
fn functions_run_in_order_with_set_and_if() {
    let server = start_server(
        server(),
        "set_if_empty $given $arg_given; set $order ''; 
         location /empty { set $a $arg_a; set_if_empty $a 56; return 200 $a; }
         location /order { set $v one; set_md5 $first $v; set $v two; if ($arg_x) { set_md5 $v x; set_encode_hex $first hit; } set_md5 $second $v; 
           return 200 $first-$second; }
         location /regex { if ($uri ~ '^/regex/(.*)$') { set_escape_uri $e $1; } return 200 $e; }
         location /break { set $v 1; break; set_md5 $v; return 200 never; }
         location /given { return 200 $given; }",
    );
    for (target, expected) in [
        ("/empty", "56"),
        ("/empty?a=", "56"),
        ("/empty?a=32", "32"),
        ("/order", "f97c5d29941bfb1b2fdab0874906ab82-b8a9f715dbb64fd5c56e7783c6820a61"),
        ("/order?x=1", "686974-64eb18f6a8f793689ad1eb1136f43ccf"),
        ("/regex/a&b", "a%26b"),
        ("/given?given=g", "g"),
    ] {
        assert_eq!(page(&server, target), (200, expected.to_owned()), "{target}");
    }
    assert_eq!(get(&server, "/break").status, 404);
}

#[test]
fn base32_settings_are_inherited() {
    let server = start(
        server(),
        "set_base32_alphabet ABCDEFGHIJKLMNOPQRSTUVWXYZ234567; server { listen 127.0.0.1:{port};
         location /standard { set_encode_base32 $x foob; return 200 $x; }
         location /plain { set_base32_padding off; set_encode_base32 $x foob; return 200 $x; }
         location /old { set_misc_base32_padding off; set_encode_base32 $x foob; return 200 $x; }
         location /if { set_base32_padding off; if ($arg_a) { set_base32_alphabet 0123456789abcdefghijklmnopqrstuv; set_encode_base32 $x foob; }
           set_encode_base32 $y foob; return 200 $x-$y; } }",
    );
    for (target, expected) in [
        ("/standard", "MZXW6YQ="),
        ("/plain", "MZXW6YQ"),
        ("/old", "MZXW6YQ"),
        ("/if", "-MZXW6YQ"),
        ("/if?a=1", "cpnmuog-MZXW6YQ"),
    ] {
        assert_eq!(page(&server, target).1, expected, "{target}");
    }
}

#[test]
fn upstream_of_a_list_is_chosen_by_hash() {
    let server = start(
        server(),
        "upstream_list universe moon sun earth; server { listen 127.0.0.1:{port}; 
         location / { set $list universe; set_hashed_upstream $name $list $arg_k; return 200 $name; }
         location /none { set_hashed_upstream $name $arg_k x; return 200 $name; } }",
    );
    let names: HashSet<String> = (0..40)
        .map(|key| {
            let target = format!("/?k=key{key}");
            assert_eq!(page(&server, &target), page(&server, &target.to_uppercase().replace("K=", "k=")));
            page(&server, &target).1
        })
        .collect();
    assert_eq!(names, ["moon", "sun", "earth"].map(str::to_owned).into());
    assert_eq!(page(&server, "/none?k=other").0, 500);
    server.wait_error_log("upstream list \"other\" is not defined").unwrap();
}

#[test]
fn random_and_rotating_values() {
    let server = start_server(
        server(),
        "location /random { set_random $x $arg_a 7; return 200 $x; }
         location /alphanum { set_secure_random_alphanum $x 32; return 200 $x; }
         location /letters { set_secure_random_lcalpha $x $arg_n; return 200 $x; }
         location /rotate { set_rotate $x 0 3; return 200 $x; }
         location /cookie { set $x $cookie_x; set_rotate $x 1 5; return 200 $x; }",
    );
    for _ in 0..20 {
        assert!(["5", "6", "7"].contains(&page(&server, "/random?a=5").1.as_str()));
    }
    let letters = page(&server, "/alphanum").1;
    assert!(letters.len() == 32 && letters.chars().all(|c| c.is_ascii_alphanumeric()), "{letters}");
    assert_ne!(letters, page(&server, "/alphanum").1);
    assert!(page(&server, "/letters?n=64").1.chars().all(|c| c.is_ascii_lowercase()));
    for (target, message) in [
        ("/random?a=-1", "invalid number \"-1\""),
        ("/letters?n=65", "invalid length \"65\", it must be between 1 and 64"),
        ("/letters", "invalid number \"\""),
    ] {
        assert_eq!(page(&server, target).0, 500, "{target}");
        server.wait_error_log(message).unwrap();
    }
    let rotated: Vec<_> = (0..6).map(|_| page(&server, "/rotate").1).collect();
    assert_eq!(rotated, ["0", "1", "2", "3", "0", "1"]);
    let next = |cookie: &str| {
        crate::support::request(&server, "GET /cookie", &[&format!("Cookie: x={cookie}")]).text()
    };
    assert_eq!(["1", "4", "5", "9", "0", "bad"].map(next), ["2", "5", "1", "1", "1", "2"]);
}

#[test]
fn times_have_formats() {
    let conf = "http { server { listen 127.0.0.1:{port};
        location / { set_local_today $today; set_formatted_gmt_time $gmt '%Y-%m-%d %H:%M %Z'; set_formatted_local_time $local '%Y-%m-%d %H:%M %z';
        return 200 '$today|$gmt|$local|$time_iso8601'; } } }";
    let server = server().env("TZ", "<+0330>-3:30").start(conf).unwrap();
    let text = page(&server, "/").1;
    let [today, gmt, local, iso] = *text.split('|').collect::<Vec<_>>() else { panic!("{text}") };
    assert_eq!((today, local.split(' ').next()), (&iso[..10], Some(&iso[..10])), "{text}");
    assert!(gmt.ends_with(" GMT") && local.ends_with(" +0330"), "{text}");
}

#[test]
fn directives_of_http_define_an_empty_variable() {
    let conf = "http { set_random $number 1 3; set_formatted_local_time $year '%Y'; upstream_list all a b;
        server { listen 127.0.0.1:{port}; location / { return 200 '<$number$year>'; }
            location /own { set_random $number 5 5; return 200 '<$number$year>'; } } }";
    let output = server().arg("-t").run(conf).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let warning = "[warn] \"set_random\" has no effect at \"http\" level: $number exists and stays empty";
    assert!(said.contains(warning) && output.status.success(), "{said}");
    let server = server().start(conf).unwrap();
    assert_eq!(["/", "/own"].map(|uri| page(&server, uri).1), ["<>", "<5>"]);
}

#[test]
fn malformed_directives_are_refused() {
    for (line, message) in [
        ("set_md5 x y;", "invalid variable name \"x\""),
        ("set_md5 $x y z;", "invalid number of arguments in \"set_md5\" directive"),
        ("set_md5 $uri;", "the duplicate \"uri\" variable"),
        ("set_hmac_sha1 $x y;", "invalid number of arguments in \"set_hmac_sha1\" directive"),
        ("set_random $x 1 many;", "invalid number \"many\""),
        ("set_rotate $x -1 2;", "invalid number \"-1\""),
        ("set_secure_random_alphanum $x 0;", "invalid length \"0\", it must be between 1 and 64"),
        ("set_hashed_upstream $x none $uri;", "upstream list \"none\" is not defined"),
        ("upstream_list a b; upstream_list a c;", "duplicate upstream list \"a\""),
        ("set_base32_alphabet abc;", "\"set_base32_alphabet\" directive must have 32 letters"),
        (
            "set_base32_alphabet aacdefghijklmnopqrstuvwxyz234567;",
            "must have 32 different letters other than \"=\"",
        ),
        ("set_base32_padding perhaps;", "it must be \"on\" or \"off\""),
        ("set_md5 $x $nonsense;", "unknown \"nonsense\" variable"),
    ] {
        let error = refusal(line);
        assert!(error.contains(message), "{line}: {error}");
    }
}
