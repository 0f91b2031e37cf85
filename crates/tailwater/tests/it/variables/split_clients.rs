//! `split_clients`

use crate::support::{get, refusal_of, server, start};

#[test]
fn value_always_has_the_same_bucket() {
    let server = start(
        server(),
        "split_clients \"${arg_a}salt\" $x { 25.5% first; 25% second; * 'the rest'; }
         split_clients $arg_a $some { 50% half; }
         server { listen 127.0.0.1:{port}; location / { return 200 '$x $some'; } }",
    );
    let mut counts = [0; 4];
    for n in 0..200 {
        let text = get(&server, &format!("/?a={n}")).text();
        assert_eq!(get(&server, &format!("/?a={n}")).text(), text, "{n}");
        let at = ["first ", "second ", "the rest "].iter().position(|part| text.starts_with(part)).unwrap();
        counts[at] += 1;
        counts[3] += usize::from(text.ends_with(" half"));
    }
    // The hash is nginx's, and so are the numbers.
    assert_eq!(counts, [45, 47, 108, 111]);
}

#[test]
fn malformed_blocks_are_refused() {
    for (block, expected) in [
        ("split_clients a $x { 60% a; 40.01% b; }", "percent total is greater than 100% in"),
        ("split_clients a $x { 6.001% a; }", "invalid percent value \"6.001%\" in"),
        ("split_clients a x { 60% a; }", "invalid variable name \"x\" in"),
        ("split_clients a $uri { 60% a; }", "the duplicate \"uri\" variable in"),
        ("split_clients $missing $x { 60% a; }", "unknown \"missing\" variable"),
    ] {
        let said = refusal_of(&format!("http {{ {block} server {{ listen 127.0.0.1:{{port}}; }} }}"));
        assert!(said.contains(expected), "{block}: {said}");
    }
}
