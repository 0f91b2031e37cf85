//! `secure_link`

use crate::support::{get, refusal, server, start_server};

#[test]
fn links_are_valid_until_they_expire() {
    let server = start_server(
        server(),
        "location /l { secure_link $arg_h,$arg_t; secure_link_md5 'abc$arg_x'; set $v \"$secure_link_expires|\";
             return 200 '$v$secure_link'; }
         location /n { secure_link $arg_h; secure_link_md5 abc; return 200 '$secure_link_expires|$secure_link';
             location /n/inner { secure_link_md5 other; return 200 '$secure_link_expires|$secure_link'; } }
         location /half { secure_link $arg_h; return 200 '$secure_link_expires|$secure_link'; }
         location /p/ { secure_link_secret bc; return 200 '$secure_link_expires|$secure_link'; }",
    );
    let hash = "kAFQmDzST7DWlj99KOF_cg";
    for (target, expected) in [
        (format!("/l?h={hash}&t=4000000000"), "4000000000|1"),
        (format!("/l?h={hash}==&t=1"), "1|0"),
        (format!("/l?h={hash}&t=0"), "|"),
        (format!("/l?h={hash}&t=x"), "|"),
        (format!("/l?h={hash}"), "|"),
        (format!("/l?h={hash}&t=4000000000&x=d"), "4000000000|"),
        ("/l?h=short&t=4000000000".to_owned(), "4000000000|"),
        (format!("/n?h={hash}"), "|1"),
        (format!("/n/inner?h={hash}"), "|"),
        (format!("/half?h={hash}"), "|"),
        ("/p/900150983cd24fb0d6963f7d28e17f72/a".to_owned(), "|a"),
        ("/p/900150983cd24fb0d6963f7d28e17f73/a".to_owned(), "|"),
        ("/p/a".to_owned(), "|"),
    ] {
        assert_eq!(get(&server, &target).text(), expected, "{target}");
    }
}

#[test]
fn malformed_directives_are_refused() {
    for (conf, expected) in [
        (
            "location / { secure_link_secret a; secure_link_md5 b; }",
            "\"secure_link_secret\" cannot be mixed with \"secure_link\" and \"secure_link_md5\"",
        ),
        ("secure_link_secret a;", "\"secure_link_secret\" directive is not allowed here in"),
        ("secure_link a; secure_link b;", "\"secure_link\" directive is duplicate in"),
        ("set $secure_link a;", "the duplicate \"secure_link\" variable in"),
    ] {
        let said = refusal(conf);
        assert!(said.contains(expected), "{conf}: {said}");
    }
}
