//! Mistakes of a text that is no configuration: all of it is read, and that does not take long.

mod support;

use tw_conf::ConfError;

use support::mistakes;

/// Number of hints among the first hundred mistakes and among all others.
fn hints(mistakes: &[ConfError]) -> (usize, usize) {
    let count = |some: &[ConfError]| some.iter().filter(|mistake| mistake.hint.is_some()).count();
    let (first, others) = mistakes.split_at(100);
    (count(first), count(others))
}

#[test]
fn hints_are_limited_to_the_first_hundred_mistakes() {
    let unknown = mistakes(&format!("events {{ }} {}", "lisen 80;\n".repeat(300)));
    assert_eq!((unknown.len(), hints(&unknown)), (300, (100, 0)));

    let variables: String = (0..300).map(|n| format!("add_header X $remote_add{n};\n")).collect();
    let unknown = mistakes(&format!("events {{ }} http {{ {variables} }}"));
    assert_eq!((unknown.len(), hints(&unknown)), (300, (100, 0)));
}
