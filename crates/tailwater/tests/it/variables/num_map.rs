//! `num_map`

use crate::support::{page, refusal_of, server, start};

#[test]
fn numbers_come_before_ranges_in_their_order() {
    let server = start(
        server().file("conf/more.map", "5000 included;"),
        "num_map $arg_n $x {
             default 'none of $arg_n'; include more.map;
             443 ssl; <=1023 low; 8080-8090 range; 8085-9000 later; >8092 more; -5 negative; 0.5 half;
         }
         num_map $arg_n $nothing { volatile; 1 one; }
         server { listen 127.0.0.1:{port}; location / { return 200 '$x|$nothing'; } }",
    );
    for (number, expected) in [
        ("443", "ssl|"),
        ("1", "low|one"),
        ("1.0", "low|one"),
        ("1023", "low|"),
        ("1024", "none of 1024|"),
        ("8080", "range|"),
        ("8090", "range|"),
        ("8091", "later|"),
        ("9001", "more|"),
        ("-5", "negative|"),
        ("-6", "low|"),
        ("0.500", "half|"),
        ("5000", "included|"),
        ("", "none of |"),
        ("x", "none of x|"),
    ] {
        assert_eq!(page(&server, &format!("/?n={number}")).1, expected, "{number}");
    }
}

#[test]
fn wrong_blocks_are_refused() {
    for (wrong, message) in [
        ("num_map $arg_n x { 1 1; }", "invalid variable name \"x\""),
        ("num_map $arg_n $x;", "directive \"num_map\" has no opening \"{\""),
        ("num_map $x { 1 1; }", "invalid number of arguments in \"num_map\" directive"),
        ("num_map $arg_n $x { a 1; }", "invalid number or range \"a\""),
        ("num_map $arg_n $x { 2-1 1; }", "invalid number or range \"2-1\""),
        ("num_map $arg_n $x { 1 1; 1.0 2; }", "conflicting parameter \"1.0\""),
        ("num_map $arg_n $x { 1; }", "invalid number of the num_map parameters"),
        ("num_map $arg_n $x { default 1; default 2; }", "duplicate default num_map parameter"),
        ("num_map $arg_n $x { 1 $none; }", "unknown \"none\" variable"),
        ("num_map $arg_n $uri { 1 1; }", "the duplicate \"uri\" variable"),
    ] {
        let refused = refusal_of(&format!("http {{ {wrong} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(refused.contains(message), "{wrong}: {refused}");
    }
}
